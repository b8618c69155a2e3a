"""What the dashboard's own queries answer: alerts by name, replicas by their short name, nothing where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.alerts import rule_groups
from planner.releases import known_releases
from tests.monitoring.exposition import Stage, constant, replica
from tests.monitoring.targets import LABELS, MODEL, NAMESPACE, SERVICE, target

pytest.importorskip("grafana_foundation_sdk", reason="the library that makes dashboards needs Python 3.11")

from components.dashboard import panels_now, panels_over_time

Check = Callable[..., None]
WHERE = f'namespace="{NAMESPACE}", service="{SERVICE}"'
each_release = pytest.mark.parametrize("version", known_releases())


def asked(version: str, title: str, replicas: int = 1) -> str:
    made = target(version, replicas=replicas)
    (panel,) = [panel for panel in (*panels_now(made), *panels_over_time(made)) if panel.title == title]
    return panel.queries[0][1]


def answers(expression: str, minutes: float, **values: float) -> dict[str, Any]:
    """That an expression answers exactly these: labels → value."""
    samples = [{"labels": labels, "value": value} for labels, value in values.items()]
    return {"expr": expression, "eval_time": f"{minutes * 60:.0f}s", "exp_samples": samples}


def pod(name: str) -> dict[str, str]:
    return {**LABELS, "pod": name}


@each_release
def test_firing_alerts_are_named(check: Check, version: str) -> None:
    made = target(version)
    series = replica(made.metrics, [Stage(minutes=30, requests=2, running=3, waiting=40)], pod("qwen-0-6f-abc"))
    named = answers(asked(version, "Alerts firing"), 20, **{'{alertname="VLLMQueueBacklog"}': 1})
    check(rule_groups(made), series, [named])


@each_release
def test_none_is_said_when_nothing_fires(check: Check, version: str) -> None:
    made = target(version)
    series = replica(made.metrics, [Stage(minutes=30, requests=2, running=3)], pod("qwen-0-6f-abc"))
    check(rule_groups(made), series, [answers(asked(version, "Alerts firing"), 20, **{'{alertname="none"}': 0})])


def test_all_is_well_is_not_said_where_no_rule_is_evaluated(check: Check) -> None:
    """Without its rules nothing can fire, and a green panel would be a lie."""
    made = target("0.33.0")
    series = replica(made.metrics, [Stage(minutes=30, requests=2, waiting=40)], pod("qwen-0-6f-abc"))
    check([], series, [answers(asked("0.33.0", "Alerts firing"), 20)])


def test_no_target_at_all_is_no_replica(check: Check) -> None:
    up = asked("0.33.0", "Replicas up, of 1")
    check(rule_groups(target("0.33.0")), [], [answers(up, 20, **{"{}": 0})])
    one = constant("up", pod("qwen-0-6f-abc"), "1x60")
    check(rule_groups(target("0.33.0")), [one], [answers(up, 20, **{"{}": 1})])


def test_an_idle_service_has_no_share_in_time(check: Check) -> None:
    """0/0 would be shown as NaN on a red ground."""
    made, share = target("0.33.0"), asked("0.33.0", "First token in time")
    labels = f'{{{WHERE}, model_name="{MODEL}"}}'
    for requests, expected in ((0.0, {}), (2.0, {labels: 1.0})):
        series = replica(made.metrics, [Stage(minutes=30, requests=requests)], pod("qwen-0-6f-abc"))
        check(rule_groups(made), series, [answers(share, 20, **expected)])


@each_release
def test_a_replica_keeps_its_name_when_its_pod_is_another(check: Check, version: str) -> None:
    made = target(version, replicas=2)
    before, after = [Stage(15, waiting=2), Stage(15, gone=True)], [Stage(15, gone=True), Stage(15, waiting=5)]
    series = [
        *replica(made.metrics, before, pod("qwen-0-6f7d-abcde")),
        *replica(made.metrics, after, pod("qwen-0-5b9c-fghij")),
        *replica(made.metrics, [Stage(30, waiting=1)], pod("qwen-1-6f7d-klmno")),
    ]
    waiting = asked(version, "Waiting requests by replica", replicas=2)

    def each(first: float) -> dict[str, float]:
        by_replica = {"qwen-0": first, "qwen-1": 1.0}
        return {f'{{{WHERE}, model_name="{MODEL}", replica="{name}"}}': value for name, value in by_replica.items()}

    check(rule_groups(made), series, [answers(waiting, 10, **each(2)), answers(waiting, 25, **each(5))])
