"""A whole stack file: its sections as one model, and the checks that need more than one section.

A file describes one of two things: an environment, or an EKS cluster of its own for environments to run on.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from infra.config.errors import SECTION_SOURCE, ConfigError, findings_of
from planner.alerts import with_settings_for_alerts
from planner.findings import Finding
from planner.spec import ClusterSpec, EksClusterSpec, PoolSpec, ServiceSpec, Spec
from planner.spec.base import DnsLabel
from planner.spec.monitoring import MonitoringSpec, NoMonitoring, alerts_of

SECRET_KEYS = ("apiKey", "hfToken", "alertWebhookUrl", "alertSlackUrl", "alertSmtpPassword")


class EksClusterStackConfig(Spec):
    """What the file of an EKS cluster of its own says below `config:`, the keys without the project's name."""

    eks_cluster: EksClusterSpec
    """An EKS cluster, and nothing else in the same file: it outlives the environments that run on it."""


class StackConfig(Spec):
    """What the file of an environment says below `config:`, the keys without the project's name."""

    cluster: ClusterSpec
    """Which cluster this stack may touch."""

    nodes: Annotated[dict[DnsLabel, PoolSpec], Field(min_length=1)]
    """GPU pools by name."""

    services: Annotated[dict[DnsLabel, ServiceSpec], Field(min_length=1)]
    """vLLM services by name."""

    monitoring: MonitoringSpec = NoMonitoring(mode="none")
    """How the services are scraped, and which alerts fire."""

    @property
    def watched_services(self) -> dict[str, ServiceSpec]:
        """The services with the engine settings that their alerts need."""
        spec = self.monitoring
        if isinstance(spec, NoMonitoring):
            return self.services
        return {name: with_settings_for_alerts(each, alerts_of(spec, name)) for name, each in self.services.items()}


Config = TypeVar("Config", bound=Spec)


def sections_of(model: type[Spec]) -> tuple[str, ...]:
    """The sections of one kind of stack file."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


(EKS_CLUSTER,) = sections_of(EksClusterStackConfig)
_KEYS = (*sections_of(StackConfig), EKS_CLUSTER, *SECRET_KEYS)


def stack_config(values: Mapping[str, Any], known: Sequence[Finding] = ()) -> StackConfig:
    """Validate the sections of an environment, as `any_stack_config` does.

    Raises:
        ConfigError: with every fault at once; also where the file describes an EKS cluster of its own.
    """
    return environment_of(any_stack_config(values, known))


def environment_of(config: StackConfig | EksClusterStackConfig) -> StackConfig:
    """The configuration of an environment.

    Raises:
        ConfigError: it is the one of an EKS cluster of its own.
    """
    if isinstance(config, StackConfig):
        return config
    message = f"is a cluster of its own ({config.eks_cluster.name}): this stack has no services"
    remedy = "name the stack whose services you mean; about this one, plan, check and preview-report have answers"
    raise ConfigError([_fault(EKS_CLUSTER, message, remedy, "CFG-STACK")])


def any_stack_config(values: Mapping[str, Any], known: Sequence[Finding] = ()) -> StackConfig | EksClusterStackConfig:
    """Validate the sections of a stack file of either kind (keys without the project's name; of secrets only the keys).

    ``known``: faults that were found while the values were read; they are said with the others.

    Raises:
        ConfigError: with every fault at once. What is both kinds or neither is one fault, not a list of sections that
            are missing.
    """
    findings = [*known, *(_unknown_key(key) for key in values if key not in _KEYS)]
    meant = {key: _nearest(key) for key in values}
    others = [key for key, nearest in meant.items() if nearest not in {EKS_CLUSTER, None}]
    if EKS_CLUSTER not in meant.values():
        if not set(meant.values()) & set(sections_of(StackConfig)):
            raise ConfigError(findings or [_neither()])
        return _validated(StackConfig, values, [*findings, *_references(values)])
    if others:
        raise ConfigError([*findings, _both(others)])
    return _validated(EksClusterStackConfig, values, findings)


def _validated(model: type[Config], values: Mapping[str, Any], findings: list[Finding]) -> Config:
    sections = {key: value for key, value in values.items() if key in sections_of(model)}
    if findings and not sections:
        raise ConfigError(findings)
    try:
        # JSON mode: strict about types, and a YAML list is a tuple.
        config = model.model_validate_json(json.dumps(sections))
    except ValidationError as error:
        raise ConfigError([*findings, *findings_of(error, model)]) from None
    if findings:
        raise ConfigError(findings)
    return config


def _nearest(key: str) -> str | None:
    """The section or secret that a key is or means; ``None`` where it is like none of them."""
    return next(iter(difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.6)), None)


def _unknown_key(key: str) -> Finding:
    nearest = _nearest(key)
    hint = f"did you mean 'vllm:{nearest}'? " if nearest else ""
    remedy = f"{hint}allowed: {', '.join(f'vllm:{name}' for name in _KEYS)}"
    return _fault(key, "is no section of a stack file", remedy, "CFG-KEY")


def _both(others: Sequence[str]) -> Finding:
    message = f"stands beside {', '.join(f'vllm:{key}' for key in others)}: a cluster outlives what runs on it"
    return _fault(EKS_CLUSTER, message, "a stack file for the cluster, with this section only", "CFG-STACK")


def _neither() -> Finding:
    message = "describes neither an environment nor a cluster: none of our sections is there"
    remedy = (
        "vllm:cluster, vllm:nodes and vllm:services as in stacks/Pulumi.lab-3060.yaml, "
        f"or vllm:{EKS_CLUSTER} as in stacks/Pulumi.l40s-pair-eks-cluster.yaml"
    )
    return Finding("error", "config", message, remedy, "CFG-STACK", SECTION_SOURCE)


def _fault(key: str, message: str, remedy: str, rule: str) -> Finding:
    return Finding("error", f"vllm:{key}", message, remedy, rule, SECTION_SOURCE)


def _references(values: Mapping[str, Any]) -> list[Finding]:
    """Pools that no section names. Looked at in the raw values, so that it is said beside other faults."""
    nodes, services = values.get("nodes"), values.get("services")
    if not isinstance(nodes, dict) or not isinstance(services, dict):
        return []
    pools = {name: service.get("pool") for name, service in services.items() if isinstance(service, dict)}
    return [
        Finding(
            "error",
            f"vllm:services.{name}.pool",
            f"found {pool!r}: there is no such pool",
            f"one of {', '.join(nodes)}",
            "CFG-POOL",
            "stacks/schema.json",
        )
        for name, pool in pools.items()
        if isinstance(pool, str) and pool not in nodes
    ]
