"""The order of the clocks: it holds for whatever is computed, and a break is found with both numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.clocks import Clocks, broken, engine_patience, plan_clocks
from planner.gpus import catalogue
from planner.models import facts, known_models
from planner.releases import release_at
from planner.spec import PoolSpec, ServiceSpec
from planner.startup import pull_seconds, worst_credible

QWEN = "Qwen/Qwen2.5-7B-Instruct"
PROVIDER_DEFAULT = 600


def service(**fields: Any) -> ServiceSpec:
    document = {
        "pool": "gpu",
        "model": {"id": "org/name"},
        "image": {"tag": "v0.31.0"},
        "cache": {"kind": "existingClaim", "claimName": "cache"},
        "resources": {"memoryLimit": "64Gi"},
    }
    return ServiceSpec.model_validate_json(json.dumps(document | fields))


def pool(gpu: str = "l40s", **fields: Any) -> PoolSpec:
    document = {"gpu": gpu, "selector": {"gpu": "yes"}, "cpus": 16, "memory": "64Gi"}
    return PoolSpec.model_validate_json(json.dumps(document | fields))


def clocks(given_service: ServiceSpec, given_pool: PoolSpec, version: str = "0.31.0", model: str = QWEN) -> Clocks:
    return plan_clocks(catalogue()[given_pool.gpu], facts(model), release_at(version), given_service, given_pool)


_rate = st.floats(min_value=1, max_value=5000)
_pools = st.builds(
    pool,
    gpu=st.sampled_from(sorted(catalogue())),
    nodes=st.integers(1, 20),
    imageDelivery=st.sampled_from(["daemonSet", "bakedImage", "snapshot", "none"]),
    prePull=st.fixed_dictionaries({"await": st.booleans()}, optional={"concurrentNodes": st.integers(1, 20)}),
    rates=st.fixed_dictionaries({"registryMbPerSecond": _rate, "hubMbPerSecond": _rate, "diskMbPerSecond": _rate}),
)
_seconds = st.integers(1, 20_000)
_stop = st.fixed_dictionaries({"preStopSeconds": st.integers(0, 120), "drainSeconds": st.integers(0, 900)})


def _services(overrides: st.SearchStrategy[dict[str, int]], seed: st.SearchStrategy[dict[str, Any]]) -> Any:
    claim = seed.map(lambda chosen: {"kind": "existingClaim", "claimName": "cache", "seed": chosen})
    return st.builds(
        service,
        engine=st.fixed_dictionaries({"enforceEager": st.booleans()}),
        gpus=st.sampled_from([1, 2, 4]),
        offline=st.booleans(),
        stop=_stop,
        overrides=overrides,
        cache=claim,
    )


_enabled = st.fixed_dictionaries({"enabled": st.booleans()})
_plain = _services(st.just({}), _enabled)
_overridden = _services(
    st.fixed_dictionaries(
        {},
        optional={
            "startupSeconds": _seconds,
            "progressDeadlineSeconds": _seconds,
            "updateTimeoutSeconds": _seconds,
            "terminationGracePeriodSeconds": _seconds,
        },
    ),
    st.fixed_dictionaries({"enabled": st.booleans()}, optional={"deadlineSeconds": _seconds}),
)
_versions = st.sampled_from(["0.11.0", "0.19.1", "0.26.0", "0.31.0", "0.33.0"])
_models = st.sampled_from(known_models())


def assert_ordered(result: Clocks, given_service: ServiceSpec, given_pool: PoolSpec, version: str, model: str) -> None:
    release, card = release_at(version), catalogue()[given_pool.gpu]
    worst = worst_credible(card, facts(model), release, given_service, given_pool)
    assert result.startup_window_seconds >= worst, "a healthy start is never killed"
    drain = given_service.stop.drain_seconds if version != "0.11.0" else 0
    assert result.stop_seconds > given_service.stop.pre_stop_seconds + drain, "the engine is torn down before the kill"
    there = {"daemonSet": given_pool.pre_pull.await_ready, "none": False, "bakedImage": True, "snapshot": True}
    pull = 0.0 if there[given_pool.image_delivery] else pull_seconds(release, given_pool)
    inside = result.stop_seconds + pull + result.startup_window_seconds + result.startup_period_seconds
    assert result.progress_deadline_seconds > inside, "the Deployment waits for the startup probe"
    assert result.deployment_timeout_seconds > result.progress_deadline_seconds + 60, "Pulumi waits for the Deployment"
    assert result.service_timeout_seconds > result.deployment_timeout_seconds, "the Service waits for its endpoints"
    if given_service.cache.seed.enabled:
        download = facts(model).weight_bytes / (given_pool.rates.hub_mb_per_second * 1e6)
        if given_service.cache.seed.deadline_seconds is None:
            download += pull  # of the Job's own image
        assert result.seed_deadline_seconds > download, "the download can end"
    assert result.seed_timeout_seconds > result.seed_deadline_seconds, "Pulumi waits for the Job"


def assert_fixed_order(result: Clocks, given_pool: PoolSpec, version: str) -> None:
    waves = -(-given_pool.nodes // (given_pool.pre_pull.concurrent_nodes or given_pool.nodes))
    assert result.pre_pull_timeout_seconds > waves * pull_seconds(release_at(version), given_pool), "every node pulls"
    assert result.liveness_window_seconds > result.readiness_window_seconds, "out of the Service before a restart"
    assert result.probe_timeout_seconds >= 5, "a busy server answers late"
    assert result.probe_timeout_seconds <= result.readiness_period_seconds, "probes do not overlap"


@settings(max_examples=60, deadline=None)
@given(given_service=_plain, given_pool=_pools, version=_versions, model=_models)
def test_computed_clocks_are_always_in_order(
    given_service: ServiceSpec, given_pool: PoolSpec, version: str, model: str
) -> None:
    result = clocks(given_service, given_pool, version, model)
    assert broken(result, given_service) == (), "nothing was overridden"
    assert_ordered(result, given_service, given_pool, version, model)
    assert_fixed_order(result, given_pool, version)


@settings(max_examples=120, deadline=None)
@given(given_service=_overridden, given_pool=_pools, version=_versions, model=_models)
def test_accepted_overrides_keep_the_order(
    given_service: ServiceSpec, given_pool: PoolSpec, version: str, model: str
) -> None:
    result = clocks(given_service, given_pool, version, model)
    findings = broken(result, given_service)
    if not findings:
        assert_ordered(result, given_service, given_pool, version, model)
    for finding in findings:
        assert finding.level == "error", "a broken order is never a remark"
        assert sum(word.strip(",").isdigit() for word in finding.message.split()) >= 2, "both numbers are named"
    assert_fixed_order(result, given_pool, version)


@pytest.mark.parametrize(
    ("path", "refused", "accepted"),
    [
        ("startupSeconds", {"startupSeconds": 60}, {"startupSeconds": 900}),
        ("progressDeadlineSeconds", {"progressDeadlineSeconds": 200}, {"progressDeadlineSeconds": 900}),
        ("updateTimeoutSeconds", {"updateTimeoutSeconds": 300}, {"updateTimeoutSeconds": 3600}),
        ("terminationGracePeriodSeconds", {"terminationGracePeriodSeconds": 35}, {"terminationGracePeriodSeconds": 60}),
        (
            "progressDeadlineSeconds",
            {"startupSeconds": 1200, "progressDeadlineSeconds": 1200},
            {"startupSeconds": 1200, "progressDeadlineSeconds": 1400},
        ),
        (
            "updateTimeoutSeconds",
            {"progressDeadlineSeconds": 1000, "updateTimeoutSeconds": 1060},
            {"progressDeadlineSeconds": 1000, "updateTimeoutSeconds": 1061},
        ),
    ],
)
def test_an_override_that_breaks_an_order(path: str, refused: dict[str, int], accepted: dict[str, int]) -> None:
    bad, good = service(overrides=refused), service(overrides=accepted)
    findings = broken(clocks(bad, pool()), bad)
    assert [finding.path for finding in findings] == [f"overrides.{path}"], "the override that breaks it is named"
    values = [str(value) for value in refused.values()]
    assert any(value in findings[0].message for value in values), "with the number that was given"
    assert broken(clocks(good, pool()), good) == (), "the neighbour passes"


def test_seed_deadline_shorter_than_the_download() -> None:
    slow = pool(rates={"hubMbPerSecond": 10.0})

    def seeded(**seed: Any) -> ServiceSpec:
        return service(cache={"kind": "existingClaim", "claimName": "cache", "seed": seed})

    bad = seeded(deadlineSeconds=600)
    assert [finding.path for finding in broken(clocks(bad, slow), bad)] == ["cache.seed.deadlineSeconds"], "1,523 s"
    for good in (seeded(deadlineSeconds=1600), seeded(), seeded(enabled=False, deadlineSeconds=600)):
        assert broken(clocks(good, slow), good) == (), "long enough, computed, or no Job at all"


def test_an_override_moves_the_clocks_around_it() -> None:
    plain, longer = service(), service(overrides={"startupSeconds": 3000})
    before, after = clocks(plain, pool()), clocks(longer, pool())
    assert after.startup_window_seconds == 3000, "the window is the override"
    assert after.progress_deadline_seconds > before.progress_deadline_seconds + 2000, "the deadline follows"
    assert after.service_timeout_seconds > 3000, "so do the timeouts"


def test_the_labs_36_minute_pull_outlasts_the_providers_default() -> None:
    image = release_at("0.31.0").image_bytes
    lab = pool("rtx-3060-12gb", rates={"registryMbPerSecond": image / (36 * 60) / 1e6})
    result = clocks(service(), lab)
    assert result.pre_pull_timeout_seconds > 36 * 60 > PROVIDER_DEFAULT, "ten minutes would fail with nothing wrong"
    unpulled = clocks(service(), pool("rtx-3060-12gb", imageDelivery="none", rates=lab.rates.model_dump(by_alias=True)))
    assert unpulled.progress_deadline_seconds > 36 * 60, "without a DaemonSet the roll-out waits for the pull"
    assert result.progress_deadline_seconds < 36 * 60, "with one it does not"


SLOW = {"registryMbPerSecond": 5.8}


@pytest.mark.parametrize(
    ("fields", "pulls"),
    [
        ({"imageDelivery": "daemonSet"}, False),
        ({"imageDelivery": "daemonSet", "prePull": {"await": False}}, True),
        ({"imageDelivery": "bakedImage"}, False),
        ({"imageDelivery": "bakedImage", "prePull": {"await": False}}, False),
        ({"imageDelivery": "snapshot"}, False),
        ({"imageDelivery": "none"}, True),
    ],
    ids=["awaited", "not awaited", "baked", "baked: there is no DaemonSet", "snapshot", "none"],
)
def test_a_pod_waits_for_a_pull_only_where_nobody_has_pulled(fields: dict[str, Any], pulls: bool) -> None:
    given = pool(rates=SLOW, **fields)
    result, pull = clocks(service(), given), pull_seconds(release_at("0.31.0"), given)
    assert (result.before_container_seconds > pull) == pulls, "what comes before the container"
    assert (result.progress_deadline_seconds > pull) == pulls, "and with it the deadline"
    assert (result.seed_deadline_seconds > pull) == pulls, "the seed Job runs in the same image"


def test_waves_multiply_the_pull() -> None:
    at_once = clocks(service(), pool(nodes=4, rates=SLOW)).pre_pull_timeout_seconds
    by_two = clocks(service(), pool(nodes=4, rates=SLOW, prePull={"concurrentNodes": 2})).pre_pull_timeout_seconds
    assert by_two > 1.9 * at_once, "two nodes at a time need two waves"


@pytest.mark.parametrize(
    ("version", "window", "expected"),
    [
        ("0.31.0", 600, {}),
        ("0.31.0", 601, {"VLLM_ENGINE_READY_TIMEOUT_S": "1200"}),
        ("0.31.0", 1200, {"VLLM_ENGINE_READY_TIMEOUT_S": "1200"}),
        ("0.19.1", 3000, {"VLLM_ENGINE_READY_TIMEOUT_S": "4800"}),
        ("0.11.0", 3000, {}),
    ],
    ids=["its own limit is enough", "above it", "the same for a longer window", "doubled", "not read by the release"],
)
def test_the_engine_is_waited_for_as_long_as_the_probe_waits(
    version: str, window: int, expected: dict[str, str]
) -> None:
    planned = replace(clocks(service(), pool()), startup_period_seconds=1, startup_failure_threshold=window)
    assert engine_patience(release_at(version), planned) == expected, "else vLLM ends itself before the probe gives up"


def test_a_release_without_drain_stops_sooner() -> None:
    old, new = (clocks(service(), pool(), version) for version in ("0.11.0", "0.19.1"))
    assert new.stop_seconds - old.stop_seconds == 30, "0.11.0 has no --shutdown-timeout and aborts what runs"
