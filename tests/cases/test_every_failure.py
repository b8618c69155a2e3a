"""Each public failure has something that is refused or rendered, and a neighbour that passes."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

from tests.cases.case import Case

FAILURES = {
    "ARG-1": "a Service named like vLLM sets VLLM_PORT",
    "ARG-3": "a flag that the chosen release does not have",
    "ARG-4": "several values or a command line in one argument",
    "ARG-5": "JSON with shell quotes, escapes or variables",
    "NAM-2": "raw flags that override what is owned elsewhere",
    "MEM-1": "a context that is longer than the KV cache",
    "MEM-4": "parallel sizes that match neither heads nor GPUs",
    "MEM-5": "host memory, and /dev/shm inside it",
    "CAP-1": "a data type or quantisation that the card does not have",
    "CAP-3": "a CUDA family that the driver is too old for",
    "CAP-5": "an image of another architecture than the nodes",
    "SCH-1": "a rolling update without a spare GPU",
    "SCH-2": "a taint that something does not tolerate",
    "SCH-3": "a GPU that is allocated and not visible",
    "SCH-6": "DRA objects in a version that is not served",
    "EKS-1": "a node group that never gets ready",
    "EKS-2": "a volume in one zone, a node in another",
    "STO-1": "a ReadWriteOnce cache with more than one pod",
    "STO-2": "a disk that is too small",
    "STO-4": "a cache or home that cannot be written",
    "STO-5": "several engines that write one compile cache",
    "HF-1": "a gated model without a token",
    "HF-3": "offline without the whole model",
    "LIFE-1": "liveness kills a start",
    "LIFE-3": "requests that are cut at a stop",
    "NET-1": "a small /dev/shm with tensor parallelism",
    "NET-3": "prefill and decode that do not find each other",
    "SEC-1": "an API key that does not cover every route",
    "SEC-3": "a rotated Secret without a restart",
    "MON-1": "a metric that was renamed",
    "MON-2": "a ServiceMonitor that selects nothing",
    "HPA-1": "a metric that the autoscaler cannot use",
    "HPA-3": "two owners of the number of replicas",
    "LORA-1": "an adapter above the rank",
    "PUL-1": "three clocks in the wrong order",
    "PUL-2": "waiting for a claim that waits for its pod",
}
MODULES = sorted(Path(__file__).parent.glob("test_*.py"))


@cache
def tables() -> list[Case]:
    """Every case in a table of these modules."""
    found: list[Case] = []
    for path in MODULES:
        if path.name == Path(__file__).name:
            continue
        spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += getattr(module, "CASES", [])
    return found


@cache
def named_tests() -> dict[str, str]:
    """Every test function of these modules with its source."""
    return {
        node.name: ast.unparse(node)
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_there_are_thirty_six_of_them() -> None:
    assert len(FAILURES) == 36, "as many as were collected"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_has_a_case_and_a_neighbour(failure: str) -> None:
    of_table = [case for case in tables() if case.failure == failure]
    prefix = f"test_{failure.lower().replace('-', '_')}_"
    by_name = {name: source for name, source in named_tests().items() if name.startswith(prefix)}
    assert of_table or by_name, f"{failure}, {FAILURES[failure]}: nothing is refused and nothing is rendered"
    # A case of a table always has a neighbour; a test of rendered objects says which one is it.
    assert of_table or any("neighbour" in source for source in by_name.values()), f"{failure} lacks its neighbour"


def test_no_case_is_of_a_failure_that_there_is_not() -> None:
    others = {case.failure for case in tables()} - FAILURES.keys() - {"BAD"}
    assert not others, f"{others}: a misspelt id would be found by nobody"
