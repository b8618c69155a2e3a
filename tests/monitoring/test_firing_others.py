"""Alerts on series of other exporters, and those on whether a server answers at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from planner.alerts import alerts
from planner.metrics import series_in
from planner.releases import known_releases
from tests.monitoring.exposition import Stage, constant, expectation, replica
from tests.monitoring.targets import LABELS, NAMESPACE, SERVICE, target

Check = Callable[..., None]
POD = {"namespace": NAMESPACE, "pod": "qwen-0-6f-abc"}
CONTAINER = {**POD, "container": "vllm"}
OTHER = {**CONTAINER, "pod": "another-0-6f-abc"}
each_release = pytest.mark.parametrize("version", known_releases())


def held(
    check: Check,
    name: str,
    field: str,
    series: Sequence[dict[str, str]],
    expected: Sequence[tuple[float, bool]],
    **more: Any,
) -> None:
    """Evaluate one alert; ``expected``: minutes → whether it is firing, once, with the service's labels."""
    replicas = more.pop("replicas", 1)
    made = target("0.33.0", {field: {"enabled": True, **more}}, replicas=replicas, startup_window_seconds=180)
    rules = [rule for rule in alerts(made) if rule["alert"] == name]
    firing = [{"namespace": NAMESPACE, "service": SERVICE, "severity": rules[0]["labels"]["severity"]}]
    held = [expectation(name, minutes, firing if fires else []) for minutes, fires in expected]
    check([{"name": "alerts", "rules": rules}], series, held)


def up(values: str, pod: str = POD["pod"], service: str = SERVICE) -> dict[str, str]:
    return constant("up", {"namespace": NAMESPACE, "service": service, "pod": pod}, values)


def test_a_server_that_does_not_answer_is_down(check: Check) -> None:
    moments = [(12, False), (16, True), (36, False)]
    held(check, "VLLMServerDown", "serverDown", [up("1x20 0x40 1x60")], moments)


def test_a_start_inside_its_window_is_no_outage(check: Check) -> None:
    held(check, "VLLMServerDown", "serverDown", [up("1x20 0x8 1x60")], [(12, False), (14.5, False), (20, False)])


def test_a_service_that_is_not_scraped_at_all_is_down(check: Check) -> None:
    held(check, "VLLMServerDown", "serverDown", [up("1x90", service="another")], [(2, False), (6, True)])


def test_a_replica_that_disappears_is_one_page_that_says_how_many_answer(check: Check) -> None:
    pair = [up("1x60"), up("1x20 stale _x40", pod="qwen-1-6f-abc")]
    held(check, "VLLMServerDown", "serverDown", pair, [(9, False), (16, True)], replicas=2)
    held(
        check, "VLLMServerDown", "serverDown", [up("1x60"), up("1x60", pod="qwen-1-6f-abc")], [(16, False)], replicas=2
    )


@each_release
def test_series_that_alerts_read_and_that_are_gone_are_missed(check: Check, version: str) -> None:
    made = target(version, {"metricsMissing": {"enabled": True}})
    rules = [rule for rule in alerts(made) if rule["alert"] == "VLLMMetricsMissing"]
    firing = {"namespace": NAMESPACE, "service": SERVICE, "severity": "warning"}
    series = replica(
        made.metrics, [Stage(minutes=30, requests=1)], {**LABELS, "pod": POD["pod"]}, series_in(rules[0]["expr"])
    )
    whole = [expectation("VLLMMetricsMissing", 20, [])]
    check([{"name": "alerts", "rules": rules}], series, whole)
    for lost in ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total"):
        rest = [line for line in series if not line["series"].startswith(lost)]
        check([{"name": "alerts", "rules": rules}], rest, [expectation("VLLMMetricsMissing", 20, [firing])])


def test_restarts_are_counted_by_the_hour(check: Check) -> None:
    name = "kube_pod_container_status_restarts_total"
    three = [constant(name, CONTAINER, "0x20 1x10 2x10 3x200"), constant(name, OTHER, "0+1x240")]
    held(check, "VLLMRestarting", "restarting", three, [(14, False), (23, True), (100, False)])
    two = [constant(name, CONTAINER, "0x20 1x10 2x200"), constant(name, OTHER, "0+1x240")]
    held(check, "VLLMRestarting", "restarting", two, [(14, False), (23, False), (60, False)])


def test_only_a_kill_for_memory_is_out_of_memory(check: Check) -> None:
    restarts = constant("kube_pod_container_status_restarts_total", CONTAINER, "0x20 1x100")

    def reason(text: str) -> dict[str, str]:
        labels = {**CONTAINER, "reason": text}
        return constant("kube_pod_container_status_last_terminated_reason", labels, "_x20 1x100")

    moments = [(8, False), (13, True), (30, False)]
    held(check, "VLLMOutOfMemory", "outOfMemory", [restarts, reason("OOMKilled")], moments)
    held(check, "VLLMOutOfMemory", "outOfMemory", [restarts, reason("Error")], [(13, False), (30, False)])


@pytest.mark.parametrize(("seconds", "fires"), [(59, False), (61, True)])
def test_a_start_that_compiled_is_told_for_an_hour(check: Check, seconds: int, fires: bool) -> None:
    series = [
        constant("kube_pod_container_state_started", CONTAINER, "_x10 300x300"),
        constant("kube_pod_status_ready_time", POD, f"_x14 {300 + seconds}x300"),
    ]
    moments = [(5, False), (10, fires), (60, fires), (70, False)]
    held(check, "VLLMCompileCacheMissed", "compileCacheMissed", series, moments, seconds=60)


@pytest.mark.parametrize(("used", "fires"), [(84, False), (86, True)])
def test_a_claim_is_nearly_full(check: Check, used: int, fires: bool) -> None:
    def claim(name: str, values: str, of: str = "vllm-model-0") -> dict[str, str]:
        return constant(
            f"kubelet_volume_stats_{name}_bytes", {"namespace": NAMESPACE, "persistentvolumeclaim": of}, values
        )

    series = [
        claim("used", f"50x20 {used}x60 50x40"),
        claim("capacity", "100x120"),
        claim("used", "99x120", of="another-0"),
        claim("capacity", "100x120", of="another-0"),
    ]
    moments = [(9, False), (30, fires), (45, False)]
    held(check, "VLLMClaimNearlyFull", "claimNearlyFull", series, moments)
