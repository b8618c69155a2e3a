"""A pool of kind `cpu`: what is refused on it, what is only said, each beside a neighbour that passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from infra.answers import service_answers, short_answers
from infra.tables import service_block
from planner.findings import Finding
from planner.plan import ServicePlan, plan_services
from tests.infra.live_objects import cluster, node
from tests.infra.test_live_rules import found
from tests.infra.test_preflight import findings
from tests.stack_files import CPUS, config

ENGINE, IMAGE = "services.qwen.engine", "services.qwen.image"
PAIR = {
    **CPUS,
    "nodes.lab.gpusPerNode": 2,
    "services.qwen.replicas": 2,
    "services.qwen.cache": {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi"},
}
CARD = {"totalMib": 24576, "multiprocessors": 82, "computeCapability": "8.6", "memoryBandwidth": 936}
EKS = {
    "instanceType": "g6e.2xlarge",
    "subnets": [{"id": "subnet-0123456789abcdef0", "zone": "us-east-1a", "zoneId": "use1-az4"}],
    "devices": {"kind": "none"},
}
GEMMA = {"id": "google/gemma-2-9b-it"}
ROOMY = {"services.qwen.resources": {"memoryLimit": "30Gi"}}


def engine(**settings: Any) -> dict[str, Any]:
    """The lab's engine settings with others; ``None`` leaves one out."""
    merged = {**CPUS[ENGINE], **settings}
    return {**CPUS, ENGINE: {name: value for name, value in merged.items() if value is not None}}


def without_repository() -> dict[str, Any]:
    return {**CPUS, IMAGE: {"tag": "v0.32.0"}}


