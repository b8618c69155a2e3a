"""Targets of the shipped lab's service, for any release and any alerts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from planner.alerts import Target, target_of, with_settings_for_alerts
from planner.plan import ServicePlan, plan_service
from planner.spec.monitoring import ActiveMonitoring, MonitoringSpec, OperatorMonitoring, alerts_of
from tests.stack_files import config

NAMESPACE, SERVICE, MODEL = "ai-infra", "vllm-service", "qwen2.5-7b-awq"
LABELS = {"namespace": NAMESPACE, "service": SERVICE, "model_name": MODEL}


def monitoring(values: Mapping[str, Any] | None = None) -> ActiveMonitoring:
    """A section ``vllm:monitoring`` in operator mode with changes."""
    text = json.dumps({"mode": "operator", "labels": {"release": "prometheus"}, **(values or {})})
    spec = TypeAdapter(MonitoringSpec).validate_json(text)
    assert isinstance(spec, OperatorMonitoring)
    return spec


def plan(
    version: str, spec: ActiveMonitoring, changes: Mapping[str, Any] | None = None, name: str = "qwen"
) -> ServicePlan:
    """The plan of the lab's service with another release, as the program makes it."""
    stack = config(changes={"services.qwen.image.tag": f"v{version}", **(changes or {})})
    service = with_settings_for_alerts(stack.services["qwen"], alerts_of(spec, name))
    return plan_service(name, service, stack.nodes["lab"])


def target(
    version: str,
    alerts: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    replicas: int = 1,
    **overrides: Any,
) -> Target:
    """What the rules of the lab's service know."""
    return replace(_target(version, json.dumps(alerts or {}), json.dumps(changes or {}), replicas), **overrides)


@cache
def _target(version: str, alerts: str, changes: str, replicas: int) -> Target:
    spec = monitoring({"alerts": json.loads(alerts)})
    return target_of(
        plan(version, spec, json.loads(changes)),
        spec,
        namespace=NAMESPACE,
        service=SERVICE,
        servers=tuple(f"qwen-{number}" for number in range(replicas)),
        claims=tuple(f"vllm-model-{number}" for number in range(replicas)),
    )
