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
    "more than one replica": ("REP-1", {"services.qwen.replicas": 2}, "error", "services.qwen.replicas", "2", {}),
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


def test_two_services_cannot_share_a_name() -> None:
    lab = values()["services"]["qwen"]
    twin = {**lab, "cache": {**lab["cache"], "claimName": "other"}}
    found = said(findings({"services.twin": twin, "nodes.lab.nodes": 2}), "NAM-1")
    assert [finding.path for finding in found] == ["vllm:services.twin.exposure.serviceName"], (
        "both would be the Service `vllm-service`; their claims differ"
    )


def test_arguments_are_checked_against_the_release() -> None:
    changes = {"services.qwen.engine.extraArgs": ["--cuda-graph-sizes", "8"]}
    errors = [finding for finding in findings(changes) if finding.level == "error"]
    assert [finding.path for finding in errors] == ["vllm:services.qwen.engine.extraArgs[0]"], errors
    assert "--cudagraph-capture-sizes" in errors[0].remedy, "the new name of the flag is the way out"
    old = {**changes, "services.qwen.image.tag": "v0.11.0"}
    assert not [finding for finding in findings(old) if finding.level == "error"], "0.11.0 has that flag"


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_shipped_stack_has_no_error(stack: str) -> None:
    errors = [finding for finding in findings({}, stack=stack) if finding.level == "error"]
    assert not errors, f"{stack} would be refused: {errors}"
