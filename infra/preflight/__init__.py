"""Everything that is checked before a resource is registered, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from infra.config import StackConfig
from infra.preflight import (
    aws,
    capability,
    cpu,
    dra,
    engine,
    gpus,
    lifecycle,
    live,
    memory,
    monitoring,
    network,
    parallelism,
    replicas,
    security,
    storage,
)
from infra.preflight.eks_cluster import check_cluster
from infra.preflight.rule import LiveSubject, ServiceSubject, StackSubject
from planner.arguments import check
from planner.clocks import broken
from planner.findings import Finding
from planner.plan import ServicePlan

if TYPE_CHECKING:
    from infra.live import LiveCluster

__all__ = ["LIVE_RULES", "SERVICE_RULES", "STACK_RULES", "check_cluster", "check_live", "check_plan"]

STACK_RULES = (
    *gpus.STACK_RULES,
    *capability.STACK_RULES,
    *cpu.STACK_RULES,
    *dra.STACK_RULES,
    *replicas.STACK_RULES,
    *network.STACK_RULES,
    *storage.STACK_RULES,
    *monitoring.STACK_RULES,
    *aws.STACK_RULES,
)
SERVICE_RULES = (
    *gpus.RULES,
    *capability.RULES,
    *cpu.RULES,
    *parallelism.RULES,
    *replicas.RULES,
    *memory.RULES,
    *engine.RULES,
    *storage.RULES,
    *lifecycle.RULES,
    *network.RULES,
    *security.RULES,
)
LIVE_RULES = (
    *live.RULES,
    *monitoring.LIVE_RULES,
    *capability.LIVE_RULES,
    *dra.LIVE_RULES,
    *replicas.LIVE_RULES,
    *aws.LIVE_RULES,
)


def check_plan(config: StackConfig, secrets: frozenset[str], plans: Mapping[str, ServicePlan]) -> tuple[Finding, ...]:
    """What the stack file alone tells, without a cluster. ``secrets``: the keys of those that are set."""
    stack = StackSubject(config, secrets, plans)
    found = [finding for rule in STACK_RULES for finding in rule.findings(stack, "vllm:")]
    for name, plan in plans.items():
        subject = ServiceSubject(stack, plan)
        for rule in SERVICE_RULES:
            found += rule.findings(subject, f"vllm:services.{name}.")
        planned = (*check(plan.service, plan.release), *broken(plan.clocks, plan.service))
        found += [finding.under(f"vllm:services.{name}") for finding in planned]
    return tuple(found)


def check_live(config: StackConfig, stack: str, cluster: LiveCluster) -> tuple[Finding, ...]:
    """What only the cluster tells: foreign objects, conflicts with live claims, missing nodes."""
    subject = LiveSubject(config, stack, cluster)
    return tuple(finding for rule in LIVE_RULES for finding in rule.findings(subject, "vllm:"))
