"""What is wrong with the environment variables of a service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from planner.arguments.extra import ExtraArgument, set_flags
from planner.findings import Finding, Level
from planner.releases import Release, environment_status
from planner.spec import ServiceSpec

BACK_DOORS: Mapping[str, str] = {
    "VLLM_SERVER_DEV_MODE": "endpoints that run any method on the workers and show the whole configuration",
    "VLLM_TORCH_PROFILER_DIR": "/start_profile and /stop_profile",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "endpoints that load an adapter from any path or hub name the caller gives",
}
"""Variables that add endpoints which the API key does not guard, or which load what a caller names."""
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|API_?KEY|ACCESS_KEY|ACCESS_KEY_ID|SECRET|SECRET_KEY|PASSWORD|PASSWD|PRIVATE_KEY|CREDENTIALS?)$"
)
_SECRET_VALUE = re.compile(r"^(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|AKIA[A-Z0-9]{16})$|://[^/@\s:]*:[^/@\s]+@")
_SETTING_VALUE = re.compile(r"(?:|\d+|true|false|yes|no|on|off)", re.IGNORECASE)
_OFF = ("", "0", "false")


def check_environment(service: ServiceSpec, extra: tuple[ExtraArgument, ...], release: Release) -> Iterator[Finding]:
    """Each variable by itself, and secrets among them."""
    given = set_flags(extra, release)
    fatal = "--fail-on-environ-validation" in given and given["--fail-on-environ-validation"][1] is True
    for name, value in service.env.items():
        path = f"env.{name}"
        yield from _check_secret(path, name, value)
        yield from _check_back_door(path, name, value, service, release)
        if name.startswith("VLLM_"):
            yield from _check_known(path, name, release, fatal)
    updating = service.env.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "")
    if (service.engine.api_server_count or 1) > 1 and updating.lower() not in _OFF:
        message = "more than one API server excludes VLLM_ALLOW_RUNTIME_LORA_UPDATING"
        yield Finding(
            "error", "engine.apiServerCount", message, "set it to 1", "ARG-3", "vllm/entrypoints/cli/serve.py"
        )


def _check_known(path: str, name: str, release: Release, fatal: bool) -> Iterator[Finding]:
    status = environment_status(release, name)
    if status.status == "known":
        return
    doubt = status.status == "uncertain"
    message = (
        f"whether vLLM {release.version} reads {name} is not known"
        if doubt
        else (f"vLLM {release.version} does not read {name}")
    )
    level: Level = "error" if fatal and not doubt else "warn"
    yield Finding(level, path, message, status.remedy, "ARG-3", status.source)


def _check_back_door(path: str, name: str, value: str, service: ServiceSpec, release: Release) -> Iterator[Finding]:
    known = environment_status(release, name).status in ("known", "uncertain")
    if name not in BACK_DOORS or not known or value.lower() in _OFF:
        return
    exposure = service.exposure
    named = bool(exposure.allow_from.namespaces or exposure.allow_from.cidrs)
    accepted = name in service.security.accepted_back_doors and exposure.type == "ClusterIP" and named
    yield Finding(
        "warn" if accepted else "error",
        path,
        f"{name} adds {BACK_DOORS[name]}",
        "remove it, or name it in security.acceptedBackDoors of a ClusterIP service whose clients exposure.allowFrom "
        "names",
        "SEC-DEV",
        "vllm/entrypoints/openai/api_server.py",
    )


def _check_secret(path: str, name: str, value: str) -> Iterator[Finding]:
    """A secret by its name or its form. The value is never repeated."""
    by_name = _SECRET_NAME.search(name.upper()) and not _SETTING_VALUE.fullmatch(value)
    if by_name or _SECRET_VALUE.search(value):
        secret = "vllm:hfToken" if "HF_" in name or "HUGGING" in name else "vllm:apiKey"
        remedy = (
            f"use `pulumi config set --secret {secret}` if it is that one; "
            "what is in env stands in the state, in the cluster and in every diff in the clear"
        )
        yield Finding("error", path, f"{name} looks like a secret", remedy, "SEC-ENV", "https://12factor.net/config")
