"""What the stack file alone tells: each refusal beside a neighbour that must pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from infra.preflight import check_plan
from planner.findings import Finding
from planner.plan import plan_services
from tests.stack_files import SHIPPED, config, values

STORAGE = {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi"}
USER = {"services.qwen.security": {"runAsUser": 10001}}
CARD = {"totalMib": 24576, "multiprocessors": 82, "computeCapability": "8.6", "memoryBandwidth": 936}
T4 = {"nodes.lab.gpu": "t4"}
LARGE_CARD = {"nodes.lab.gpu": "l40s", "services.qwen.resources": {"memoryLimit": "30Gi", "memory": "8Gi"}}
SMALL = {"id": "Qwen/Qwen2.5-0.5B-Instruct"}
LAB = values()["nodes"]["lab"]
QWEN = values()["services"]["qwen"]
DRA = {"nodes.lab.allocation": "dra"}
TWO_NODES = {"nodes.lab.nodes": 2}
PINNED = {**TWO_NODES, "nodes.lab.nodeNames": ["lab-0", "lab-1"]}
PAIR = {"services.qwen.replicas": 2, "services.qwen.cache": STORAGE}
SHARED = {"kind": "existingClaim", "claimName": "models"}
LOCAL = {"kind": "ownStorageClass", "provisioner": "rancher.io/local-path", "size": "20Gi"}
SECOND = {**QWEN, "cache": STORAGE, "exposure": {}}


def findings(
    changes: Mapping[str, Any], secrets: frozenset[str] = frozenset(), stack: str = "lab-3060"
) -> list[Finding]:
    stack_config = config(stack, changes)
    plans, unknown = plan_services(stack_config.nodes, stack_config.services)
    return [*unknown, *check_plan(stack_config, secrets, plans)]


def said(found: list[Finding], rule: str) -> list[Finding]:
    return [finding for finding in found if finding.rule == rule]


# rule: (changes that it speaks about, level, path, words), (neighbour that must pass)
RULES: dict[str, tuple[str, dict[str, Any], str, str, str, dict[str, Any]]] = {
    "a folder and several nodes": (
        "STO-HOSTPATH",
        {"nodes.lab.nodes": 2},
        "error",
        "services.qwen.cache.node",
        "2 nodes",
        {"nodes.lab.nodes": 2, "services.qwen.cache.node": "lab-1"},
    ),
    "a claim below the weights": (
        "STO-2",
        {"services.qwen.cache": {**STORAGE, "size": "5Gi"}},
        "error",
        "services.qwen.cache.size",
        "GiB",
        {"services.qwen.cache": {**STORAGE, "size": "7Gi"}},
    ),
    "a folder that says less than the weights": (
        "STO-2",
        {"services.qwen.cache.size": "5Gi"},
        "warn",
        "services.qwen.cache.size",
        "GiB",
        {},
    ),
    "a user and a folder of root": (
        "STO-4",
        USER,
        "error",
        "services.qwen.cache.owner",
        "could not write",
        {**USER, "services.qwen.cache.owner": 10001},
    ),
    "a user and a folder of another user": (
        "STO-4",
        {**USER, "services.qwen.cache.owner": 1000},
        "error",
        "services.qwen.cache.owner",
        "is 1000",
        {**USER, "services.qwen.cache": STORAGE},
    ),
    "more replicas than cards": (
        "SCH-GPUS",
        {"services.qwen.replicas": 2},
        "error",
        "nodes.lab",
        "declares 1",
        {"services.qwen.replicas": 2, "nodes.lab.nodes": 2},
    ),
    "DRA on a cluster that is too old": (
        "SCH-6",
        {**DRA, "cluster.kubernetesVersion": "1.31"},
        "error",
        "nodes.lab.allocation",
        "1.31",
        {**DRA, "cluster.kubernetesVersion": "1.32"},
    ),
    "a device class for a device plugin": (
        "SCH-6",
        {"nodes.lab.deviceClass": "mig.nvidia.com"},
        "warn",
        "nodes.lab.deviceClass",
        "no effect",
        {**DRA, "nodes.lab.deviceClass": "mig.nvidia.com"},
    ),
    "device plugin and DRA on the same nodes": (
        "SCH-BOTH",
        {"nodes.second": {**LAB, "allocation": "dra"}, "cluster.kubernetesVersion": "1.35"},
        "error",
        "nodes.second.allocation",
        "the same cards",
        {"nodes.second": {**LAB, "allocation": "dra", "selector": {"pool": "b"}}, "cluster.kubernetesVersion": "1.35"},
    ),
    "device plugin and DRA on some of the nodes": (
        "SCH-BOTH",
        {
            "nodes.second": {**LAB, "allocation": "dra", "selector": {**LAB["selector"], "zone": "b"}},
            "cluster.kubernetesVersion": "1.35",
        },
        "error",
        "nodes.second.allocation",
        "the same cards",
        # From 1.36 on a DeviceClass can serve both: what the cluster has decides.
        {"nodes.second": {**LAB, "allocation": "dra"}, "cluster.kubernetesVersion": "1.36"},
    ),
    "fewer node names than nodes": (
        "SCH-PIN",
        {**TWO_NODES, "nodes.lab.nodeNames": ["lab-0", "lab-0"]},
        "error",
        "nodes.lab.nodeNames",
        "names 1",
        PINNED,
    ),
    "node names and an ordinal label": (
        "SCH-PIN",
        {**PINNED, "nodes.lab.ordinalLabel": "example.com/ordinal"},
        "error",
        "nodes.lab.ordinalLabel",
        "one of the two",
        {**TWO_NODES, "nodes.lab.ordinalLabel": "example.com/ordinal"},
    ),
    "a first node that the pool lacks": (
        "SCH-PIN",
        {**PINNED, "services.qwen.firstNode": 2},
        "error",
        "services.qwen.firstNode",
        "0 to 1",
        {**PINNED, "services.qwen.firstNode": 1},
    ),
    "a first node of a pool that pins nobody": (
        "SCH-PIN",
        {**TWO_NODES, "services.qwen.firstNode": 1},
        "warn",
        "services.qwen.firstNode",
        "no effect",
        {**PINNED, "services.qwen.firstNode": 1},
    ),
    "two services pinned to one card": (
        "SCH-GPUS",
        {**PINNED, "services.second": SECOND},
        "error",
        "services.second",
        "kubernetes.io/hostname=lab-0",
        {**PINNED, "services.second": {**SECOND, "firstNode": 1}},
    ),
    "replicas that may end on one node": (
        "SCH-PIN",
        {**TWO_NODES, **PAIR},
        "warn",
        "services.qwen.replicas",
        "none is pinned",
        {**PINNED, **PAIR},
    ),
    "volumes of a node and replicas without one": (
        "SCH-PIN",
        {**TWO_NODES, **PAIR, "services.qwen.cache": LOCAL},
        "error",
        "services.qwen.replicas",
        "ordinalLabel",
        {**TWO_NODES, **PAIR, "services.qwen.cache": {**LOCAL, "provisioner": "ebs.csi.aws.com"}},
    ),
    "one ReadWriteOnce claim for replicas on two nodes": (
        "STO-1",
        {**TWO_NODES, **PAIR, "services.qwen.cache": SHARED},
        "error",
        "services.qwen.cache.accessMode",
        "'models'",
        {**TWO_NODES, **PAIR, "services.qwen.cache": {**SHARED, "accessMode": "ReadWriteMany"}},
    ),
    "one ReadWriteOnce claim for replicas on two of three nodes": (
        "STO-1",
        {"nodes.lab.nodes": 3, **PAIR, "services.qwen.cache": SHARED},
        "error",
        "services.qwen.cache.accessMode",
        "3 nodes",
        # ReadWriteOnce is one node, not one pod.
        {"nodes.lab.gpusPerNode": 2, **PAIR, "services.qwen.cache": SHARED},
    ),
    "folders of two pinned nodes": (
        "STO-HOSTPATH",
        {**TWO_NODES, "services.qwen.replicas": 2},
        "error",
        "services.qwen.cache.node",
        "2 nodes",
        {**PINNED, "services.qwen.replicas": 2},
    ),
    "a replica that is larger than a node": (
        "SCH-NODE",
        {"services.qwen.gpus": 2, "nodes.lab.nodes": 2},
        "error",
        "services.qwen.gpus",
        "each node",
        {"services.qwen.gpus": 2, "nodes.lab.gpusPerNode": 2},
    ),
    "more CPUs than a node has": (
        "SCH-ROOM",
        {"services.qwen.resources.cpu": "12"},
        "error",
        "services.qwen.resources.cpu",
        "12 CPUs",
        {"services.qwen.resources.cpu": "11500m"},
    ),
    "more RAM than a node has": (
        "SCH-ROOM",
        {"services.qwen.resources.memoryLimit": "32Gi"},
        "error",
        "services.qwen.resources.memoryLimit",
        "32Gi",
        {"services.qwen.resources.memoryLimit": "30Gi"},
    ),
    "fewer CPUs than vLLM keeps busy": (
        "CPU-1",
        {"services.qwen.resources.cpu": "2"},
        "warn",
        "services.qwen.resources.cpu",
        "3 CPUs",
        {"services.qwen.resources.cpu": "3"},
    ),
    "no pre-pull": ("IMG-PULL", {"nodes.lab.imageDelivery": "none"}, "warn", "services.qwen.pool", "waits about", {}),
    "a context that does not fit": (
        "MEM-1",
        {"services.qwen.engine.gpuMemoryUtilization": 0.4},
        "error",
        "services.qwen.engine.maxModelLen",
        "tokens",
        {"services.qwen.engine.gpuMemoryUtilization": 0.8},
    ),
    "shared memory that fills the limit": (
        "MEM-5",
        {"services.qwen.resources.sharedMemory": "10Gi"},
        "error",
        "services.qwen.resources.sharedMemory",
        "inside the memory limit",
        {"services.qwen.resources.sharedMemory": "8Gi"},
    ),
    "a request above the limit": (
        "MEM-ORDER",
        {"services.qwen.resources.memory": "11Gi"},
        "error",
        "services.qwen.resources.memory",
        "more than the limit",
        {"services.qwen.resources.memory": "10Gi"},
    ),
    "little shared memory for two GPUs": (
        "NET-1",
        {"services.qwen.gpus": 2, "nodes.lab.gpusPerNode": 2},
        "warn",
        "services.qwen.resources.sharedMemory",
        "2 GPUs",
        {
            "services.qwen.gpus": 2,
            "nodes.lab.gpusPerNode": 2,
            "services.qwen.resources": {"memoryLimit": "24Gi", "sharedMemory": "8Gi"},
        },
    ),
    "a container's default shared memory for two GPUs": (
        "NET-1",
        {"services.qwen.gpus": 2, "nodes.lab.gpusPerNode": 2, "services.qwen.resources.sharedMemory": "64Mi"},
        "error",
        "services.qwen.resources.sharedMemory",
        "64Mi",
        {"services.qwen.resources.sharedMemory": "64Mi"},
    ),
    "an open door": (
        "SEC-1",
        {"services.qwen.exposure.type": "LoadBalancer"},
        "error",
        "services.qwen.exposure.allowFrom.cidrs",
        "/metrics",
        {"services.qwen.exposure": {"type": "LoadBalancer", "allowFrom": {"cidrs": ["10.0.0.0/8"]}}},
    ),
    "a network plugin that enforces nothing": (
        "NET-CNI",
        {"cluster.enforcesNetworkPolicy": False},
        "warn",
        "cluster.enforcesNetworkPolicy",
        "is false",
        {"cluster.enforcesNetworkPolicy": True},
    ),
    "a Service called vllm": (
        "ARG-1",
        {"services.qwen.exposure.serviceName": "vllm"},
        "warn",
        "services.qwen.exposure.serviceName",
        "VLLM_PORT",
        {"services.qwen.exposure.serviceName": "vllm-service"},
    ),
    "a gated model without a token": (
        "HF-1",
        {"services.qwen.model.gated": True},
        "error",
        "services.qwen.model.gated",
        "hfToken",
        {},
    ),
    "a branch for a revision": (
        "PIN-MODEL",
        {"services.qwen.model.revision": "main"},
        "warn",
        "services.qwen.model.revision",
        "can change",
        {"services.qwen.model.revision": "a" * 40},
    ),
    "a tag without a digest": (
        "PIN-IMAGE",
        {},
        "warn",
        "services.qwen.image.digest",
        "can change",
        {"services.qwen.image.digest": "sha256:" + "a" * 64},
    ),
    "an offline server and no seed": (
        "HF-3",
        {"services.qwen.cache.seed": {"enabled": False}},
        "warn",
        "services.qwen.cache.seed.enabled",
        "nothing checks",
        {"services.qwen.cache.seed": {"enabled": False}, "services.qwen.offline": False},
    ),
    "a start-up window below the worst start": (
        "clocks-startup-window",
        {"services.qwen.overrides": {"startupSeconds": 30}},
        "error",
        "services.qwen.overrides.startupSeconds",
        "30 s",
        {"services.qwen.overrides": {"startupSeconds": 900}},
    ),
    "a download that is given up too early": (
        "clocks-seed-deadline",
        {"services.qwen.cache.seed": {"deadlineSeconds": 60}},
        "error",
        "services.qwen.cache.seed.deadlineSeconds",
        "60 s",
        {"services.qwen.cache.seed": {"deadlineSeconds": 3600}},
    ),
    "a GPU that no catalogue knows": (
        "GPU-UNKNOWN",
        {"nodes.lab.gpu": "rtx-3060"},
        "error",
        "nodes.lab.gpu",
        "rtx-3060",
        {
            "nodes.lab.gpu": "my-card",
            "nodes.lab.declaredGpu": {
                "totalMib": 12288,
                "multiprocessors": 28,
                "computeCapability": "8.6",
                "memoryBandwidth": 360,
            },
        },
    ),
    "bfloat16 by name on an older card": (
        "CAP-1",
        {**T4, "services.qwen.engine.dtype": "bfloat16"},
        "error",
        "services.qwen.engine.dtype",
        "half",
        {**T4, "services.qwen.engine.dtype": "half"},
    ),
    "a method below its least capability": (
        "CAP-2",
        {**T4, "services.qwen.image.tag": "v0.11.0", "services.qwen.engine.quantization": "awq_marlin"},
        "error",
        "services.qwen.engine.quantization",
        "needs compute capability 8.0",
        {**T4, "services.qwen.image.tag": "v0.31.0", "services.qwen.engine.quantization": "awq_marlin"},
    ),
    "a method whose need moved between two tables": (
        "CAP-2",
        {**T4, "services.qwen.image.tag": "v0.15.0", "services.qwen.engine.quantization": "awq_marlin"},
        "warn",
        "services.qwen.engine.quantization",
        "7.5 or 8.0",
        {**T4, "services.qwen.image.tag": "v0.19.1", "services.qwen.engine.quantization": "awq_marlin"},
    ),
    "a method that is not the checkpoint's": (
        "CAP-6",
        {"services.qwen.engine.quantization": "gptq"},
        "error",
        "services.qwen.engine.quantization",
        "are awq",
        {"services.qwen.engine.quantization": "awq"},
    ),
    "a method that computes in float16 only": (
        "CAP-6",
        {
            "services.qwen.image.tag": "v0.11.0",
            "services.qwen.engine.quantization": "awq",
            "services.qwen.engine.dtype": "bfloat16",
        },
        "error",
        "services.qwen.engine.dtype",
        "float16 only",
        {"services.qwen.image.tag": "v0.11.0", "services.qwen.engine.dtype": "bfloat16"},
    ),
    "a method that must be allowed by name": (
        "CAP-6",
        {"services.qwen.model": SMALL, "services.qwen.engine.quantization": "fbgemm_fp8"},
        "error",
        "services.qwen.engine.quantization",
        "--allow-deprecated-quantization",
        {
            "services.qwen.model": SMALL,
            "services.qwen.engine.quantization": "fbgemm_fp8",
            "services.qwen.engine.extraArgs": ["--allow-deprecated-quantization"],
        },
    ),
    "a driver that is too old for the image": (
        "CAP-3",
        {"nodes.lab.driver": "570.124"},
        "error",
        "services.qwen.image.tag",
        "v0.31.0-cu129",
        {"nodes.lab.driver": "570.124", "services.qwen.image.tag": "v0.31.0-cu129"},
    ),
    "a driver that nobody declared": (
        "CAP-3",
        {},
        "warn",
        "nodes.lab.driver",
        "from 580 on",
        {"nodes.lab.driver": "580.82"},
    ),
    "a card that the image has no code for": (
        "CAP-4",
        {"nodes.lab.gpu": "future", "nodes.lab.declaredGpu": {**CARD, "computeCapability": "13.0"}},
        "warn",
        "services.qwen.image.tag",
        "13.0",
        {"nodes.lab.gpu": "mine", "nodes.lab.declaredGpu": {**CARD, "computeCapability": "12.1"}},
    ),
    "an image for another architecture": (
        "CAP-5",
        {"services.qwen.image.tag": "v0.31.0-aarch64"},
        "error",
        "services.qwen.image.tag",
        "amd64",
        {"services.qwen.image.tag": "v0.31.0-x86_64"},
    ),
    "heads that three GPUs cannot share": (
        "MEM-4",
        {"services.qwen.gpus": 3, "nodes.lab.gpusPerNode": 3},
        "error",
        "services.qwen.engine.tensorParallelSize",
        "28 attention heads",
        {"services.qwen.gpus": 4, "nodes.lab.gpusPerNode": 4},
    ),
    "more GPUs used than given": (
        "MEM-4",
        {"services.qwen.engine.pipelineParallelSize": 2},
        "error",
        "services.qwen.engine.pipelineParallelSize",
        "gpus: 2",
        {"services.qwen.engine.pipelineParallelSize": 2, "services.qwen.gpus": 2, "nodes.lab.gpusPerNode": 2},
    ),
    "a GPU that is idle": (
        "MEM-4",
        {"services.qwen.engine.tensorParallelSize": 1, "services.qwen.gpus": 2, "nodes.lab.gpusPerNode": 2},
        "warn",
        "services.qwen.gpus",
        "1 GPU(s) idle",
        {"services.qwen.engine.tensorParallelSize": 2, "services.qwen.gpus": 2, "nodes.lab.gpusPerNode": 2},
    ),
    "4-bit weights that the fast kernels cannot share": (
        "MEM-4",
        {
            "services.qwen.model.id": "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
            "services.qwen.gpus": 32,
            "nodes.lab.gpusPerNode": 32,
            "nodes.lab.cpus": 128,
        },
        "error",
        "services.qwen.engine.tensorParallelSize",
        "groups of 128",
        {
            "services.qwen.model.id": "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
            "services.qwen.gpus": 16,
            "nodes.lab.gpusPerNode": 16,
            "nodes.lab.cpus": 128,
        },
    ),
    "less RAM than the weights": (
        "MEM-5",
        {"services.qwen.resources.memory": "4Gi", "services.qwen.resources.memoryLimit": "6Gi"},
        "warn",
        "services.qwen.resources.memoryLimit",
        "Gi or more",
        {},
    ),
    "no context length": (
        "SET-LENGTH",
        {"services.qwen.engine.maxModelLen": None},
        "info",
        "services.qwen.engine.maxModelLen",
        "32,768",
        {},
    ),
    "more context than the model has positions": (
        "SET-POSITIONS",
        {"services.qwen.engine.maxModelLen": 65536},
        "error",
        "services.qwen.engine.maxModelLen",
        "32,768 positions",
        {"services.qwen.engine.maxModelLen": 32768},
    ),
    "more requests than the largest graph": (
        "SET-GRAPHS",
        {"services.qwen.engine": {"maxModelLen": 2048, "maxNumSeqs": 256, "cudagraphCaptureSizes": [1, 2, 64]}},
        "warn",
        "services.qwen.engine.maxNumSeqs",
        "up to 64",
        {"services.qwen.engine": {"maxModelLen": 2048, "maxNumSeqs": 64, "cudagraphCaptureSizes": [1, 2, 64]}},
    ),
    "a target for the tokens of a step": (
        "SET-TOKENS",
        {"services.qwen.workload": {"target": "interTokenLatency"}},
        "info",
        "services.qwen.engine.maxNumBatchedTokens",
        "fewer make each step shorter",
        {},
    ),
    "tokens of a step without a target": (
        "SET-TOKENS",
        {"services.qwen.engine.maxNumBatchedTokens": 8192},
        "info",
        "services.qwen.workload.target",
        "no target is declared",
        {},
    ),
    "eager execution": (
        "SET-EAGER",
        {},
        "info",
        "services.qwen.engine.enforceEager",
        "nobody measured",
        {"services.qwen.engine.enforceEager": None},
    ),
    "a queue without end": (
        "SET-QUEUE",
        {},
        "info",
        "services.qwen.engine.maxNumQueuedReqs",
        "without end",
        {"services.qwen.engine.maxNumQueuedReqs": 64},
    ),
    "a base model": (
        "SET-CHAT",
        {**LARGE_CARD, "services.qwen.model": {"id": "meta-llama/Llama-3.1-8B"}},
        "warn",
        "services.qwen.engine.chatTemplate",
        "/v1/completions",
        {
            **LARGE_CARD,
            "services.qwen.model": {"id": "meta-llama/Llama-3.1-8B"},
            "services.qwen.engine.chatTemplate": "{{ messages }}",
        },
    ),
    "a node's disk that is too small": (
        "STO-2",
        {"nodes.lab.disk": "40Gi"},
        "warn",
        "nodes.lab.disk",
        "two unpacked images",
        {"nodes.lab.disk": "100Gi"},
    ),
    "a variable that moves a cache": (
        "NAM-2",
        {"services.qwen.env": {"VLLM_CACHE_ROOT": "/root/.cache/vllm"}},
        "error",
        "services.qwen.env.VLLM_CACHE_ROOT",
        "/models/compile/vllm",
        {"services.qwen.env": {"VLLM_CACHE_ROOT": "/models/compile/vllm"}},
    ),
    "a variable that contradicts `offline`": (
        "HF-3",
        {"services.qwen.offline": False, "services.qwen.env": {"HF_HUB_OFFLINE": "1"}},
        "error",
        "services.qwen.env.HF_HUB_OFFLINE",
        "offline: true",
        {"services.qwen.offline": False},
    ),
    "an engine that is given up too early": (
        "LIFE-2",
        {"services.qwen.env": {"VLLM_ENGINE_READY_TIMEOUT_S": "30"}},
        "error",
        "services.qwen.env.VLLM_ENGINE_READY_TIMEOUT_S",
        "30 s",
        {"services.qwen.env": {"VLLM_ENGINE_READY_TIMEOUT_S": "900"}},
    ),
    "an engine that may be given up too early": (
        "LIFE-2",
        {"services.qwen.env": {"VLLM_ENGINE_READY_TIMEOUT_S": "120"}},
        "warn",
        "services.qwen.env.VLLM_ENGINE_READY_TIMEOUT_S",
        "120 s",
        {},
    ),
    "requests that are cut": (
        "LIFE-3",
        {"services.qwen.stop": {"drainSeconds": 0}},
        "warn",
        "services.qwen.stop.drainSeconds",
        "are cut",
        {},
    ),
    "clients that were not told": (
        "LIFE-3",
        {"services.qwen.stop": {"preStopSeconds": 0}},
        "warn",
        "services.qwen.stop.preStopSeconds",
        "go on sending",
        {},
    ),
    "half of prefill and decode": (
        "NET-3",
        {"services.qwen.engine.kvTransferConfig": {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}},
        "error",
        "services.qwen.engine.kvTransferConfig",
        "not offered yet",
        {"services.qwen.engine.kvTransferConfig": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}},
    ),
    "a connector without peers": (
        "NET-3",
        {"services.qwen.engine.kvTransferConfig": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
        "warn",
        "services.qwen.engine.kvTransferConfig",
        "finds no peer",
        {},
    ),
    "the whole world for clients": (
        "SEC-1",
        {"services.qwen.exposure": {"type": "NodePort", "allowFrom": {"cidrs": ["::/0"]}}},
        "error",
        "services.qwen.exposure.allowFrom.cidrs",
        "everybody",
        {"services.qwen.exposure": {"type": "NodePort", "allowFrom": {"cidrs": ["10.0.0.0/8"]}}},
    ),
    "code of the model": (
        "SEC-CODE",
        {"services.qwen.engine.trustRemoteCode": True},
        "warn",
        "services.qwen.engine.trustRemoteCode",
        "it can change",
        {"services.qwen.engine.trustRemoteCode": True, "services.qwen.model.revision": "a" * 40},
    ),
    "a tag that moves": (
        "PIN-TAG",
        {"services.qwen.image": {"tag": "latest", "release": "0.31.0"}},
        "error",
        "services.qwen.image.tag",
        "v0.31.0",
        {"services.qwen.image": {"tag": "latest", "release": "0.31.0", "digest": "sha256:" + "a" * 64}},
    ),
    "a CPU limit below the request": (
        "CPU-ORDER",
        {"services.qwen.resources.cpuLimit": "2"},
        "error",
        "services.qwen.resources.cpuLimit",
        "at least 3",
        {"services.qwen.resources.cpuLimit": "3"},
    ),
    "cards past Kubernetes": (
        "SCH-3",
        {"services.qwen.env": {"CUDA_VISIBLE_DEVICES": "0"}},
        "warn",
        "services.qwen.env.CUDA_VISIBLE_DEVICES",
        "overrides the cards",
        {},
    ),
    "a model that no catalogue knows": (
        "MODEL-UNKNOWN",
        {"services.qwen.model.id": "Qwen/Qwen2.5-7B-Instruct-AWK"},
        "error",
        "services.qwen.model.id",
        "AWK",
        {},
    ),
    "a tag that says no release": (
        "RELEASE-UNKNOWN",
        {"services.qwen.image.tag": "nightly"},
        "error",
        "services.qwen.image.tag",
        "nightly",
        {"services.qwen.image.tag": "nightly", "services.qwen.image.release": "0.31.0"},
    ),
}


@pytest.mark.parametrize(("rule", "changes", "level", "path", "words", "neighbour"), RULES.values(), ids=RULES.keys())
def test_a_rule_speaks_and_lets_its_neighbour_pass(
    rule: str, changes: dict[str, Any], level: str, path: str, words: str, neighbour: dict[str, Any]
) -> None:
    found = said(findings(changes), rule)
    assert [(finding.level, finding.path) for finding in found] == [(level, f"vllm:{path}")], f"{rule} said {found}"
    assert words in f"{found[0].message} {found[0].remedy}", f"{found[0]} does not say {words!r}"
    assert found[0].remedy, "a finding without a way out is no help"
    quiet = [finding for finding in said(findings(neighbour), rule) if finding.level == level]
    assert not quiet, f"{rule} refuses what runs: {quiet}"


def test_a_gated_model_with_a_token_passes() -> None:
    found = findings({"services.qwen.model.gated": True}, secrets=frozenset({"hfToken"}))
    assert not said(found, "HF-1"), "the token is set"


def test_a_model_that_is_there_already_needs_no_token() -> None:
    filled = {"services.qwen.model.gated": True, "services.qwen.cache.seed": {"enabled": False}}
    assert not said(findings(filled), "HF-1"), "nothing is downloaded"


def test_a_key_is_missed_where_there_is_none() -> None:
    inside, outside = {}, {"services.qwen.exposure": {"type": "NodePort", "allowFrom": {"cidrs": ["10.0.0.0/8"]}}}
    for changes, level in ((inside, "info"), (outside, "warn")):
        assert [each.level for each in said(findings(changes), "SEC-KEY")] == [level], "who can come decides"
        assert not said(findings(changes, frozenset({"apiKey"})), "SEC-KEY"), "there is one"


def test_a_policy_that_nobody_enforces_keeps_nobody_out() -> None:
    outside = {"services.qwen.exposure": {"type": "NodePort", "allowFrom": {"cidrs": ["10.0.0.0/8"]}}}
    (refused,) = said(findings({**outside, "cluster.enforcesNetworkPolicy": False}), "SEC-1")
    assert (refused.level, refused.path) == ("error", "vllm:services.qwen.exposure.type")
    assert not said(findings({**outside, "cluster.enforcesNetworkPolicy": True}), "SEC-1"), "the neighbour"
    assert not said(findings({"cluster.enforcesNetworkPolicy": False}), "SEC-1"), "inside the cluster it is a warning"


def test_two_services_cannot_share_a_name() -> None:
    lab = values()["services"]["qwen"]
    twin = {**lab, "cache": {**lab["cache"], "claimName": "other"}}
    found = said(findings({"services.twin": twin, "nodes.lab.nodes": 2}), "NAM-1")
    assert [finding.path for finding in found] == ["vllm:services.twin.exposure.serviceName"], (
        "both would be the Service `vllm-service`; their claims differ"
    )


def test_a_second_replicas_claim_is_nobody_elses() -> None:
    other = {**QWEN, "exposure": {}, "cache": {"kind": "existingClaim", "claimName": "vllm-model-1"}}
    found = said(findings({"services.other": other, "services.qwen.replicas": 2, **PINNED}), "NAM-1")
    assert [finding.path for finding in found] == ["vllm:services.other.cache.claimName"], (
        "the claim of replica 1 is vllm-model-1"
    )
    alone = said(findings({"services.other": other, **TWO_NODES}), "NAM-1")
    assert not alone, "without a second replica the name is free"


def test_replicas_that_share_an_existing_claim_are_no_clash() -> None:
    changes = {**TWO_NODES, **PAIR, "services.qwen.cache": {**SHARED, "accessMode": "ReadWriteMany"}}
    assert not said(findings(changes), "NAM-1"), "one service, one claim"


def test_arguments_are_checked_against_the_release() -> None:
    changes = {"services.qwen.engine.extraArgs": ["--cuda-graph-sizes", "8"]}
    errors = [finding for finding in findings(changes) if finding.level == "error"]
    assert [finding.path for finding in errors] == ["vllm:services.qwen.engine.extraArgs[0]"], errors
    assert "--cudagraph-capture-sizes" in errors[0].remedy, "the new name of the flag is the way out"
    old = {**changes, "services.qwen.image.tag": "v0.11.0"}
    assert not [finding for finding in findings(old) if finding.level == "error"], "0.11.0 has that flag"


@pytest.mark.parametrize(
    "changes",
    [
        {"services.qwen.engine.hfOverrides": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}},
        {"services.qwen.env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
    ],
    ids=["stretched by the config", "asked for by name"],
)
def test_more_context_than_positions_passes_where_it_is_meant(changes: dict[str, Any]) -> None:
    found = findings({"services.qwen.engine.maxModelLen": 40960, **changes})
    assert not said(found, "SET-POSITIONS"), "vLLM starts with it"


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_shipped_stack_has_no_error(stack: str) -> None:
    errors = [finding for finding in findings({}, stack=stack) if finding.level == "error"]
    assert not errors, f"{stack} would be refused: {errors}"
