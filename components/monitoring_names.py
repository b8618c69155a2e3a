"""Names of what monitoring creates, and what its rules must know of each service. Without Pulumi, for the preflight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from components import naming
from planner.alerts import Target, target_of
from planner.plan import ServicePlan
from planner.spec.monitoring import ActiveMonitoring, AnnotationsMonitoring, OperatorMonitoring, StandaloneMonitoring

PROMETHEUS, ALERTMANAGER = "vllm-prometheus", "vllm-alertmanager"
"""Names of the two servers of mode ``standalone``, and of everything that they need."""
SILENCES_SIZE = "1Gi"
"""Size of Alertmanager's claim: silences and what it has told whom."""


class NamedObject(NamedTuple):
    """An object with a fixed name, for the live look-up."""

    kind: str
    name: str


def rules_name(service: str) -> str:
    """Name of the ConfigMap with a service's rule file."""
    return f"{service}-rules"


def dashboard_name(service: str) -> str:
    """Name of the ConfigMap with a service's dashboard."""
    return f"{service}-dashboard"


def scrape_name(service: str) -> str:
    """Name of the ConfigMap with a service's scrape job."""
    return f"{service}-scrape"


def metrics_policy_name(service: str) -> str:
    """Name of the NetworkPolicy that lets Prometheus in."""
    return f"{service}-metrics"


def objects(
    spec: ActiveMonitoring, services: Iterable[str], namespace: str, crds_present: bool
) -> Iterator[NamedObject]:
    """Every object with a fixed name that `Monitoring` creates for these services."""
    for service in services:
        if isinstance(spec, OperatorMonitoring) and crds_present:
            yield NamedObject("ServiceMonitor", service)
            yield NamedObject("PrometheusRule", service)
        if isinstance(spec, AnnotationsMonitoring):
            yield NamedObject("ConfigMap", rules_name(service))
            yield NamedObject("ConfigMap", scrape_name(service))
        if spec.dashboard:
            yield NamedObject("ConfigMap", dashboard_name(service))
        if scraped_from(spec, namespace) is not None:
            yield NamedObject("NetworkPolicy", metrics_policy_name(service))
    if isinstance(spec, StandaloneMonitoring):
        yield from standalone_objects()


def scraped_from(spec: ActiveMonitoring, namespace: str) -> str | None:
    """The other namespace that Prometheus calls from; the own one is always admitted."""
    if isinstance(spec, StandaloneMonitoring) or spec.prometheus_namespace == namespace:
        return None
    return spec.prometheus_namespace


def targets_of(plans: Mapping[str, ServicePlan], spec: ActiveMonitoring, namespace: str) -> list[Target]:
    """What the rules must know of each planned service, with the names of its objects."""
    return [
        target_of(
            plan,
            spec,
            namespace=namespace,
            service=naming.service_name(name, plan.service),
            servers=tuple(naming.server_name(name, replica) for replica in range(plan.service.replicas)),
            claims=naming.claim_names(name, plan.service),
        )
        for name, plan in plans.items()
    ]


def standalone_objects() -> Iterator[NamedObject]:
    """Kind and name of every object with a fixed name."""
    for name in (PROMETHEUS, ALERTMANAGER):
        for kind in ("PersistentVolumeClaim", "ServiceAccount", "Deployment", "Service", "NetworkPolicy"):
            yield NamedObject(kind, name)
    yield NamedObject("Role", PROMETHEUS)
    yield NamedObject("RoleBinding", PROMETHEUS)
