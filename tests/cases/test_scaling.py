"""HPA: an autoscaler that cannot use its metric, or that fights with Pulumi over the number of replicas.

There is no autoscaler yet: what people would write is refused with the reason, and the number is Pulumi's alone.
"""

from __future__ import annotations

import pytest

from infra.preflight import check_plan
from planner.not_offered import NOT_OFFERED
from planner.plan import plan_services
from planner.spec import ServiceSpec
from planner.spec.engine import EngineSpec
from tests.cases.case import Case, errors, findings
from tests.cases.rendered import one, render
from tests.stack_files import config

CASES = [
    Case(
        "HPA-1",
        f"{key}: a metric to scale by",
        {f"services.qwen.{key}": {"metric": "vllm:generation_tokens_total", "max": 4}},
        "error",
        "CFG-KEY",
        f".{key}",
        "not offered: autoscaling",
    )
    for key in ("autoscale", "autoscaling", "hpa", "keda")
] + [
    Case(
        "HPA-3",
        "more replicas than there are cards",
        {"services.qwen.replicas": 4},
        "error",
        "SCH-GPUS",
        "nodes.lab",
        "declares 1",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def test_hpa_3_the_number_of_replicas_has_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = render(monkeypatch)
    (deployment,) = [item for item in recording.registrations if item.type.endswith(":Deployment")]
    assert deployment.inputs["spec"]["replicas"] == 1, "it is set, and nothing else sets it"
    assert not [path for path in deployment.request.ignoreChanges if "replicas" in path], "so it is not ignored either"
    kinds = {item.type.split(":")[-1] for item in recording.registrations}
    assert not kinds & {"HorizontalPodAutoscaler", "ScaledObject"}, "an autoscaler would fight over it"
    assert one(recording, "Deployment"), "the neighbour: the lab is deployed"


@pytest.mark.parametrize("key", sorted(NOT_OFFERED))
def test_what_is_not_offered_is_refused_with_the_reason(key: str) -> None:
    (refused,) = findings({f"services.qwen.{key}": {}})
    assert (refused.rule, refused.level) == ("CFG-KEY", "error"), "a key without a component behind it"
    assert NOT_OFFERED[key].what in refused.message, "why it is not there"
    assert refused.remedy == NOT_OFFERED[key].instead, "and what to do instead"


@pytest.mark.parametrize("key", sorted(NOT_OFFERED))
def test_what_a_stack_file_takes_is_not_called_missing(key: str) -> None:
    for spec in (ServiceSpec, EngineSpec):
        known = {field.alias for field in spec.model_fields.values()}
        assert key not in known, f"{key} is a field of {spec.__name__}: take it out of NOT_OFFERED and test the field"


def test_a_key_that_is_only_misspelt_is_still_offered_its_neighbour() -> None:
    (refused,) = findings({"services.qwen.replica": 1})
    assert "replicas" in refused.remedy, "nearest name, as for every other key"
    stack = config()
    plans, _ = plan_services(stack.nodes, stack.services)
    assert not [each for each in check_plan(stack, frozenset(), plans) if each.level == "error"]
    assert not errors({"services.qwen.replicas": 1}), "and rightly spelt it passes"
