"""The clocks of a roll-out in strict order, so that the inner one always speaks before the outer one gives up.

startup probe < progressDeadlineSeconds < Pulumi's timeout of the Deployment < that of the Service; the pre-pull
DaemonSet and the seed Job have timeouts of their own, from their bytes. All in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.capability import capabilities
from planner.findings import Finding
from planner.gpus import Device
from planner.models import ModelFacts
from planner.releases import Release
from planner.spec import PoolSpec, ServiceSpec
from planner.startup import cold_start, download_seconds, figures, on_the_nodes, pull_seconds, worst_credible

_PROBES = "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-probes"
_DEADLINE = "https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#progress-deadline-seconds"
_TERMINATION = "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination"
_TIMEOUTS = "https://www.pulumi.com/docs/iac/concepts/options/customtimeouts/"
_JOB = "https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup"


@dataclass(frozen=True)
class Clocks:
    """Probes, deadlines and timeouts, seconds, and below them the least that each must exceed or reach.

    ``stop_seconds`` is terminationGracePeriodSeconds. ``pre_pull_timeout_seconds`` and ``seed_timeout_seconds`` are
    Pulumi's timeouts of the DaemonSet and the Job, ``seed_deadline_seconds`` is the Job's activeDeadlineSeconds.
    """

    startup_period_seconds: int
    startup_failure_threshold: int
    liveness_period_seconds: int
    liveness_failure_threshold: int
    readiness_period_seconds: int
    readiness_failure_threshold: int
    probe_timeout_seconds: int
    stop_seconds: int
    progress_deadline_seconds: int
    deployment_timeout_seconds: int
    service_timeout_seconds: int
    pre_pull_timeout_seconds: int
    seed_deadline_seconds: int
    seed_timeout_seconds: int
    worst_start_seconds: float
    drain_seconds: float
    before_container_seconds: float
    pre_pull_seconds: float
    download_seconds: float

    @property
    def startup_window_seconds(self) -> int:
        """How long the startup probe waits: period x failureThreshold."""
        return self.startup_period_seconds * self.startup_failure_threshold

    @property
    def liveness_window_seconds(self) -> int:
        """How long a running server may stay silent before it is restarted."""
        return self.liveness_period_seconds * self.liveness_failure_threshold

    @property
    def readiness_window_seconds(self) -> int:
        """How long a running server may stay silent before it gets no more requests."""
        return self.readiness_period_seconds * self.readiness_failure_threshold

    @property
    def progress_needed_seconds(self) -> float:
        """What progressDeadlineSeconds must exceed: stop of the old pod, way to the container, window, one probe."""
        return (
            self.stop_seconds
            + self.before_container_seconds
            + self.startup_window_seconds
            + self.startup_period_seconds
        )


def _figure(name: str) -> float:
    return float(figures("clocks")[name]["value"])


def _whole(name: str) -> int:
    return math.ceil(_figure(name))


def drain_seconds(release: Release, service: ServiceSpec) -> float:
    """What a stop takes before the engine's teardown: preStop, and the drain where `--shutdown-timeout` exists."""
    drain = service.stop.drain_seconds if "--shutdown-timeout" in release.flags else 0
    return service.stop.pre_stop_seconds + drain


def pull_waves(pool: PoolSpec) -> int:
    """How many times nodes pull one after the other, because the registry serves only some at full rate."""
    return math.ceil(pool.nodes / (pool.pre_pull.concurrent_nodes or pool.nodes))


def plan_clocks(device: Device, facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec) -> Clocks:
    """Every clock of one service, computed from the inside out; an override moves the clocks around it as well."""
    overrides, margin = service.overrides, _whole("margin")
    worst = worst_credible(device, facts, release, service, pool)
    period = _whole("startupPeriod")
    threshold = math.ceil((overrides.startup_seconds or max(worst, _figure("leastWindow"))) / period)
    drain = drain_seconds(release, service)
    stop = overrides.termination_grace_period_seconds or math.ceil(drain + _figure("teardown"))
    before, pull = _before_container(device, facts, release, service, pool), pull_seconds(release, pool)
    waves = pull * pull_waves(pool)
    needed = stop + before + period * threshold + period
    deadline = overrides.progress_deadline_seconds or math.ceil(needed) + margin
    deployment = overrides.update_timeout_seconds or max(deadline + 2 * margin, _whole("providerDefault"))
    seed = _seed_deadline(facts, release, service, pool)
    return Clocks(
        startup_period_seconds=period,
        startup_failure_threshold=threshold,
        liveness_period_seconds=_whole("livenessPeriod"),
        liveness_failure_threshold=_whole("livenessFailures"),
        readiness_period_seconds=_whole("readinessPeriod"),
        readiness_failure_threshold=_whole("readinessFailures"),
        probe_timeout_seconds=_whole("probeTimeout"),
        stop_seconds=stop,
        progress_deadline_seconds=deadline,
        deployment_timeout_seconds=deployment,
        service_timeout_seconds=deployment + margin,
        pre_pull_timeout_seconds=max(
            math.ceil(waves * _figure("pullFactor")) + margin, _whole("providerDefault") + margin
        ),
        seed_deadline_seconds=seed,
        seed_timeout_seconds=max(seed, _whole("providerDefault")) + margin,
        worst_start_seconds=worst,
        drain_seconds=drain,
        before_container_seconds=before,
        pre_pull_seconds=waves,
        download_seconds=download_seconds(facts, pool),
    )


