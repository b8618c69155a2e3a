"""Each alert on a real Prometheus engine: fires, stays silent just below, resolves, one for each service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from planner.alerts import ALERTS, alerts
from planner.metrics import series_in
from planner.releases import known_releases
from tests.monitoring.exposition import Stage, expectation, replica
from tests.monitoring.targets import LABELS, target

HEALTHY = Stage(minutes=20, requests=2, waiting=1, running=4, kv_usage=0.4)
IDLE = Stage(minutes=40)
QUIET = replace(HEALTHY, minutes=40, requests=0, waiting=0, running=0, kv_usage=0)


@dataclass(frozen=True)
class Fault:
    """How a service behaves when an alert must fire, and how when it must just not.

    ``minutes``: after so much time of the fault it must be firing.
    """

    alert: str
    severity: str
    bad: Mapping[str, Any]
    nearly: Mapping[str, Any]
    minutes: float
    alerts: Mapping[str, Any] = field(default_factory=dict)
    since: str = "0.11.0"


FAULTS = {
    "queue backlog": Fault("VLLMQueueBacklog", "warning", {"waiting": 11}, {"waiting": 10}, 4),
    "time to first token": Fault(
        "VLLMTTFTSLOBreach",
        "critical",
        {"first_token": {0.2: 0.94, 3.0: 0.06}},
        {"first_token": {0.2: 0.94, 2.4: 0.02, 3.0: 0.04}},
        12,
    ),
    "KV cache saturated": Fault("VLLMKVCacheSaturated", "warning", {"kv_usage": 0.96}, {"kv_usage": 0.95}, 7),
    "prefix cache collapse": Fault("VLLMPrefixCacheCollapse", "warning", {"hit_rate": 0.19}, {"hit_rate": 0.21}, 27),
    "stalled": Fault(
        "VLLMStalled",
        "critical",
        {"running": 3, "requests": 0},
        {"running": 3, "requests": 0.05},
        12,
        {"stalled": {"enabled": True}},
    ),
    "KV cache thrashing": Fault(
        "VLLMKVCacheThrashing",
        "warning",
        {"evictions": 5, "reuse_gap": {150.0: 1.0}, "idle_before_evict": {7.0: 1.0}},
        {"evictions": 5, "reuse_gap": {7.0: 1.0}, "idle_before_evict": {150.0: 1.0}},
        27,
        {"kvCacheThrashing": {"enabled": True}},
        since="0.19.1",
    ),
    "pre-emptions": Fault(
        "VLLMPreemptions",
        "warning",
        {"preemptions": 0.11},
        {"preemptions": 0.09},
        17,
        {"preemptions": {"enabled": True}},
    ),
    "inter-token latency": Fault(
        "VLLMInterTokenLatency",
        "warning",
        {"between_tokens": {0.02: 0.94, 0.12: 0.06}},
        {"between_tokens": {0.02: 0.94, 0.1: 0.02, 0.12: 0.04}},
        17,
        {"interTokenLatency": {"enabled": True}},
    ),
    "requests failing": Fault(
        "VLLMRequestsFailing",
        "warning",
        {"ended": {"stop": 0.94, "abort": 0.06}},
        {"ended": {"stop": 0.96, "abort": 0.04}},
        12,
        {"requestsFailing": {"enabled": True}},
    ),
    "requests given up": Fault(
        "VLLMRequestsFailing",
        "warning",
        {"ended": {"stop": 0.9}},
        {"ended": {"stop": 0.96}},
        22,
        {"requestsFailing": {"enabled": True}},
    ),
    "error budget": Fault(
        "VLLMTTFTBudgetBurn",
        "critical",
        {"first_token": {0.2: 0.2, 3.0: 0.8}},
        {"first_token": {0.2: 0.3, 3.0: 0.7}},
        70,
        {"ttftBudgetBurn": {"enabled": True}},
    ),
}
ON_EACH_RELEASE = [
    pytest.param(fault, version, id=f"{name} on {version}")
    for name, fault in FAULTS.items()
    for version in known_releases()
    if tuple(map(int, version.split("."))) >= tuple(map(int, fault.since.split(".")))
]
each_release = pytest.mark.parametrize(("fault", "version"), ON_EACH_RELEASE)
Check = Callable[..., None]


def firing(fault: Fault) -> list[dict[str, str]]:
    """The one alert that a fault of the service may raise."""
    return [{**LABELS, "severity": fault.severity}]


def run(
    check: Check,
    fault: Fault,
    version: str,
    replicas: Sequence[Sequence[Stage]],
    expected: Sequence[tuple[float, bool]],
) -> None:
    """Evaluate the rules on what ``replicas`` expose; ``expected``: minutes → whether the one alert is firing."""
    made = target(version, fault.alerts, replicas=len(replicas))
    rules = [rule for rule in alerts(made) if rule["alert"] == fault.alert]
    read = series_in(rules[0]["expr"])
    series = [
        line
        for number, stages in enumerate(replicas)
        for line in replica(made.metrics, stages, {**LABELS, "pod": f"qwen-{number}-6f-abc"}, read)
    ]
    held = [expectation(fault.alert, minutes, firing(fault) if fires else []) for minutes, fires in expected]
    check([{"name": "alerts", "rules": rules}], series, held)


def bad(fault: Fault, minutes: float | None = None, **more: Any) -> Stage:
    """A stretch with the fault, long enough for it to fire."""
    return replace(HEALTHY, minutes=minutes or fault.minutes + 8, **{**fault.bad, **more})


@each_release
def test_it_fires_and_resolves(check: Check, fault: Fault, version: str) -> None:
    stage = bad(fault)
    end = HEALTHY.minutes + stage.minutes
    recovery = replace(HEALTHY, minutes=70)
    stages = [HEALTHY, stage, recovery]
    run(check, fault, version, [stages], [(19, False), (HEALTHY.minutes + fault.minutes, True), (end + 65, False)])


@each_release
def test_it_is_silent_just_below(check: Check, fault: Fault, version: str) -> None:
    nearly = replace(HEALTHY, minutes=fault.minutes + 30, **fault.nearly)
    minutes = HEALTHY.minutes + fault.minutes
    run(check, fault, version, [[HEALTHY, nearly]], [(minutes, False), (minutes + 15, False), (minutes + 29, False)])


@each_release
def test_it_is_silent_without_traffic(check: Check, fault: Fault, version: str) -> None:
    """Neither a server that never had a request nor one that has none any more, whatever the last ones were like."""
    never = [replace(IDLE, minutes=90)]
    no_more = [bad(fault, minutes=2), replace(QUIET, minutes=90)]
    run(check, fault, version, [never], [(10, False), (40, False), (80, False)])
    run(check, fault, version, [no_more], [(minutes, False) for minutes in (20, 30, 50, 80)])


@each_release
def test_two_faulty_replicas_are_one_page(check: Check, fault: Fault, version: str) -> None:
    minutes = HEALTHY.minutes + fault.minutes
    run(check, fault, version, [[HEALTHY, bad(fault)]] * 2, [(minutes, True)])


@each_release
def test_it_survives_a_counter_reset(check: Check, fault: Fault, version: str) -> None:
    """A restart in the middle neither ends a fault nor makes one."""
    half = fault.minutes + 2
    faulty = [HEALTHY, bad(fault, half), bad(fault, half, restarted=True)]
    moments = [HEALTHY.minutes + half - 0.5, HEALTHY.minutes + half + 0.5, HEALTHY.minutes + half + 3]
    run(check, fault, version, [faulty], [(minutes, True) for minutes in moments])
    sound = [replace(HEALTHY, minutes=30), replace(HEALTHY, minutes=40, restarted=True)]
    run(check, fault, version, [sound], [(minutes, False) for minutes in (30, 31, 35, 45, 69)])


@each_release
def test_it_survives_a_replica_that_disappears(check: Check, fault: Fault, version: str) -> None:
    """The fault of the replica that stays goes on, and a sound one that goes makes no fault."""
    half = fault.minutes + 2
    gone = replace(HEALTHY, minutes=half, gone=True)
    moments = [HEALTHY.minutes + half - 0.5, HEALTHY.minutes + half + 0.5, HEALTHY.minutes + half + 3]
    stays = [HEALTHY, bad(fault, 2 * half)]
    goes = [HEALTHY, bad(fault, half), gone]
    run(check, fault, version, [stays, goes], [(minutes, True) for minutes in moments])
    sound = replace(HEALTHY, minutes=60)
    leaving = [replace(HEALTHY, minutes=30), replace(gone, minutes=30)]
    run(check, fault, version, [[sound], leaving], [(minutes, False) for minutes in (29, 31, 40, 59)])


def test_every_alert_on_vllms_own_series_is_tried() -> None:
    others = {"VLLMServerDown", "VLLMMetricsMissing", "VLLMRestarting", "VLLMOutOfMemory", "VLLMCompileCacheMissed"}
    tried = {fault.alert for fault in FAULTS.values()}
    assert tried == set(ALERTS.values()) - others - {"VLLMClaimNearlyFull"}, "test_firing_others.py has the rest"
