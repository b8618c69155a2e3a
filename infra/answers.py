"""What the plan answers, as plain data: the same for the terminal, JSON, the preview and a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from infra.config.stack import EKS_CLUSTER
from planner.capacity import dollars_per_month
from planner.checklist import checklists
from planner.compile_cache import key_of
from planner.findings import Finding
from planner.plan import ServicePlan
from planner.spec.aws import EKS_ADDONS, EksClusterSpec
from planner.spec.monitoring import MonitoringSpec


def answers(
    plans: Mapping[str, ServicePlan], findings: Iterable[Finding], monitoring: MonitoringSpec | None = None
) -> dict[str, Any]:
    """Everything that `vllm-infra plan --json` prints."""
    found = tuple(findings)
    return {
        "services": {name: service_answers(plan) for name, plan in plans.items()},
        "findings": [asdict(finding) for finding in found],
        "checklist": {
            name: [asdict(box) for box in boxes] for name, boxes in checklists(plans, found, monitoring).items()
        },
    }


def cluster_answers(spec: EksClusterSpec, findings: Iterable[Finding]) -> dict[str, Any]:
    """The same for a stack that is an EKS cluster of its own: no service runs in it."""
    section = spec.model_dump(mode="json", by_alias=True)
    # Without a version of ours EKS chooses one.
    versions = {addon: spec.addon_versions.get(addon) for addon in EKS_ADDONS}
    return {**answers({}, findings), EKS_CLUSTER: section | {"addonVersions": versions}}


def service_answers(plan: ServicePlan) -> dict[str, Any]:
    """The answers about one service: does it fit, how long does it start, what is run, what does it cost."""
    return {
        "memory": memory_answers(plan),
        "startup": startup_answers(plan),
        "argv": list(plan.argv),
        "probes": probe_answers(plan),
        "cost": cost_answers(plan),
        "compileCache": key_of(plan).as_data(),
    }


def memory_answers(plan: ServicePlan) -> dict[str, Any]:
    """The card's memory, or the container's; GiB are 2^30 bytes, MiB 2^20."""
    memory = plan.memory
    return {
        "fits": memory.fits,
        "weightsGiB": round(memory.weights_mib / 1024, 2),
        "kvGiB": round(memory.kv_mib / 1024, 2),
        "kvTokens": memory.kv_tokens,
        "kvTokensCompiling": memory.kv_tokens_compiling,
        "maxContext": memory.largest_context,
        "maxModelLen": memory.max_model_len,
        "utilization": memory.utilization,
        "utilizationThatFits": memory.utilization_that_fits,
        "fullLengthRequests": round(memory.full_length_requests, 2),
        "typicalRequests": memory.typical_requests,
        "typicalTokens": memory.typical_tokens,
        **used_answer(plan),
        "bandMiB": round(memory.band_mib),
        "unknown": list(memory.unknown),
    }


def used_answer(plan: ServicePlan) -> dict[str, int]:
    """What is taken after the start, under the name of what shows it."""
    name = "nvidiaSmiMiB" if plan.pool.kind == "gpu" else "containerMiB"
    return {name: round(plan.memory.used_mib)}


def startup_answers(plan: ServicePlan) -> dict[str, Any]:
    """Seconds: each phase of the first start and of a warm restart, and the window of the startup probe."""
    return {
        "phases": {phase.name: round(phase.seconds, 1) for phase in plan.cold.phases},
        "warmPhases": {phase.name: round(phase.seconds, 1) for phase in plan.warm.phases},
        "steps": [
            {
                "there": step.there,
                "seconds": round(step.start.seconds, 1),
                "initEngineSeconds": round(step.start.init_engine_seconds, 1),
            }
            for step in plan.steps
        ],
        "coldSeconds": round(plan.cold.seconds, 1),
        "warmSeconds": round(plan.warm.seconds, 1),
        "budgetSeconds": plan.clocks.startup_window_seconds,
        "downtimeSeconds": round(plan.downtime_seconds, 1),
    }


def probe_answers(plan: ServicePlan) -> dict[str, Any]:
    """The clocks of the roll-out, seconds, from the inside out."""
    clocks = plan.clocks
    return {
        "startup": {
            "periodSeconds": clocks.startup_period_seconds,
            "failureThreshold": clocks.startup_failure_threshold,
        },
        "liveness": {
            "periodSeconds": clocks.liveness_period_seconds,
            "failureThreshold": clocks.liveness_failure_threshold,
        },
        "readiness": {
            "periodSeconds": clocks.readiness_period_seconds,
            "failureThreshold": clocks.readiness_failure_threshold,
        },
        "terminationGracePeriodSeconds": clocks.stop_seconds,
        "progressDeadlineSeconds": clocks.progress_deadline_seconds,
        "deploymentTimeoutSeconds": clocks.deployment_timeout_seconds,
        "prePullTimeoutSeconds": clocks.pre_pull_timeout_seconds,
        "seedTimeoutSeconds": clocks.seed_timeout_seconds,
    }


def cost_answers(plan: ServicePlan) -> dict[str, Any]:
    """Dollars; empty without a price of the pool."""
    hourly = plan.dollars_per_hour
    if hourly is None:
        return {}
    return {"dollarsPerHour": round(hourly, 2), "dollarsPerMonth": round(dollars_per_month(hourly), 2)}


def short_answers(plan: ServicePlan) -> dict[str, Any]:
    """What a stack exports, so that a change of it is a line of the diff that a colleague reviews."""
    return {
        "model": plan.service.model.public_name,
        "gpu": plan.gpu.name,
        "release": plan.release.version,
        "kvTokens": plan.memory.kv_tokens,
        **used_answer(plan),
        "startupBudgetSeconds": plan.clocks.startup_window_seconds,
        "downtimeSeconds": round(plan.downtime_seconds),
        # Another value: the next start compiles once more, and takes longer than the downtime above.
        "compileCache": key_of(plan).digest,
        **cost_answers(plan),
    }
