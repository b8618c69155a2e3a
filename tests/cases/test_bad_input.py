"""Bad input: one clear error for each fault, all at once, beside the right spelling that passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.config import ConfigError, read
from tests.cases.case import Case, errors, findings
from tests.stack_files import STACKS

ENGINE = "services.qwen.engine"

CASES = [
    Case(
        "BAD",
        "a misspelt section",
        {"servces": {}},
        "error",
        "CFG-KEY",
        "servces",
        "vllm:services",
    ),
    Case(
        "BAD",
        "a misspelt setting",
        {f"{ENGINE}.maxModelLenght": 2048},
        "error",
        "CFG-KEY",
        ".engine.maxModelLenght",
        "maxModelLen",
        {f"{ENGINE}.maxModelLen": 2048},
    ),
    Case(
        "BAD",
        "snake case",
        {f"{ENGINE}.max_model_len": 2048},
        "error",
        "CFG-KEY",
        ".engine.max_model_len",
        "maxModelLen",
    ),
    Case(
        "BAD",
        "a unit of disks",
        {"services.qwen.cache.size": "20GB"},
        "error",
        "CFG-VALUE",
        ".cache.size",
        "20Gi",
        {"services.qwen.cache.size": "20G"},
    ),
    Case(
        "BAD",
        "a unit with a blank",
        {"services.qwen.resources.memoryLimit": "10 GiB"},
        "error",
        "CFG-VALUE",
        ".resources.memoryLimit",
        "10Gi",
    ),
    Case(
        "BAD",
        "a decimal comma",
        {f"{ENGINE}.gpuMemoryUtilization": "0,8"},
        "error",
        "CFG-VALUE",
        ".engine.gpuMemoryUtilization",
        "0.8",
    ),
    Case(
        "BAD",
        "a share in percent",
        {f"{ENGINE}.gpuMemoryUtilization": 80},
        "error",
        "CFG-VALUE",
        ".engine.gpuMemoryUtilization",
        "1",
    ),
    Case(
        "BAD",
        "a model that no catalogue knows",
        {"services.qwen.model": {"id": "Qwen/Qwen2.5-7B-Instuct-AWQ"}},
        "error",
        "MODEL-UNKNOWN",
        ".model.id",
        "Qwen/Qwen2.5-7B-Instruct-AWQ",
    ),
    Case(
        "BAD", "an unknown GPU", {"nodes.lab.gpu": "rtx3060"}, "error", "GPU-UNKNOWN", "nodes.lab.gpu", "rtx-3060-12gb"
    ),
    Case(
        "BAD",
        "a release older than the tables",
        {"services.qwen.image.tag": "v0.6.3"},
        "error",
        "RELEASE-UNKNOWN",
        ".image.tag",
        "0.11.0",
        {"services.qwen.image.tag": "v0.11.0"},
    ),
    Case(
        "BAD",
        "a tag that moves",
        {"services.qwen.image": {"tag": "latest", "release": "0.31.0"}},
        "error",
        "PIN-TAG",
        ".image.tag",
        "v0.31.0",
        {"services.qwen.image": {"tag": "latest", "release": "0.31.0", "digest": "sha256:" + "0" * 64}},
    ),
    Case(
        "BAD",
        "overrides that contradict each other",
        {"services.qwen.overrides": {"startupSeconds": 900, "progressDeadlineSeconds": 300}},
        "error",
        "clocks-progress-deadline",
        ".overrides.progressDeadlineSeconds",
        "300 s",
        {"services.qwen.overrides": {"startupSeconds": 900, "progressDeadlineSeconds": 1500}},
    ),
    Case(
        "BAD",
        "settings that exclude each other",
        {f"{ENGINE}.maxNumBatchedTokens": 2, f"{ENGINE}.maxNumSeqs": 4},
        "error",
        "ARG-3",
        ".engine.maxNumBatchedTokens",
        "less than maxNumSeqs",
        {f"{ENGINE}.maxNumBatchedTokens": 2048, f"{ENGINE}.maxNumSeqs": 4},
    ),
    Case(
        "BAD",
        "a pool that there is not",
        {"services.qwen.pool": "lap"},
        "error",
        "CFG-POOL",
        ".pool",
        "lab",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def test_every_fault_of_a_file_is_said_at_once() -> None:
    faults: dict[str, Any] = {
        f"{ENGINE}.maxModelLenght": 2048,
        f"{ENGINE}.gpuMemoryUtilization": "0,8",
        "services.qwen.cache.size": "20GB",
        "nodes.lab.cpus": "twelve",
        "servces": {},
    }
    paths = {each.path for each in findings(faults)}
    assert paths == {f"vllm:{path}" for path in faults}, "one error for each, or the next run finds the next one"
    assert not errors({}), "the neighbour: the file without them"


def test_every_fault_of_a_plan_is_said_at_once() -> None:
    faults = {
        f"{ENGINE}.maxModelLen": 4_000_000,
        f"{ENGINE}.extraArgs": ["--port", "9000"],
        "services.qwen.resources.sharedMemory": "10Gi",
        "services.qwen.exposure.type": "NodePort",
        "nodes.lab.driver": "550.54",
    }
    rules = {each.rule for each in errors(faults)}
    assert {"MEM-1", "NAM-2", "MEM-5", "SEC-1", "CAP-3"} <= rules, f"all of them in one go, found {rules}"
    assert not errors({"nodes.lab.driver": "580.82"}), "the neighbour"


@pytest.mark.parametrize(
    ("text", "where"),
    [("config:\n  vllm:cluster: {a: [1\n", "line"), ("config:\n\tvllm:cluster: {}\n", "line"), ("", "config")],
    ids=["an open bracket", "a tab", "nothing"],
)
def test_yaml_that_does_not_parse_is_one_error_with_its_place(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "Pulumi.broken.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read(path)
    (finding,) = refused.value.findings
    assert where in finding.message, f"{finding.message!r} does not say where"
    assert read(STACKS / "Pulumi.lab-3060.yaml"), "the neighbour: a file that parses"
