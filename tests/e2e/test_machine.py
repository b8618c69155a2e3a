"""Whether the tests on a real node can run here: said in one line, before anything is started."""

from __future__ import annotations

import os
import subprocess

import pytest

from sim import tools, vllm_cpu
from sim.real_node import requirements
from tests.e2e.machine import SKIP, unavailable
from tests.engine.driver import ROOT


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that has everything; what it was asked to make."""
    made: list[str] = []
    monkeypatch.delenv(SKIP, raising=False)
    monkeypatch.setattr(requirements, "problem", lambda *_: None)
    monkeypatch.setattr(tools, "ensure", made.extend)
    monkeypatch.setattr(vllm_cpu, "image", lambda: made.append("image"))
    return made


def test_a_machine_that_has_everything_can_run_them(able: list[str]) -> None:
    assert unavailable(real_vllm=True) is None
    assert {"etcd", "pulumi", "kubelet", "image"} <= set(able), "tools and image are made before the time is taken"


def test_without_a_real_vllm_its_image_is_not_made(able: list[str]) -> None:
    assert unavailable(real_vllm=False) is None
    assert "kubelet" in able, "the node is needed all the same"
    assert "image" not in able, "it is 5 GB"


@pytest.mark.usefixtures("able")
def test_what_is_missing_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise tools.ToolError("debootstrap is needed")

    monkeypatch.setattr(vllm_cpu, "image", fail)
    assert unavailable(real_vllm=True) == "debootstrap is needed"


@pytest.mark.usefixtures("able")
def test_a_machine_that_cannot_have_a_node_is_not_asked_to_make_one(
    monkeypatch: pytest.MonkeyPatch, able: list[str]
) -> None:
    monkeypatch.setattr(requirements, "problem", lambda *_: "that needs Linux, as root")
    assert unavailable(real_vllm=True) == "that needs Linux, as root"
    assert able == [], "nothing was built in vain"


def test_the_command_says_why_and_starts_nothing() -> None:
    answer = subprocess.run(
        [ROOT / "scripts" / "e2e.sh", "all"],
        env={**os.environ, SKIP: "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1, "what was asked for did not run"
    assert answer.stderr == f"the tests on a real node cannot run here: {SKIP} is set\n", "one line"
    assert not answer.stdout
