"""`vllm-infra check` against real API answers, and what the commands that need a real server say where none runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.command_line import run
from tests.engine.conftest import NewStack
from tests.engine.driver import PATIENCE_SECONDS, Stack

pytestmark = pytest.mark.engine


def checked(stack: Stack) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the lines of a check by question."""
    result = run(stack, "check", "--json")
    return result.code, {line["question"]: line for line in json.loads(result.out)["lines"]}


def failures(lines: dict[str, dict[str, Any]]) -> list[str]:
    return [question for question, line in lines.items() if line["status"] == "fail"]


@pytest.fixture(scope="module")
def deployed(shared_stack: NewStack) -> Stack:
    stack = shared_stack("check-up")
    stack.set_secret("apiKey", "the-key-that-nobody-may-see")
    stack.up()
    return stack


def take_node_away(stack: Stack) -> None:
    stack.cluster.kubectl("annotate", "node", stack.node, "pulumi-vllm.test/not-ready=true")
    patience = f"--timeout={PATIENCE_SECONDS}s"
    stack.cluster.kubectl("wait", f"node/{stack.node}", "--for=condition=Ready=Unknown", patience)


def take_card_away(stack: Stack) -> None:
    stack.give_gpus(0)


def let_somebody_have_the_card(stack: Stack) -> None:
    container = {"name": "train", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": stack.node, "containers": [container]}
    metadata = {"name": f"train-{stack.name}", "namespace": "default"}
    stack.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.mark.parametrize(
    ("name", "spoil", "questions", "words"),
    [
        ("check-node", take_node_away, ["lab nodes", "lab free GPUs"], "gpu-check-node NotReady"),
        ("check-card", take_card_away, ["lab GPUs", "lab free GPUs"], "gpu-check-card 0 nvidia.com/gpu"),
        ("check-pod", let_somebody_have_the_card, ["lab free GPUs"], "default/train-check-pod (1 on gpu-check-pod)"),
    ],
    ids=["a node is down", "a card is missing", "somebody else's pod holds the card"],
)
def test_what_up_would_wait_for_is_named(
    new_stack: NewStack, name: str, spoil: Callable[[Stack], None], questions: list[str], words: str
) -> None:
    stack = new_stack(name)
    code, lines = checked(stack)
    assert (code, failures(lines)) == (0, []), f"nothing stands in the way yet: {lines}"
    before = stack.versions()
    try:
        spoil(stack)
        code, lines = checked(stack)
    finally:
        stack.cluster.kubectl("delete", "pod", f"train-{name}", "-n", "default", "--ignore-not-found", "--wait=false")
    assert code == 1, "CI stops here, before it waits for a deadline"
    assert failures(lines) == questions, lines
    assert words in lines[questions[0]]["found"], lines[questions[0]]
    assert stack.versions() == before, "a check makes nothing, not even the namespace"


def test_a_deployed_stack_is_as_it_should_be(deployed: Stack) -> None:
    code, lines = checked(deployed)
    assert (code, failures(lines)) == (0, []), lines
    assert lines["lab free GPUs"]["holders"] == [], "its own server holds its card"
    assert lines["objects"]["found"] == "14 of 14 are there", lines["objects"]
    assert "Bound to" in lines["qwen cache"]["found"], lines["qwen cache"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("smoke",), "vllm-infra diagnose --stack check-up"),
        (("snapshot", "--seconds", "0.1"), "cannot be read through a port-forward"),
    ],
    ids=["smoke", "snapshot"],
)
def test_a_simulated_server_has_no_container_to_ask(deployed: Stack, command: tuple[str, ...], words: str) -> None:
    result = run(deployed, *command)
    assert result.code == 1, "nobody answered"
    assert words in result.output, result.output
    assert "port-forward" in result.output, "the API server was asked for one, and the reason is said"


def test_a_ready_address_is_seen_before_the_server_is_asked(deployed: Stack) -> None:
    result = run(deployed, "smoke", "--json")
    first, second = json.loads(result.out)["lines"]
    assert (first["question"], first["status"], first["ready"]) == ("qwen endpoints", "ok", 1), first
    assert (second["question"], second["status"]) == ("qwen health", "fail"), "the first question without an answer"


def test_a_start_without_a_log_is_measured_as_far_as_it_goes(deployed: Stack) -> None:
    result = run(deployed, "cold-start", "--json")
    assert result.code == 0, result.output
    (start,) = json.loads(result.out)["starts"]
    assert start, "the pod's own times are there"
