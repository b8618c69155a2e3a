"""What a stack's monitoring is refused for or warned about: each beside a neighbour that must pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from infra.live import LISTS, LiveCluster
from infra.preflight import check_live, check_plan
from planner.findings import Finding
from planner.plan import plan_services
from tests.stack_files import config

OPERATOR: dict[str, Any] = {"mode": "operator", "labels": {"release": "prometheus"}}
STANDALONE: dict[str, Any] = {
    "mode": "standalone",
    "prometheusImage": "registry.example/prometheus:v3.16.0",
    "alertmanagerImage": "registry.example/alertmanager:v0.35.0",
    "receiver": {"kind": "webhook"},
}
OWN = {"alert": "Full", "summary": "full", "runbookUrl": "https://wiki.example.com/full"}
STORAGE = {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi"}


def alerts(**values: Any) -> dict[str, Any]:
    return {"monitoring": {**OPERATOR, "alerts": values}}


def said(changes: Mapping[str, Any], rule: str, secrets: frozenset[str] = frozenset()) -> list[Finding]:
    stack = config(changes={"monitoring": OPERATOR, **changes})
    plans, unknown = plan_services(stack.nodes, stack.watched_services)
    assert not unknown, unknown
    return [finding for finding in check_plan(stack, secrets, plans) if finding.rule == rule]


THRASH = alerts(kvCacheThrashing={"enabled": True})
OLD = {"services.qwen.image.tag": "v0.11.0"}
NEW = {"services.qwen.image.tag": "v0.33.0"}
QUEUE = {**NEW, "services.qwen.engine.maxNumQueuedReqs": 10}
FOR_QWEN = {"services": {"qwen": {"kvCacheThrashing": {"enabled": True}}}}

# rule: level, path, words; what it speaks about; a neighbour that must pass
RULES: dict[str, tuple[str, str, str, str, dict[str, Any], dict[str, Any]]] = {
    "no monitoring": ("MON-NONE", "info", "mode", "no alert", {"monitoring": {"mode": "none"}}, {}),
    "an override of no service": (
        "MON-SERVICE",
        "error",
        "services.qwne",
        "no such service",
        {"monitoring": {**OPERATOR, "services": {"qwne": {}}}},
        {"monitoring": {**OPERATOR, "services": {"qwen": {}}}},
    ),
    "an own alert on a renamed series": (
        "MON-1",
        "error",
        "alerts.own",
        "vllm:gpu_cache_usage_perc",
        alerts(own=[{**OWN, "expr": "vllm:gpu_cache_usage_perc > 0.9"}]),
        alerts(own=[{**OWN, "expr": "vllm:kv_cache_usage_perc > 0.9"}]),
    ),
    "an own alert on a name of the source": (
        "MON-1",
        "error",
        "alerts.own",
        "vllm:prefix_cache_hits,",
        alerts(own=[{**OWN, "expr": "rate(vllm:prefix_cache_hits[5m]) < 1"}]),
        alerts(own=[{**OWN, "expr": "rate(vllm:prefix_cache_hits_total[5m]) < 1"}]),
    ),
    "thrashing on a release that cannot show it": (
        "MON-THRASH",
        "error",
        "alerts.kvCacheThrashing.enabled",
        "0.11.0",
        {**THRASH, **OLD},
        {**THRASH, "services.qwen.image.tag": "v0.19.1"},
    ),
    "thrashing for one service": (
        "MON-THRASH",
        "error",
        "services.qwen.kvCacheThrashing.enabled",
        "0.11.0",
        {"monitoring": {**OPERATOR, **FOR_QWEN}, **OLD},
        {"monitoring": {**OPERATOR, **FOR_QWEN}},
    ),
    "thrashing and its series off": (
        "MON-THRASH",
        "error",
        "alerts.kvCacheThrashing.enabled",
        "kvCacheMetrics is false",
        {**THRASH, "services.qwen.engine.kvCacheMetrics": False},
        {**THRASH, "services.qwen.engine.kvCacheMetrics": True},
    ),
    "an objective between edges": (
        "MON-EDGE",
        "info",
        "alerts.ttftSloBreach.seconds",
        "counts requests above 2.5 s",
        {},
        alerts(ttftSloBreach={"seconds": 2.5}),
    ),
    "an objective beyond the edges": (
        "MON-EDGE",
        "error",
        "alerts.ttftSloBreach.seconds",
        "beyond the last bucket",
        alerts(ttftSloBreach={"seconds": 3000}),
        alerts(ttftSloBreach={"seconds": 2560}),
    ),
    "a queue that cannot grow that long": (
        "MON-QUEUE",
        "warn",
        "alerts.queueBacklog.waitingPerReplica",
        "never fires",
        QUEUE,
        {**QUEUE, **alerts(queueBacklog={"waitingPerReplica": 9})},
    ),
    "a burn rate beyond all requests": (
        "MON-BURN",
        "error",
        "alerts.ttftBudgetBurn.burnRate",
        "never fires",
        alerts(ttftBudgetBurn={"enabled": True, "burnRate": 20.5}),
        alerts(ttftBudgetBurn={"enabled": True, "burnRate": 19.5}),
    ),
    "no prefix cache": (
        "MON-PREFIX",
        "info",
        "alerts.prefixCacheCollapse.enabled",
        "not made",
        {"services.qwen.engine.enablePrefixCaching": False},
        {"services.qwen.engine.enablePrefixCaching": True},
    ),
    "a folder is not measured": (
        "MON-CLAIM",
        "warn",
        "alerts.claimNearlyFull.enabled",
        "never fires",
        alerts(claimNearlyFull={"enabled": True}),
        {**alerts(claimNearlyFull={"enabled": True}), "services.qwen.cache": STORAGE},
    ),
    "a histogram that nobody has": (
        "MON-HISTOGRAM",
        "error",
        "keepHistograms",
        "no histogram",
        {"monitoring": {**OPERATOR, "keepHistograms": ["vllm:num_requests_running"]}},
        {"monitoring": {**OPERATOR, "keepHistograms": ["vllm:e2e_request_latency_seconds"]}},
    ),
}


@pytest.mark.parametrize(("rule", "level", "path", "words", "changes", "neighbour"), RULES.values(), ids=RULES.keys())
def test_a_rule_speaks_and_its_neighbour_passes(
    rule: str, level: str, path: str, words: str, changes: dict[str, Any], neighbour: dict[str, Any]
) -> None:
    (finding,) = said(changes, rule)
    assert (finding.level, finding.path) == (level, f"vllm:monitoring.{path}"), finding
    assert words in finding.message, finding
    assert finding.remedy, "a way out"
    assert not said(neighbour, rule), "the neighbour must pass"


def test_the_thrash_alert_renders_its_flag_and_nothing_else_is_changed() -> None:
    stack = config(changes={**THRASH})
    plans, _ = plan_services(stack.nodes, stack.watched_services)
    assert "--kv-cache-metrics" in plans["qwen"].argv
    plain = config(changes={"monitoring": OPERATOR})
    assert plain.watched_services == plain.services, "nobody asked"


def test_statistics_that_are_off_are_refused() -> None:
    off = {"services.qwen.engine.extraArgs": ["--disable-log-stats"]}
    (finding,) = said(off, "MON-OFF")
    assert finding.level == "error", finding
    assert not said({**off, "monitoring": {"mode": "none"}}, "MON-OFF"), "without monitoring nobody misses them"


def test_a_folder_of_counters_is_warned_about() -> None:
    (finding,) = said({"services.qwen.env": {"PROMETHEUS_MULTIPROC_DIR": "/models/prom"}}, "MON-MULTIPROC")
    assert finding.level == "warn"
    assert not said({"services.qwen.env": {"OTHER": "x"}}, "MON-MULTIPROC")


@pytest.mark.parametrize(("version", "offered"), [("v0.31.0", False), ("v0.33.0", True)])
def test_own_buckets_are_offered_where_the_release_has_them(version: str, offered: bool) -> None:
    (finding,) = said({"services.qwen.image.tag": version}, "MON-EDGE")
    assert ("--custom-histogram-buckets" in finding.remedy) is offered, finding.remedy


def test_the_number_of_series_is_told() -> None:
    (finding,) = said({}, "MON-SERIES")
    assert "of" in finding.message, finding
    assert "vllm: series are stored" in finding.message, finding
    (more,) = said({"monitoring": {**OPERATOR, "keepHistograms": ["vllm:e2e_request_latency_seconds"]}}, "MON-SERIES")
    assert more.message != finding.message, "each kept histogram costs"


@pytest.mark.parametrize(
    ("receiver", "key"),
    [
        ({"kind": "webhook"}, "alertWebhookUrl"),
        ({"kind": "slack", "channel": "#inference"}, "alertSlackUrl"),
    ],
)
def test_a_receiver_needs_its_secret(receiver: dict[str, str], key: str) -> None:
    changes = {"monitoring": {**STANDALONE, "receiver": receiver}}
    (finding,) = said(changes, "MON-RECEIVER")
    assert key in finding.remedy, finding
    assert not said(changes, "MON-RECEIVER", frozenset({key})), "with it the alerts reach somebody"


def test_a_service_cannot_be_called_like_a_part_of_standalone_monitoring() -> None:
    taken = {"monitoring": STANDALONE, "services.qwen.exposure.serviceName": "vllm-prometheus"}
    (finding,) = said(taken, "MON-NAMES")
    assert finding.level == "error"
    assert not said({**taken, "monitoring": OPERATOR}, "MON-NAMES"), "only there"


def live(
    monitoring: Mapping[str, Any], without: tuple[str, ...] = (), namespaces: tuple[str, ...] = ()
) -> list[Finding]:
    objects: dict[str, dict[str, Any]] = {kind: {} for kind in LISTS if kind not in without}
    objects["Namespace"] = {name: {"metadata": {"name": name}} for name in namespaces}
    stack = config(changes={"monitoring": monitoring})
    found = check_live(stack, "lab-3060", LiveCluster("v1.37.0", objects))
    return [finding for finding in found if finding.rule.startswith("MON-")]


def test_a_cluster_without_the_operator_is_warned_about_and_nothing_more() -> None:
    kinds = ("ServiceMonitor", "PrometheusRule")
    (finding,) = live(OPERATOR, without=kinds, namespaces=("monitoring",))
    assert (finding.rule, finding.level) == ("MON-CRDS", "warn"), "the servers are deployed all the same"
    assert "helm install" in finding.remedy, "how to get them"
    assert not live(OPERATOR, namespaces=("monitoring",)), "with them nothing is said"
    assert not live({"mode": "none"}, without=kinds), "nor when nobody wants them"


def test_a_namespace_of_prometheus_that_is_not_there_is_told() -> None:
    (finding,) = live(OPERATOR)
    assert finding.path == "vllm:monitoring.prometheusNamespace", finding
    assert not live({**OPERATOR, "prometheusNamespace": "observability"}, namespaces=("observability",))


def test_a_dashboard_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not said({"monitoring": OPERATOR}, "MON-PYTHON"), "it is installed here"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (finding,) = said({"monitoring": OPERATOR}, "MON-PYTHON")
    assert "dashboard: false" in finding.remedy, "the way out on an older Python"
    assert not said({"monitoring": {**OPERATOR, "dashboard": False}}, "MON-PYTHON"), "nothing is missed"
