"""Reading the stack's configuration inside the Pulumi program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime import config as runtime_config

from infra.config.errors import ConfigError
from infra.config.measurements import with_measurements
from infra.config.stack import SECRET_KEYS, EksClusterStackConfig, StackConfig, any_stack_config
from infra.config.stack_file import PROJECT, STACKS
from planner.findings import Finding


@dataclass(frozen=True)
class StackSecrets:
    """The secrets of a stack; each stays a Pulumi secret from the file to the cluster."""

    api_key: pulumi.Output[str] | None
    hf_token: pulumi.Output[str] | None
    alerts: Mapping[str, pulumi.Output[str]]

    @property
    def present(self) -> frozenset[str]:
        """The keys of the secrets that the stack sets."""
        values = {"apiKey": self.api_key, "hfToken": self.hf_token}
        return frozenset(key for key, value in values.items() if value is not None) | self.alerts.keys()


def load() -> tuple[StackConfig | EksClusterStackConfig, StackSecrets]:
    """The configuration and the secrets of the stack that runs.

    ``pulumi.Config`` cannot list keys, so every key of the project's namespace is read from the raw
    configuration: a misspelt section is then a fault and not silence.

    Raises:
        ConfigError: with every fault at once.
    """
    raw = {**runtime_config.get_config_env(), **runtime_config.CONFIG.get()}
    prefix = f"{PROJECT}:"
    values = {key.removeprefix(prefix): value for key, value in raw.items() if key.startswith(prefix)}
    sections = {key: None if key in SECRET_KEYS else _parsed(key, value) for key, value in values.items()}
    return any_stack_config(*with_measurements(sections, STACKS)), _secrets(values)


def _parsed(key: str, value: Any) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        finding = Finding("error", f"vllm:{key}", "is no section but a single value", "write a mapping", "CFG-VALUE")
        raise ConfigError([finding]) from None


def _secrets(values: Mapping[str, Any]) -> StackSecrets:
    config = pulumi.Config(PROJECT)
    found = {key: config.require_secret(key) if key in values else None for key in SECRET_KEYS}
    alerts = {key: value for key, value in found.items() if key.startswith("alert") and value is not None}
    return StackSecrets(api_key=found["apiKey"], hf_token=found["hfToken"], alerts=alerts)
