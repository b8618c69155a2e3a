"""MON: series under another name, and monitors that select nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from components.monitoring import service_annotations, service_monitor_spec
from planner.alerts import rule_groups
from planner.metrics import metrics_of, remedy, series_in, unknown_series
from planner.releases import known_releases, release_at
from planner.spec.monitoring import MonitoringSpec, OperatorMonitoring
from tests.cases.case import Case
from tests.components.test_vllm_server import recorded
from tests.monitoring.targets import monitoring, target

OLD, NEW = "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"
SERVICE = "kubernetes:core/v1:Service"


def own_alert(series: str) -> dict[str, Any]:
    alert = {"alert": "Mine", "expr": f"{series} > 0.9", "summary": "full", "runbookUrl": "https://example.org"}
    return {"monitoring": {"mode": "operator", "labels": {"release": "p"}, "alerts": {"own": [alert]}}}


CASES = [
    Case(
        "MON-1",
        "an alert of one's own on a series that went",
        own_alert(OLD),
        "error",
        "MON-1",
        "monitoring.alerts.own",
        NEW,
        own_alert(NEW),
    ),
    Case(
        "MON-2",
        "an operator without the labels that it selects by",
        {"monitoring": {"mode": "operator"}},
        "error",
        "CFG-MISSING",
        "monitoring.labels",
        "is missing",
        {"monitoring": {"mode": "operator", "labels": {"release": "p"}}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def parsed(section: dict[str, Any]) -> Any:
    return TypeAdapter(MonitoringSpec).validate_json(json.dumps(section))


@pytest.mark.parametrize("version", known_releases())
def test_mon_1_every_rule_names_series_of_its_release(version: str) -> None:
    made = target(version)
    expressions = [rule["expr"] for group in rule_groups(made) for rule in group["rules"]]
    assert any(series_in(each) for each in expressions), "rules without a series of vLLM's would watch nothing"
    for expression in expressions:
        assert not unknown_series(made.metrics, expression), f"{expression} would be silent for ever at {version}"


def test_mon_1_a_name_that_went_is_known_with_its_successor() -> None:
    metrics = metrics_of(release_at("0.19.1"))
    assert unknown_series(metrics, f"{OLD} > 0.9") == (OLD,), "hidden at 0.11, gone at 0.12 (vllm#24245)"
    assert NEW in remedy(metrics, OLD), "the successor is the way out"
    assert not unknown_series(metrics, f"{NEW} > 0.9"), "the neighbour: the name of today"


def test_mon_2_the_monitor_selects_the_service_and_its_port() -> None:
    service = recorded().one(SERVICE).inputs
    spec = service_monitor_spec(target("0.31.0"))
    labels = service["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items(), "a Service without labels is no target"
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}, "a port is named, not numbered"
    assert spec["namespaceSelector"]["matchNames"], "a monitor sees its own namespace only, unless it says more"
    neighbour = {**labels, "app.kubernetes.io/instance": "other"}
    assert not spec["selector"]["matchLabels"].items() <= neighbour.items(), "the neighbour: another service's"


@pytest.mark.parametrize(
    "section",
    [{"mode": "operator"}, {"mode": "operator", "labels": {}}, {"mode": ["operator", "annotations"]}],
    ids=["no labels", "empty labels", "both modes"],
)
def test_mon_2_a_monitor_that_no_prometheus_selects_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parsed(section)
    neighbour = parsed({"mode": "operator", "labels": {"release": "prometheus"}})
    assert isinstance(neighbour, OperatorMonitoring), "the neighbour: the label of Prometheus' own selector"


def test_mon_2_annotations_name_the_containers_port_and_only_in_their_mode() -> None:
    spec = parsed({"mode": "annotations"})
    (container,) = recorded().one("kubernetes:apps/v1:Deployment").inputs["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert service_annotations(spec, 8000)["prometheus.io/port"] == str(int(port["containerPort"]))
    assert service_annotations(monitoring(), 8000) == {}, "the neighbour: with a monitor each target would come twice"
