"""What the kubelet does with the probes: a slow start survives, and only because of the startup probe."""

from __future__ import annotations

import copy
import math
import time

import pytest

from planner.clocks import Clocks
from planner.plan import plan_services
from tests.e2e.conftest import NewNodeStack
from tests.e2e.driver import NodeStack, container_status, stand_in
from tests.e2e.ledger import Prove
from tests.engine.driver import Object
from tests.stack_files import config

pytestmark = pytest.mark.e2e

VARIANT = "pulumi-vllm.test/variant"


def _clocks(changes: Object) -> Clocks:
    found = config("demo-cpu", changes)
    plans, _ = plan_services(found.nodes, found.watched_services)
    return plans["qwen"].clocks


def test_a_start_slower_than_liveness_allows_survives(new_stack: NewNodeStack, prove: Prove) -> None:
    patience = _clocks(stand_in()).liveness_window_seconds
    start = patience + 20
    stack = new_stack("slow-start")
    stack.write(stand_in(READY_AFTER=f"{start}s"))
    stack.up()
    status = stack.server_status()
    assert status["ready"], "the start ended, and the server counts as ready"
    assert status["restartCount"] == 0, f"liveness allows {patience} s, the start took {start} s: nothing killed it"
    prove(
        "A start slower than liveness allows survives: until the engine is up only the startup probe asks",
        f"stand-in that listens after {start} s; liveness allows {patience} s",
        f"ready after {start} s, 0 restarts",
    )


VARIANTS = {"obeys-term": ({}, 0), "ignores-term": ({"IGNORE_TERM": "1"}, 137)}
"""Name → the stand-in's variables, and the exit code of a kill: its own, or 128 + SIGKILL (after the grace period)."""


def test_without_the_startup_probe_the_kubelet_kills_the_start_again_and_again(
    new_stack: NewNodeStack, prove: Prove
) -> None:
    stack = new_stack("no-probe")
    stack.write(stand_in())
    stack.up()
    start = _clocks(stand_in()).liveness_window_seconds + 60
    for name, (variables, _) in VARIANTS.items():
        _start_variant(stack, name, {**variables, "READY_AFTER": f"{start}s"})
    for name, (_, exit_code) in VARIANTS.items():
        pod = stack.eventually(lambda name=name: _restarted(stack, name, 2), f"{name}: killed a second time")
        status = container_status(pod)
        killed = [message for reason, message in stack.events(pod["metadata"]["name"]) if reason == "Killing"]
        assert any("failed liveness probe" in message for message in killed), f"the kubelet says why: {killed}"
        assert status["lastState"]["terminated"]["exitCode"] == exit_code, f"{name}: {status}"
        assert not status["ready"], f"{name}: it never gets ready"
        prove(
            "Without the startup probe liveness kills the same start for ever",
            f"the same pod without the probe, listening after {start} s ({name.replace('-', ' ')})",
            f"{status['restartCount']} restarts, exit code {exit_code}",
        )
    assert stack.server_status()["restartCount"] == 0, "the server with the probe, beside them, is not touched"


def _start_variant(stack: NodeStack, name: str, variables: dict[str, str]) -> None:
    """The stack's own server, started beside it without the startup probe; preStop takes 5 s of the grace period."""
    server = stack.find("deployment", "app.kubernetes.io/component=server")[0]
    template = copy.deepcopy(server["spec"]["template"])
    template["metadata"] = {"labels": {VARIANT: name}}
    template["spec"]["terminationGracePeriodSeconds"] = 8
    container = template["spec"]["containers"][0]
    del container["startupProbe"]
    container["env"] += [{"name": f"STAND_IN_{key}", "value": value} for key, value in variables.items()]
    stack.cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": stack.name},
            "spec": {"selector": {"matchLabels": {VARIANT: name}}, "template": template},
        }
    )


def _restarted(stack: NodeStack, name: str, times: int) -> Object | None:
    begun = [pod for pod in stack.find("pod", f"{VARIANT}={name}") if pod["status"].get("containerStatuses")]
    return next((pod for pod in begun if container_status(pod)["restartCount"] >= times), None)


def _with_the_shortest_budget() -> Object:
    """A start without a compile, weights that are read at once, and the least clocks that the preflight accepts."""
    changes = {
        "services.qwen.stop": {"preStopSeconds": 0, "drainSeconds": 0},
        "services.qwen.engine.enforceEager": True,
        "nodes.cpus.rates": {"registryMbPerSecond": 10000, "diskMbPerSecond": 5000},
    }
    overrides = {"startupSeconds": math.ceil(_clocks(stand_in(changes)).worst_start_seconds)}
    changes["services.qwen.overrides"] = overrides
    overrides["progressDeadlineSeconds"] = math.floor(_clocks(stand_in(changes)).progress_needed_seconds) + 1
    # The least that is accepted is a margin and a second more (planner/clocks.py: _update).
    overrides["updateTimeoutSeconds"] = overrides["progressDeadlineSeconds"] + 61
    return changes


def test_a_start_that_exceeds_its_budget_fails_up_with_the_reason(new_stack: NewNodeStack, prove: Prove) -> None:
    shortest = _with_the_shortest_budget()
    stack = new_stack("too-slow")
    stack.write(stand_in(shortest, READY_AFTER="3600s"))
    begun = time.monotonic()
    answer = stack.up(fails=True)
    took = time.monotonic() - begun
    clocks = _clocks(stand_in(shortest))
    reason = "the start took longer than the startup probe waits"
    assert reason in answer.output, (
        f"the reason, although the stand-in obeys SIGTERM and ends in peace:\n{answer.output}"
    )
    assert "failed startup probe, will be restarted" in answer.output, f"the events:\n{answer.output}"
    assert "Listening in 1h0m0s" in answer.output, f"the last log lines:\n{answer.output}"
    assert "services.qwen.overrides.startupSeconds" in answer.output, f"the field that mends it:\n{answer.output}"
    assert not stack.find("service"), "no address leads to a server that is not there"
    prove(
        "A start that exceeds its budget fails `pulumi up` at the deadline, with reason, events and log",
        f"stand-in that would listen after an hour; startup window {clocks.startup_window_seconds} s, "
        f"progressDeadlineSeconds {clocks.progress_deadline_seconds}, timeout {clocks.deployment_timeout_seconds} s",
        f"`up` failed after {took:.0f} s with the reason",
    )
