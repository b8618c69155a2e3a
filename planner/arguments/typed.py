"""What is wrong with the typed settings of an engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from planner.arguments.names import CUDA_GRAPH_SIZES, TYPED, typed_flag
from planner.arguments.values import check_json, check_value
from planner.findings import Finding
from planner.releases import Flag, Release, flag_status
from planner.spec import EngineSpec, ServiceSpec


def check_typed(service: ServiceSpec, release: Release, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Each typed field by itself."""
    for field in TYPED:
        value = getattr(service.engine, field)
        if value is None:
            continue
        path = f"engine.{EngineSpec.model_fields[field].alias}"
        flag = typed_flag(field, release)
        if flag is not None:
            yield from _check_certain(path, flag, release)
            yield from _check_typed_value(path, flag, value, release, variables)
        elif field != CUDA_GRAPH_SIZES:
            status = flag_status(release, TYPED[field][0])
            yield Finding(
                "error",
                path,
                f"vLLM {release.version} has no {TYPED[field][0]}",
                f"leave it out, or change image.tag: {status.remedy}",
                "ARG-3",
                status.source,
            )
    if service.engine.cudagraph_capture_sizes and CUDA_GRAPH_SIZES in (service.engine.compilation_config or {}):
        yield Finding(
            "error",
            "engine.compilationConfig",
            f"{CUDA_GRAPH_SIZES} is set here and in engine.cudagraphCaptureSizes",
            "keep engine.cudagraphCaptureSizes",
            "NAM-2",
            "vllm/config/vllm.py",
        )


def _check_certain(path: str, flag: Flag, release: Release) -> Iterator[Finding]:
    if release.certain(flag.name) is None:
        status = flag_status(release, flag.name)
        message = f"whether vLLM {release.version} has {flag.name} is not known"
        yield Finding("warn", path, message, status.remedy, "ARG-3", status.source)


def _check_typed_value(
    path: str, flag: Flag, value: Any, release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    if flag.kind == "flag":
        if value is False and not flag.negations and flag.default:
            yield Finding(
                "error", path, f"vLLM {release.version} cannot switch {flag.name} off", "leave it out", "ARG-3", ""
            )
        return
    if isinstance(value, dict):
        yield from _check_json_writable(path, value)
        yield from check_json(path, flag, value, release, variables)
        return
    for each in value if isinstance(value, tuple) else (value,):
        yield from check_value(path, flag, str(each), release, variables)


def _check_json_writable(path: str, value: dict[str, Any]) -> Iterator[Finding]:
    """YAML can say more than JSON: dates, numbers as keys, infinity."""
    try:
        kept = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        kept = False
    if not kept:
        message = "holds something that JSON cannot say, such as a date, a number as a key or infinity"
        yield Finding("error", path, message, "quote it", "ARG-5", "https://www.rfc-editor.org/rfc/rfc8259")
