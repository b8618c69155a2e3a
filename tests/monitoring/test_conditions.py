"""The conditions beside a threshold: enough traffic, long enough prompts, the right service, the fullest replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from planner.alerts import alerts
from planner.metrics import series_in
from tests.monitoring.exposition import Stage, expectation, replica
from tests.monitoring.targets import LABELS, target

Check = Callable[..., None]
SOUND = Stage(minutes=60, requests=2, waiting=1, running=4, kv_usage=0.4)


def fires(
    check: Check,
    name: str,
    stages: Sequence[Stage],
    expected: bool,
    asked: Mapping[str, Any] | None = None,
    service: str = LABELS["service"],
) -> None:
    """Whether the alert is firing at the end of an hour in which each replica behaves as its stage says."""
    made = target("0.33.0", asked or {}, replicas=len(stages))
    rules = [rule for rule in alerts(made) if rule["alert"] == name]
    read = series_in(rules[0]["expr"])
    series = [
        line
        for number, stage in enumerate(stages)
        for line in replica(made.metrics, [stage], {**LABELS, "service": service, "pod": f"qwen-{number}-6f-abc"}, read)
    ]
    firing = [{**LABELS, "severity": rules[0]["labels"]["severity"]}] if expected else []
    check([{"name": "alerts", "rules": rules}], series, [expectation(name, 59, firing)])


@pytest.mark.parametrize(("requests", "expected"), [(0.012, False), (0.02, True)])
def test_a_quantile_of_very_few_requests_pages_nobody(check: Check, requests: float, expected: bool) -> None:
    late = replace(SOUND, requests=requests, first_token={30.0: 1.0})
    fires(check, "VLLMTTFTSLOBreach", [late], expected)


@pytest.mark.parametrize(("requests", "expected"), [(0.012, False), (0.02, True)])
def test_very_few_failures_page_nobody(check: Check, requests: float, expected: bool) -> None:
    failing = replace(SOUND, requests=requests, ended={"abort": 1.0})
    fires(check, "VLLMRequestsFailing", [failing], expected, {"requestsFailing": {"enabled": True}})


@pytest.mark.parametrize(("requests", "expected"), [(0.019, False), (0.021, True)])
def test_a_hit_rate_needs_traffic(check: Check, requests: float, expected: bool) -> None:
    """Ten prompt tokens a second, with 512 in each request."""
    fires(check, "VLLMPrefixCacheCollapse", [replace(SOUND, requests=requests, hit_rate=0.0)], expected)


@pytest.mark.parametrize(("tokens", "expected"), [(48, False), (63, False), (65, True)])
def test_short_prompts_cannot_hit_and_page_nobody(check: Check, tokens: int, expected: bool) -> None:
    fires(check, "VLLMPrefixCacheCollapse", [replace(SOUND, prompt_tokens=tokens, hit_rate=0.0)], expected)


def test_one_replica_with_a_queue_is_enough(check: Check) -> None:
    """An average would hide it: clients that stick to one replica wait while the other is idle."""
    fires(check, "VLLMQueueBacklog", [replace(SOUND, waiting=11), replace(SOUND, waiting=0)], True)
    fires(check, "VLLMQueueBacklog", [replace(SOUND, waiting=10), replace(SOUND, waiting=10)], False)


@pytest.mark.parametrize(("limit", "expected"), [(15, True), (16, False)])
def test_a_queue_over_all_replicas_has_a_limit_of_its_own(check: Check, limit: int, expected: bool) -> None:
    eight = replace(SOUND, waiting=8)
    fires(check, "VLLMQueueBacklog", [eight, eight], expected, {"queueBacklog": {"waitingPerService": limit}})


def test_both_limits_at_once_are_one_page(check: Check) -> None:
    twenty = replace(SOUND, waiting=20)
    fires(check, "VLLMQueueBacklog", [twenty, twenty], True, {"queueBacklog": {"waitingPerService": 15}})


def test_one_full_cache_is_enough(check: Check) -> None:
    fires(check, "VLLMKVCacheSaturated", [replace(SOUND, kv_usage=0.99), replace(SOUND, kv_usage=0.1)], True)


def test_one_stalled_replica_is_enough(check: Check) -> None:
    stalled = replace(SOUND, requests=0, running=2)
    fires(check, "VLLMStalled", [stalled, SOUND], True, {"stalled": {"enabled": True}})


FAULTY = replace(SOUND, waiting=50, kv_usage=0.99, hit_rate=0.0, first_token={30.0: 1.0})


@pytest.mark.parametrize(
    "name", ["VLLMQueueBacklog", "VLLMTTFTSLOBreach", "VLLMKVCacheSaturated", "VLLMPrefixCacheCollapse"]
)
def test_a_page_is_about_its_own_service(check: Check, name: str) -> None:
    """Another service of the same model in the same namespace has its own rules."""
    fires(check, name, [FAULTY], True)
    fires(check, name, [FAULTY], False, service="another")


@pytest.mark.parametrize(("usage", "expected"), [(0.69, False), (0.71, True)])
def test_a_threshold_of_the_stack_file_is_the_one_that_fires(check: Check, usage: float, expected: bool) -> None:
    fires(
        check, "VLLMKVCacheSaturated", [replace(SOUND, kv_usage=usage)], expected, {"kvCacheSaturated": {"usage": 0.7}}
    )
