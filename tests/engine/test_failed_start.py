"""A start that exceeds its budget: `up` fails at the deadline and says why."""

from __future__ import annotations

import pytest

from sim.stages import NEVER_READY, annotate_pods
from tests.engine.conftest import NewStack

pytestmark = pytest.mark.engine

BUDGET = {
    "services.qwen.model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"},
    "services.qwen.stop": {"preStopSeconds": 0, "drainSeconds": 0},
    "nodes.lab.rates.diskMbPerSecond": 5000.0,
    "services.qwen.overrides": {"startupSeconds": 150, "progressDeadlineSeconds": 180, "updateTimeoutSeconds": 245},
}
"""The smallest model: its budget is the shortest that the preflight accepts."""


def test_a_start_that_exceeds_its_budget_is_explained_and_can_be_mended(new_stack: NewStack) -> None:
    stack = new_stack("late")
    stage = annotate_pods("late", stack.name, {NEVER_READY: "true"}, {"app.kubernetes.io/component": "server"})
    broken = {"key": ".spec.containers.[].image", "operator": "In", "values": ["vllm/vllm-openai:v0.31.0"]}
    stage["spec"]["selector"]["matchExpressions"].append(broken)
    stack.cluster.apply(stage)

    stack.write({**BUDGET, "services.qwen.image.tag": "v0.31.0"})
    answer = stack.up(fails=True)
    pod = stack.server_pod()["metadata"]["name"]
    assert answer.position("failed", "Deployment") >= 0, "the server is what failed"
    # The language host prints a traceback of its own when the engine stops it; none of it may be ours.
    assert "/infra/" not in answer.output, f"the explanation itself must not fail:\n{answer.output}"
    assert pod in answer.output, f"which pod:\n{answer.output}"
    assert "the deadline passed while the server was still loading" in answer.output, f"the reason:\n{answer.output}"
    for event in ("Scheduled", "Started"):
        assert event in answer.output, f"the last events:\n{answer.output}"
    assert "overrides.startupSeconds" in answer.output, f"which field mends it:\n{answer.output}"
    assert not stack.find("service"), "no address leads to a server that is not there"

    stack.write({**BUDGET, "services.qwen.image.tag": "v0.33.0"})
    stack.up()
    assert stack.server_pod()["metadata"]["name"] != pod, "the fixed stack file is a new roll-out"
    assert stack.find("service"), "and now there is an address"
    stack.preview("--expect-no-changes")
