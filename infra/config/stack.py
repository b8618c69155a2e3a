"""A whole stack file: its sections as one model, and the checks that need more than one section."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from infra.config.errors import ConfigError, findings_of
from planner.alerts import with_settings_for_alerts
from planner.findings import Finding
from planner.spec import ClusterSpec, PoolSpec, ServiceSpec, Spec
from planner.spec.base import DnsLabel
from planner.spec.monitoring import MonitoringSpec, NoMonitoring, alerts_of

SECRET_KEYS = ("apiKey", "hfToken", "alertWebhookUrl", "alertSlackUrl", "alertSmtpPassword")


class StackConfig(Spec):
    """What a stack file says below `config:`, the keys without the project's name."""

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


def stack_config(values: Mapping[str, Any], known: Sequence[Finding] = ()) -> StackConfig:
    """Validate the sections of a stack file (keys without the project's name, secrets left out).

    ``known``: faults that were found while the values were read; they are said with the others.

    Raises:
        ConfigError: with every fault at once.
    """
    findings = [*known]
    findings += [_unknown_section(key) for key in values if key not in {*StackConfig.model_fields, *SECRET_KEYS}]
    sections = {key: value for key, value in values.items() if key in StackConfig.model_fields}
    findings += _references(sections)
    try:
        # JSON mode: strict about types, and a YAML list is a tuple.
        config = StackConfig.model_validate_json(json.dumps(sections))
    except ValidationError as error:
        raise ConfigError([*findings, *findings_of(error, StackConfig)]) from None
    if findings:
        raise ConfigError(findings)
    return config


def _unknown_section(key: str) -> Finding:
    allowed = [*StackConfig.model_fields, *SECRET_KEYS]
    close = difflib.get_close_matches(key, allowed, n=1, cutoff=0.6)
    hint = f"did you mean 'vllm:{close[0]}'? " if close else ""
    remedy = f"{hint}allowed: {', '.join(f'vllm:{name}' for name in allowed)}"
    return Finding("error", f"vllm:{key}", "is no section of a stack file", remedy, "CFG-KEY", "stacks/schema.json")


def _references(sections: Mapping[str, Any]) -> list[Finding]:
    """Pools that no section names. Looked at in the raw values, so that it is said beside other faults."""
    nodes, services = sections.get("nodes"), sections.get("services")
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
