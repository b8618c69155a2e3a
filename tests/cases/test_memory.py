"""MEM: a context that does not fit, GPUs that do not divide the model, host memory that is too small."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cases.case import CLAIM, Case, errors, findings
from tests.cases.rendered import one, render

ENGINE = "services.qwen.engine"


def model(name: str, gpu: str, gpus: int = 1, **more: Any) -> dict[str, Any]:
    """The lab with another model on other cards, and RAM, CPUs and a claim to match."""
    return {
        "nodes.lab.gpu": gpu,
        "nodes.lab.gpusPerNode": max(gpus, 1),
        "nodes.lab.cpus": 128,
        "nodes.lab.memory": "1024Gi",
        "services.qwen.gpus": gpus,
        "services.qwen.model": {"id": name},
        "services.qwen.cache": CLAIM,
        "services.qwen.resources": {"memoryLimit": "512Gi"},
        ENGINE: {"gpuMemoryUtilization": 0.9, "maxModelLen": 4096},
        **more,
    }


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
ON_24_GIB = model(LLAMA, "rtx-3090")
QWEN_7B = "Qwen/Qwen2.5-7B-Instruct"

CASES = [
    Case(
        "MEM-1",
        "24 GiB and 131,072 tokens",
        {**ON_24_GIB, f"{ENGINE}.maxModelLen": 131072},
        "error",
        "MEM-1",
        ".engine.maxModelLen",
        "131072 tokens",
        {**ON_24_GIB, f"{ENGINE}.maxModelLen": 8192},
    ),
    Case(
        "MEM-1",
        "no length, and the model's maximum does not fit",
        {**ON_24_GIB, f"{ENGINE}.maxModelLen": None},
        "error",
        "MEM-1",
        ".engine.maxModelLen",
        "131072 tokens",
        {**ON_24_GIB, f"{ENGINE}.maxModelLen": 4096},
    ),
    Case(
        "MEM-1",
        "weights that are larger than the card",
        model("Qwen/Qwen2.5-32B-Instruct", "rtx-3090"),
        "error",
        "MEM-1",
        ".engine.maxModelLen",
        "a larger card",
        model("Qwen/Qwen2.5-32B-Instruct", "h200"),
    ),
    Case(
        "MEM-4",
        "28 heads on 3 GPUs, by themselves",
        model(QWEN_7B, "l40s", 3),
        "error",
        "MEM-4",
        ".engine.tensorParallelSize",
        "one of 1, 2",
        model(QWEN_7B, "l40s", 2),
    ),
    Case(
        "MEM-4",
        "32 heads on 3 GPUs, asked for",
        model(LLAMA, "l40s", 3, **{f"{ENGINE}.tensorParallelSize": 3}),
        "error",
        "MEM-4",
        ".engine.tensorParallelSize",
        "32 attention heads",
        model(LLAMA, "l40s", 3, **{f"{ENGINE}.tensorParallelSize": 1, f"{ENGINE}.dataParallelSize": 3}),
    ),
    Case(
        "MEM-4",
        "2 GPUs wanted of 1",
        model(LLAMA, "l40s", 1, **{f"{ENGINE}.tensorParallelSize": 2}),
        "error",
        "MEM-4",
        ".engine.tensorParallelSize",
        "gpus: 2",
        model(LLAMA, "l40s", 2, **{f"{ENGINE}.tensorParallelSize": 2}),
    ),
    Case(
        "MEM-4",
        "2 x 2 GPUs wanted of 2",
        model(LLAMA, "l40s", 2, **{f"{ENGINE}.tensorParallelSize": 2, f"{ENGINE}.pipelineParallelSize": 2}),
        "error",
        "MEM-4",
        ".engine.tensorParallelSize",
        "uses 4 GPUs",
        model(LLAMA, "l40s", 4, **{f"{ENGINE}.tensorParallelSize": 2, f"{ENGINE}.pipelineParallelSize": 2}),
    ),
    Case(
        "MEM-4",
        "a GPU that is paid for and idle",
        model(LLAMA, "l40s", 2, **{f"{ENGINE}.tensorParallelSize": 1}),
        "warn",
        "MEM-4",
        ".gpus",
        "1 GPU(s) idle",
        model("Qwen/Qwen2.5-32B-Instruct", "l40s", 8, **{f"{ENGINE}.tensorParallelSize": 8}),
    ),
    Case(
        "MEM-4",
        "KV heads that cannot be shared",
        model("Qwen/Qwen2.5-0.5B-Instruct", "l40s", 7, **{f"{ENGINE}.tensorParallelSize": 7}),
        "error",
        "MEM-4",
        ".engine.tensorParallelSize",
        "2 KV heads",
        model("Qwen/Qwen2.5-0.5B-Instruct", "l40s", 2, **{f"{ENGINE}.tensorParallelSize": 2}),
    ),
    Case(
        "MEM-4",
        "quantised weights on 7 GPUs",
        model("Qwen/Qwen2.5-7B-Instruct-AWQ", "l40s", 7, **{f"{ENGINE}.tensorParallelSize": 7}),
        "error",
        "MEM-4",
        ".engine.tensorParallelSize",
        "4 KV heads",
        model("Qwen/Qwen2.5-7B-Instruct-AWQ", "l40s", 4),
    ),
    Case(
        "MEM-4",
        "a mixture of experts on 5 GPUs",
        model("Qwen/Qwen3-30B-A3B", "h200", 5, **{f"{ENGINE}.tensorParallelSize": 5}),
        "error",
        "MEM-4",
        ".engine.tensorParallelSize",
        "32 attention heads",
        model("Qwen/Qwen3-30B-A3B", "h200", 4),
    ),
    Case(
        "MEM-5",
        "shared memory as large as the limit",
        {"services.qwen.resources": {"memoryLimit": "8Gi", "sharedMemory": "8Gi"}},
        "error",
        "MEM-5",
        ".resources.sharedMemory",
        "inside the memory limit",
        {"services.qwen.resources": {"memoryLimit": "12Gi", "sharedMemory": "8Gi"}},
    ),
    Case(
        "MEM-5",
        "60 GiB of weights in 16 GiB of RAM",
        model(
            "Qwen/Qwen2.5-32B-Instruct", "h200", **{"services.qwen.resources": {"memory": "8Gi", "memoryLimit": "16Gi"}}
        ),
        "warn",
        "MEM-5",
        ".resources.memoryLimit",
        "65Gi",
        model(
            "Qwen/Qwen2.5-32B-Instruct",
            "h200",
            **{"services.qwen.resources": {"memory": "8Gi", "memoryLimit": "80Gi"}},
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def test_mem_1_the_offered_length_is_one_that_fits() -> None:
    (refused,) = [each for each in findings({**ON_24_GIB, f"{ENGINE}.maxModelLen": 131072}) if each.rule == "MEM-1"]
    offered = int(re.search(r"at most (\d+)", refused.remedy)[1])  # type: ignore[index]
    # 0.9 of 23.6 GiB less 15 GiB of weights and 1 to 3 GiB of everything else, at 128 KiB a token.
    assert 26_000 <= offered <= 43_000, f"{offered} is offered"
    neighbour = errors({**ON_24_GIB, f"{ENGINE}.maxModelLen": offered})
    assert not neighbour, f"what is offered must be accepted: {neighbour}"


def test_mem_4_the_offered_sizes_are_accepted() -> None:
    (refused,) = [each for each in findings(model(QWEN_7B, "l40s", 3)) if (each.rule, each.level) == ("MEM-4", "error")]
    offered = [int(number) for number in re.findall(r"\d+", refused.remedy.split("(")[0])]
    assert offered == [1, 2], "of 28 heads and 4 KV heads"
    for size in offered:
        neighbour = findings(model(QWEN_7B, "l40s", 3, **{f"{ENGINE}.tensorParallelSize": size}))
        assert not [each for each in neighbour if each.level == "error"], f"{size} was offered"


def test_mem_5_shared_memory_is_limited_where_ever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for changes in ({}, {"services.qwen.resources": {"memoryLimit": "24Gi"}}):
        volumes = one(render(monkeypatch, changes), "Deployment")["spec"]["template"]["spec"]["volumes"]
        (shared,) = [volume["emptyDir"] for volume in volumes if volume["name"] == "shm"]
        assert shared["medium"] == "Memory", "else it is the node's disk"
        assert shared["sizeLimit"], "without a limit it can take all of the node's memory; the neighbour has one too"
