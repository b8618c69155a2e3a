"""`up` killed in the middle: `recover`, then `up`, and nothing is lost or there twice."""

from __future__ import annotations

import random
import signal

import pytest

from infra.live import connect
from infra.recovery import KubernetesObject, read_object, recover
from planner.spec import ClusterSpec
from tests.engine.conftest import NewStack
from tests.engine.driver import CONTEXT, ROLES, Object, Stack

pytestmark = pytest.mark.engine

SEED = 3060
STEPS = 31
"""Starts and ends of resources in the event log of a first `up` until its Service is made."""
MONITORS = 36
"""The same, until monitoring is being made, which comes last."""
POINTS = [*sorted(random.Random(SEED).sample(range(2, STEPS + 1), 8)), MONITORS]  # noqa: S311 - the same each time


def _recover(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`recover` as the command line does it, on a stack file that is not in the repository."""
    for name, value in stack.environment().items():
        monkeypatch.setenv(name, value)
    cluster = ClusterSpec(**stack.sections()["cluster"], kubeconfig=str(stack.cluster.kubeconfig))
    api = connect(cluster)

    def look_up(place: KubernetesObject) -> Object | None:
        return read_object(api, place, CONTEXT)

    lines: list[str] = []
    recover(stack.name, stack.folder, lines.append, look_up)
    return lines


def _is_whole(stack: Stack, before: dict[str, str]) -> None:
    """No pending operation, an empty preview, one object of each role, and what was there is still there."""
    assert not stack.export().get("pending_operations"), "the engine would stop the next `up` for each of them"
    stack.preview("--expect-no-changes")
    for kind, count in ROLES.items():
        names = [one["metadata"]["name"] for one in stack.find(kind, f"pulumi-vllm/stack={stack.name}")]
        assert len(names) == count, f"{kind}: found {names}"
    for entry in ("key", "token"):
        assert len(stack.secrets(entry)) == 1, f"one Secret with {entry!r}: an autonamed one is easily left behind"
    now = stack.kept()
    assert {name: now.get(name) for name in before} == before, "namespace, claim and volume that were there"
    stack.server_pod()


@pytest.mark.parametrize("step", POINTS)
def test_a_killed_first_up_is_finished(new_stack: NewStack, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    stack = new_stack(f"killed-{step}")
    stack.set_secret("apiKey", "sk-one")
    stack.set_secret("hfToken", "hf_one")
    code = stack.killed_up(step, plugins_too=step % 2 == 0)
    assert code == -signal.SIGKILL, "it ended before the signal: there is nothing to recover from"
    before = stack.kept()
    _recover(stack, monkeypatch)
    stack.up()
    _is_whole(stack, before)


@pytest.mark.parametrize("step", sorted(random.Random(SEED + 1).sample(range(4, 22), 3)))  # noqa: S311
def test_a_killed_change_is_finished(new_stack: NewStack, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    stack = new_stack(f"changed-{step}")
    stack.write({"services.qwen.image.tag": "v0.31.0"})
    stack.set_secret("apiKey", "sk-one")
    stack.set_secret("hfToken", "hf_one")
    stack.up()
    before = stack.kept()
    stack.write({"services.qwen.image.tag": "v0.33.0"})
    stack.set_secret("apiKey", "sk-two")
    stack.set_secret("hfToken", "hf_two")
    code = stack.killed_up(step, plugins_too=step % 2 == 0)
    assert code == -signal.SIGKILL, "it ended before the signal: there is nothing to recover from"
    _recover(stack, monkeypatch)
    stack.up()
    _is_whole(stack, before)
    assert stack.server_pod()["spec"]["containers"][0]["image"].endswith(":v0.33.0"), "the change has arrived"


def test_recover_leaves_a_sound_stack_alone(new_stack: NewStack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = new_stack("sound")
    stack.up()
    before = stack.versions()
    assert _recover(stack, monkeypatch) == [], "there is nothing to say"
    assert stack.versions() == before, "nothing was touched"
    stack.preview("--expect-no-changes")
