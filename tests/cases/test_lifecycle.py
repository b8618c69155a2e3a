"""LIFE and PUL: starts that are cut short, stops that cut requests, clocks in the wrong order, waits without end."""

from __future__ import annotations

from typing import Any

import pytest

from components.model_cache import KEPT_ANNOTATIONS
from tests.cases.case import CLAIM, Case
from tests.cases.rendered import one, render, server
from tests.cases.test_memory import model
from tests.components.test_model_cache import recorded as recorded_cache
from tests.components.test_vllm_server import recorded

OVERRIDES = "services.qwen.overrides"
STOP = "services.qwen.stop"
TAG = "services.qwen.image.tag"
LARGE = {
    **model("meta-llama/Llama-3.3-70B-Instruct", "h200", 2, **{"nodes.lab.rates": {"diskMbPerSecond": 200}}),
    "services.qwen.cache": CLAIM,
}

CASES = [
    Case(
        "LIFE-1",
        "a window below the worst start",
        {**LARGE, OVERRIDES: {"startupSeconds": 120}},
        "error",
        "clocks-startup-window",
        ".overrides.startupSeconds",
        "120 s",
        LARGE,
    ),
    Case(
        "LIFE-1",
        "a fixed delay in place of a wait",
        {f"{OVERRIDES}.initialDelaySeconds": 900},
        "error",
        "CFG-KEY",
        ".overrides.initialDelaySeconds",
        "overrides.startupSeconds",
        {OVERRIDES: {"startupSeconds": 900}},
    ),
    Case(
        "LIFE-1",
        "an engine that is given up before it has read its weights",
        {**LARGE, "services.qwen.env": {"VLLM_ENGINE_READY_TIMEOUT_S": "600"}},
        "error",
        "LIFE-2",
        ".env.VLLM_ENGINE_READY_TIMEOUT_S",
        "600 s",
        LARGE,
    ),
    Case(
        "LIFE-3",
        "a grace period below the drain",
        {OVERRIDES: {"terminationGracePeriodSeconds": 30}, STOP: {"drainSeconds": 45}},
        "error",
        "clocks-grace-period",
        ".overrides.terminationGracePeriodSeconds",
        "30 s",
        {OVERRIDES: {"terminationGracePeriodSeconds": 90}, STOP: {"drainSeconds": 45}},
    ),
    Case(
        "LIFE-3",
        "a drain that the release does not have",
        {TAG: "v0.11.0", STOP: {"drainSeconds": 45}},
        "warn",
        "LIFE-3",
        ".stop.drainSeconds",
        "no effect",
        {STOP: {"drainSeconds": 45}},
    ),
    Case("LIFE-3", "no drain", {STOP: {"drainSeconds": 0}}, "warn", "LIFE-3", ".stop.drainSeconds", "are cut"),
    Case("LIFE-3", "no wait before it", {STOP: {"preStopSeconds": 0}}, "warn", "LIFE-3", ".stop.preStopSeconds", "0:"),
    Case(
        "PUL-1",
        "a progress deadline below the window",
        {OVERRIDES: {"progressDeadlineSeconds": 600, "startupSeconds": 1800}},
        "error",
        "clocks-progress-deadline",
        ".overrides.progressDeadlineSeconds",
        "600 s",
        {OVERRIDES: {"progressDeadlineSeconds": 2400, "startupSeconds": 1800}},
    ),
    Case(
        "PUL-1",
        "Pulumi gives up before the deadline",
        {OVERRIDES: {"progressDeadlineSeconds": 2400, "updateTimeoutSeconds": 1200}},
        "error",
        "clocks-update-timeout",
        ".overrides.updateTimeoutSeconds",
        "1200 s",
        {OVERRIDES: {"progressDeadlineSeconds": 2400, "updateTimeoutSeconds": 3000}},
    ),
    Case(
        "PUL-1",
        "a download that is given up while it runs",
        {"services.qwen.cache.seed": {"deadlineSeconds": 60}},
        "error",
        "clocks-seed-deadline",
        ".cache.seed.deadlineSeconds",
        "60 s",
        {"services.qwen.cache.seed": {"deadlineSeconds": 3600}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def window(probe: dict[str, Any]) -> int:
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def test_life_1_the_startup_probe_waits_as_long_as_the_start_takes() -> None:
    large, small = server(recorded(LARGE)), server(recorded())
    assert window(large["startupProbe"]) >= 900, "141 GB at 200 MB/s are 12 minutes of reading alone"
    assert window(small["startupProbe"]) < window(large["startupProbe"]), "the neighbour: a small model waits less"
    for container in (large, small):
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert "initialDelaySeconds" not in container[name], f"{name}: a delay is a guess (kserve#5062)"
            assert container[name]["httpGet"]["path"] == "/health", f"{name}: needs no key and no GPU"


@pytest.mark.parametrize(("tag", "drains"), [("v0.31.0", True), ("v0.19.1", True), ("v0.11.0", False)])
def test_life_3_the_grace_period_is_longer_than_wait_and_drain(tag: str, drains: bool) -> None:
    changes = {TAG: tag, STOP: {"preStopSeconds": 15, "drainSeconds": 45}}
    recording = recorded(changes)
    spec = one(recording, "Deployment")["spec"]["template"]["spec"]
    command = server(recording)["command"]
    assert ("--shutdown-timeout" in command) is drains, "0.11.0, the neighbour, would end with `unrecognized arguments`"
    assert spec["terminationGracePeriodSeconds"] > 15 + (45 if drains else 0), "SIGKILL would cut the drain"
    assert server(recording)["lifecycle"]["preStop"]["sleep"]["seconds"] == 15


@pytest.mark.parametrize("changes", [{}, LARGE], ids=["the lab", "the neighbour, a large model"])
def test_pul_1_each_clock_outlasts_the_one_inside_it(changes: dict[str, Any]) -> None:
    recording = recorded(changes)
    (deployment,) = recording.all("kubernetes:apps/v1:Deployment")
    deadline = deployment.inputs["spec"]["progressDeadlineSeconds"]
    timeouts = deployment.request.customTimeouts
    inside = window(server(recording)["startupProbe"])
    create, update = (int(text.removesuffix("s")) for text in (timeouts.create, timeouts.update))
    assert inside < deadline < min(create, update), "the inner clock must speak first, on create and on update"


def test_pul_2_nothing_waits_for_a_claim_that_waits_for_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = one(render(monkeypatch), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true", "bound by its first pod"
    assert KEPT_ANNOTATIONS["pulumi.com/skipAwait"] == "true", "for resizing as well (pulumi-kubernetes#4179)"


def test_pul_2_a_larger_claim_is_the_same_claim() -> None:
    kind = "kubernetes:core/v1:PersistentVolumeClaim"
    small, large = (
        recorded_cache({"services.qwen.cache": {**CLAIM, "size": size, "claimName": "vllm-model"}}).one(kind)
        for size in ("100Gi", "200Gi")
    )
    assert small.name == large.name, "another logical name would be another claim, and the old one deleted"
    assert small.inputs["metadata"] == large.inputs["metadata"], "only the request grows"
    assert not large.request.deleteBeforeReplace, "the files are in it"
    assert not [path for path in large.request.replaceOnChanges if "resources" in path], "an update, not a replacement"
    neighbour = {**small.inputs["spec"], "resources": large.inputs["spec"]["resources"]}
    assert neighbour == large.inputs["spec"], "nothing else differs"