def _before_container(
    device: Device, facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec
) -> float:
    """Node, image and sandbox of a new pod."""
    phases = {phase.name: phase.seconds for phase in cold_start(device, facts, release, service, pool).phases}
    return phases["node"] + _pod_pull_seconds(release, pool) + phases["sandbox"]


def _pod_pull_seconds(release: Release, pool: PoolSpec) -> float:
    """What a pod itself may wait for its image; nothing where nodes start with it, or a DaemonSet is waited for."""
    awaited = pool.image_delivery == "daemonSet" and pool.pre_pull.await_ready
    return 0.0 if awaited or on_the_nodes(pool) else pull_seconds(release, pool) * _figure("pullFactor")


def _seed_deadline(facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec) -> int:
    asked = service.cache.seed.deadline_seconds
    if asked is not None:
        return asked
    planned = _figure("downloadFactor") * download_seconds(facts, pool) + _figure("downloadMargin")
    # The Job's clock runs while its own image is pulled.
    return math.ceil(planned + _pod_pull_seconds(release, pool))


def engine_patience(release: Release, clocks: Clocks) -> dict[str, str]:
    """The variable that makes the API server wait for its engine at least as long as the startup probe does.

    Empty where vLLM's own limit is enough, and where the release is not known to read it. The value is part of the
    key of vLLM's compile cache (vllm/envs.py: compile_factors), so it only ever doubles: a plan that moves by some
    seconds compiles nothing once more.
    """
    limit = capabilities()["engineReadySeconds"]
    name, seconds = str(limit["variable"]), int(limit["value"])
    if name not in release.environment or seconds >= clocks.startup_window_seconds:
        return {}
    while seconds < clocks.startup_window_seconds:
        seconds *= 2
    return {name: str(seconds)}


def broken(clocks: Clocks, service: ServiceSpec) -> tuple[Finding, ...]:
    """Each order that does not hold, with both numbers and the override that breaks it (path inside the service)."""
    checks = (
        _startup(clocks),
        _stop(clocks),
        _progress(clocks),
        _update(clocks),
        _seed(clocks) if service.cache.seed.enabled else None,
    )
    return tuple(finding for finding in checks if finding is not None)


def _startup(clocks: Clocks) -> Finding | None:
    window, worst = clocks.startup_window_seconds, math.ceil(clocks.worst_start_seconds)
    if window >= worst:
        return None
    return Finding(
        level="error",
        path="overrides.startupSeconds",
        message=f"the startup probe gives up after {window} s, the worst credible start takes {worst} s",
        remedy=f"set it to at least {worst}, or leave it out",
        rule="clocks-startup-window",
        source=_PROBES,
    )


def _stop(clocks: Clocks) -> Finding | None:
    least = math.ceil(clocks.drain_seconds) + 1
    if clocks.stop_seconds >= least:
        return None
    return Finding(
        level="error",
        path="overrides.terminationGracePeriodSeconds",
        message=f"the pod is killed after {clocks.stop_seconds} s, preStop and drain alone take {least - 1} s",
        remedy=f"set it to at least {least + _whole('teardown')} (the engine's teardown included), or leave it out",
        rule="clocks-grace-period",
        source=_TERMINATION,
    )


def _progress(clocks: Clocks) -> Finding | None:
    needed = clocks.progress_needed_seconds
    if clocks.progress_deadline_seconds > needed:
        return None
    return Finding(
        level="error",
        path="overrides.progressDeadlineSeconds",
        message=f"the roll-out is called failed after {clocks.progress_deadline_seconds} s, stop of the old pod, way "
        f"to the container and start-up window take up to {math.ceil(needed)} s",
        remedy=f"set it above {math.ceil(needed)}, or leave it out",
        rule="clocks-progress-deadline",
        source=_DEADLINE,
    )


def _update(clocks: Clocks) -> Finding | None:
    needed = clocks.progress_deadline_seconds + _whole("margin")
    if clocks.deployment_timeout_seconds > needed:
        return None
    return Finding(
        level="error",
        path="overrides.updateTimeoutSeconds",
        message=f"Pulumi gives up after {clocks.deployment_timeout_seconds} s, progressDeadlineSeconds "
        f"{clocks.progress_deadline_seconds} and a margin of {_whole('margin')} s come first",
        remedy=f"set it above {needed}, or leave it out",
        rule="clocks-update-timeout",
        source=_TIMEOUTS,
    )


def _seed(clocks: Clocks) -> Finding | None:
    download = math.ceil(clocks.download_seconds)
    if clocks.seed_deadline_seconds > download:
        return None
    return Finding(
        level="error",
        path="cache.seed.deadlineSeconds",
        message=f"the seed Job is given up after {clocks.seed_deadline_seconds} s, the download takes {download} s",
        remedy=f"set it above {download}, or leave it out; a faster hub is `rates.hubMbPerSecond` of the pool",
        rule="clocks-seed-deadline",
        source=_JOB,
    )