# what: rule, (changes that it speaks about), level, path, words, (neighbour that must pass)
RULES: dict[str, tuple[str, Mapping[str, Any], str, str, str, Mapping[str, Any]]] = {
    "the image for cards on CPUs": (
        "CPU-IMAGE",
        without_repository(),
        "error",
        "services.qwen.image.repository",
        "vllm/vllm-openai-cpu",
        CPUS,
    ),
    "the image for CPUs on a card": (
        "CPU-IMAGE",
        {IMAGE: {"repository": "docker.io/vllm/vllm-openai-cpu", "tag": "v0.31.0"}},
        "warn",
        "services.qwen.image.repository",
        "would idle",
        {},
    ),
    "an image of one's own": (
        "CPU-IMAGE",
        without_repository(),
        "error",
        "services.qwen.image.repository",
        "built for cards",
        {**CPUS, IMAGE: {"repository": "registry.example.com/vllm-on-cpus", "tag": "v0.32.0"}},
    ),
    "a card that is described": (
        "CPU-POOL",
        {**CPUS, "nodes.lab.declaredGpu": CARD},
        "error",
        "nodes.lab.declaredGpu",
        "describes a card",
        CPUS,
    ),
    "a claim of devices": (
        "CPU-POOL",
        {**CPUS, "nodes.lab.allocation": "dra"},
        "error",
        "nodes.lab.allocation",
        "no device",
        CPUS,
    ),
    "a node group": ("CPU-POOL", {**CPUS, "nodes.lab.eks": EKS}, "error", "nodes.lab.eks", "NVIDIA's AMI", CPUS),
    "a driver": ("CPU-POOL", {**CPUS, "nodes.lab.driver": "580.82"}, "warn", "nodes.lab.driver", "no effect", CPUS),
    "KV cache space on a card": (
        "CPU-KV",
        {"services.qwen.engine.cpuKvCacheSpace": 2},
        "error",
        "services.qwen.engine.cpuKvCacheSpace",
        "has cards",
        {},
    ),
    "the variable of a setting": (
        "CPU-KV",
        {**CPUS, "services.qwen.env": {"VLLM_CPU_KVCACHE_SPACE": "2"}},
        "error",
        "services.qwen.env.VLLM_CPU_KVCACHE_SPACE",
        "engine.cpuKvCacheSpace",
        {**CPUS, "services.qwen.env": {"VLLM_CPU_ATTN_SPLIT_KV": "0"}},
    ),
    "two sizes of one cache": (
        "CPU-KV",
        engine(kvCacheMemoryBytes=2**30),
        "warn",
        "services.qwen.engine.kvCacheMemoryBytes",
        "cpuKvCacheSpace says 2",
        engine(kvCacheMemoryBytes=2**30, cpuKvCacheSpace=None),
    ),
    "a share beside a size": (
        "CPU-KV",
        engine(gpuMemoryUtilization=0.5, kvCacheMemoryBytes=2**30, cpuKvCacheSpace=None),
        "warn",
        "services.qwen.engine.gpuMemoryUtilization",
        "no effect",
        engine(gpuMemoryUtilization=0.5, cpuKvCacheSpace=None),
    ),
    "a size that an older release does not read": (
        "CPU-KV",
        {**engine(kvCacheMemoryBytes=2**30, cpuKvCacheSpace=None), f"{IMAGE}.tag": "v0.11.0"},
        "warn",
        "services.qwen.engine.kvCacheMemoryBytes",
        "0.11.0",
        {**CPUS, f"{IMAGE}.tag": "v0.11.0"},
    ),
    "a limit below weights and KV cache": (
        "MEM-LIMIT",
        {**CPUS, "services.qwen.resources": {"memoryLimit": "4Gi"}},
        "error",
        "services.qwen.resources.memoryLimit",
        "OOMKilled",
        CPUS,
    ),
    "a limit that may be too small": (
        "MEM-LIMIT",
        {**CPUS, "services.qwen.resources": {"memoryLimit": "5.2Gi"}},
        "warn",
        "services.qwen.resources.memoryLimit",
        "may end",
        CPUS,
    ),
    "files that are read beside the cache": (
        "MEM-CACHE",
        {**CPUS, "services.qwen.resources": {"memoryLimit": "5.8Gi"}},
        "warn",
        "services.qwen.resources.memoryLimit",
        "count as taken",
        {**CPUS, "services.qwen.resources": {"memoryLimit": "7Gi"}},
    ),
    "a share that is not free": (
        "MEM-START",
        engine(cpuKvCacheSpace=None),
        "error",
        "services.qwen.engine.gpuMemoryUtilization",
        "engine.cpuKvCacheSpace: 1",
        engine(cpuKvCacheSpace=None, gpuMemoryUtilization=0.5),
    ),
    "a context that is longer than the cache": (
        "MEM-1",
        engine(cpuKvCacheSpace=None, kvCacheMemoryBytes=10_000_000),
        "error",
        "services.qwen.engine.maxModelLen",
        "cpuKvCacheSpace: 1",
        engine(cpuKvCacheSpace=None, kvCacheMemoryBytes=100_000_000),
    ),
    "graphs": (
        "CPU-SETTINGS",
        engine(cudagraphCaptureSizes=[1, 2, 4]),
        "warn",
        "services.qwen.engine.cudagraphCaptureSizes",
        "no graphs",
        CPUS,
    ),
    "a KV cache of a type for cards": (
        "CPU-SETTINGS",
        engine(kvCacheDtype="int8_per_token_head"),
        "warn",
        "services.qwen.engine.kvCacheDtype",
        "fp8",
        engine(kvCacheDtype="fp8"),
    ),
    "a block that is no multiple of 32": (
        "CPU-SETTINGS",
        engine(blockSize=16),
        "warn",
        "services.qwen.engine.blockSize",
        "multiple of 32",
        engine(blockSize=64),
    ),
    "a quantisation for cards": (
        "CPU-SETTINGS",
        {**CPUS, "services.qwen.model": {"id": "Qwen/Qwen3-8B-FP8"}, **ROOMY},
        "warn",
        "services.qwen.model.id",
        "fp8",
        {**CPUS, "services.qwen.model": {"id": "Qwen/Qwen2.5-7B-Instruct-AWQ"}, **ROOMY},
    ),
    "a server that sleeps": (
        "CPU-SLEEP",
        engine(extraArgs=["--enable-sleep-mode"]),
        "error",
        "services.qwen.engine.extraArgs[0]",
        "not supported",
        {f"{ENGINE}.extraArgs": ["--enable-sleep-mode"]},
    ),
    "two servers on the same cores": (
        "CPU-BIND",
        PAIR,
        "warn",
        "services.qwen.env.VLLM_CPU_OMP_THREADS_BIND",
        "same cores",
        {**PAIR, "services.qwen.env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}},
    ),
    "more servers than the nodes take": (
        "SCH-GPUS",
        {**PAIR, "nodes.lab.gpusPerNode": 1},
        "error",
        "nodes.lab",
        "worker(s) on CPUs",
        PAIR,
    ),
    "workers that want NUMA nodes": (
        "CPU-NUMA",
        {**CPUS, "nodes.lab.gpusPerNode": 2, "services.qwen.gpus": 2},
        "warn",
        "services.qwen.gpus",
        "2 NUMA nodes",
        CPUS,
    ),
    "float16 for a model that overflows in it": (
        "CAP-1",
        {**engine(dtype="half"), "services.qwen.model": GEMMA, **ROOMY},
        "error",
        "services.qwen.engine.dtype",
        "bfloat16",
        {**engine(dtype="bfloat16"), "services.qwen.model": GEMMA, **ROOMY},
    ),
    "fewer CPUs than vLLM keeps busy": (
        "CPU-1",
        {**CPUS, "services.qwen.resources": {"memoryLimit": "8Gi", "cpu": "500m"}},
        "warn",
        "services.qwen.resources.cpu",
        "1 worker(s)",
        CPUS,
    ),
    "a cache of CUDA that is moved": (
        "NAM-2",
        {"services.qwen.env": {"CUDA_CACHE_PATH": "/elsewhere"}},
        "error",
        "services.qwen.env.CUDA_CACHE_PATH",
        "leave it out",
        {**CPUS, "services.qwen.env": {"CUDA_CACHE_PATH": "/elsewhere"}},
    ),
}


@pytest.mark.parametrize("what", RULES)
def test_it_is_said_and_its_neighbour_passes(what: str) -> None:
    rule, changes, level, path, words, neighbour = RULES[what]
    mine = [each for each in findings(changes) if (each.rule, each.path) == (rule, f"vllm:{path}")]
    assert [each.level for each in mine] == [level], f"{what}: {mine}"
    assert words in f"{mine[0].message} {mine[0].remedy}", f"{mine[0]} does not say {words!r}"
    assert mine[0].remedy, "a finding without a way out is no help"
    beside = findings(neighbour)
    assert not [each for each in beside if (each.rule, each.path) == (rule, f"vllm:{path}")], f"{what}: the neighbour"
    assert not [each for each in beside if each.level == "error"], f"the neighbour runs and is refused: {beside}"


def test_nothing_is_said_about_cards_that_are_not_there() -> None:
    about_cards = {"CAP-2", "CAP-3", "CAP-4", "MEM-5", "SET-GRAPHS"}
    said = [each for each in findings(CPUS) if each.rule in about_cards]
    assert not said, f"there is no card, no driver and no CUDA: {said}"
    assert [each for each in findings({}) if each.rule in about_cards], "the neighbour: the lab has a card"


ON_THE_NODE = {**CPUS, "nodes.lab.selector": {"nvidia.com/gpu.present": "true"}}
"""The CPUs of the node that the cluster of these tests has."""


def live(*nodes: dict[str, Any], changes: Mapping[str, Any] = ON_THE_NODE) -> list[Finding]:
    return [each for each in found(cluster(Node=list(nodes)), changes) if each.rule in {"LIVE-CARDS", "LIVE-RUNTIME"}]


def test_a_node_of_the_pool_offers_no_card_and_needs_no_runtime() -> None:
    assert not live(node(cards=0)), "its CPUs are what the pool is"
    assert not live(node(cards=0), changes={**ON_THE_NODE, "cluster.flavour": "k3s"}), "no class for cards is asked for"
    assert live(node(cards=0), changes={}), "the neighbour: the lab without its card"


def planned(changes: Mapping[str, Any] = CPUS) -> ServicePlan:
    stack = config("lab-3060", changes)
    plans, unknown = plan_services(stack.nodes, stack.services)
    assert not unknown, f"it can be planned: {unknown}"
    return plans["qwen"]


def text(plan: ServicePlan) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(service_block(plan))
    return capture.get()


def test_the_plan_speaks_of_a_container() -> None:
    said = text(planned())
    expected = ("Memory of the container", "a limit of 8.00 GiB", "2.00 GiB, ", "none on CPUs", "on cpu, vLLM 0.32.0")
    for words in expected:
        assert words in said, f"{words!r} is missing in\n{said}"
    for words in ("GPU", "nvidia", "utilisation", "CUDA"):
        assert words not in said, f"there is none: {words!r} in\n{said}"
    assert "GPU memory" in text(planned({})), "the neighbour: a card"


def test_the_answers_name_what_shows_the_memory() -> None:
    plan = planned()
    for answers in (service_answers(plan)["memory"], short_answers(plan)):
        assert answers["containerMiB"] == round(plan.memory.used_mib), "what counts against the limit"
        assert "nvidiaSmiMiB" not in answers, "there is no nvidia-smi"
    assert "nvidiaSmiMiB" in short_answers(planned({})), "the neighbour: a card"


def test_eager_saves_no_graphs() -> None:
    (said,) = [each for each in findings(engine(enforceEager=True)) if each.rule == "SET-EAGER"]
    assert "graphs" not in said.message, "CPUs record none"
