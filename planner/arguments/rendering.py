"""Settings to the command and the variables of a server's container."""

from __future__ import annotations

import json
from typing import Any, Literal

from planner import caches
from planner.arguments.names import CUDA_GRAPH_SIZES, TYPED, negated, typed_flag
from planner.parallel import tensor_parallel_size
from planner.releases import Flag, Release
from planner.spec import ServiceSpec

HOST = "0.0.0.0"  # noqa: S104 - probes and the Service reach the container from outside it
"""Address that the server listens on."""
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""What says engine.cpuKvCacheSpace: no flag does. Whole GiB (vllm/platforms/cpu.py)."""


def server_environment(service: ServiceSpec, kind: Literal["gpu", "cpu"]) -> dict[str, str]:
    """The variables of a server's container that follow from the stack's settings; ``kind`` is its pool's.

    The stack's own ``env`` and the secrets come on top.
    """
    values = caches.environment(service.offline, kind)
    space, endpoint = service.engine.cpu_kv_cache_space, service.cache.seed.endpoint
    if kind == "cpu" and space is not None:
        values[KV_SPACE] = str(space)
    if endpoint is not None and not service.offline:
        values["HF_ENDPOINT"] = endpoint
    return values


def render(service: ServiceSpec, release: Release) -> tuple[str, ...]:
    """The whole command of the container, the image's entrypoint overridden: ``("vllm", "serve", MODEL, …)``.

    One element for each value, JSON as one compact element, nothing for a setting that is not given. `vllm serve`
    takes the model as its first argument in every release from 0.11.0 on; only the image of 0.11.0, whose entrypoint
    is the API server's module, ignores it there. Whether the result is accepted is what ``check`` says.
    """
    words = ["vllm", "serve", service.model.id, *_pair("--served-model-name", service.model.public_name)]
    if service.model.revision is not None:
        words += _pair("--revision", service.model.revision)
    words += [*_pair("--host", HOST), *_pair("--port", service.exposure.port)]
    for field, value in _settings(service, release).items():
        flag = typed_flag(field, release)
        words += _words(flag, value) if flag is not None else ()
    timeout = release.certain("--shutdown-timeout")
    if timeout is not None and service.stop.drain_seconds != timeout.default:
        words += _pair(timeout.name, service.stop.drain_seconds)
    return (*words, *service.engine.extra_args)


def _settings(service: ServiceSpec, release: Release) -> dict[str, Any]:
    """The engine settings that are rendered, by field of EngineSpec, in the order of the fields."""
    engine = service.engine
    values = {field: getattr(engine, field) for field in TYPED}
    if values["tensor_parallel_size"] is None and tensor_parallel_size(service) > 1:
        values["tensor_parallel_size"] = tensor_parallel_size(service)
    sizes = values[CUDA_GRAPH_SIZES]
    if sizes is not None and typed_flag(CUDA_GRAPH_SIZES, release) is None:
        # The key of the compilation config has this name in all tables, also while the flag was being renamed.
        values["compilation_config"] = (engine.compilation_config or {}) | {CUDA_GRAPH_SIZES: list(sizes)}
    return {field: value for field, value in values.items() if value is not None}


def _words(flag: Flag, value: Any) -> list[str]:
    if flag.kind == "flag":
        return [flag.name] if value else negated(flag)
    if isinstance(value, dict):
        return _pair(flag.name, json.dumps(value, separators=(",", ":"), sort_keys=True))
    if isinstance(value, tuple):
        return [flag.name, *map(str, value)]
    return _pair(flag.name, value)


def _pair(flag: str, value: object) -> list[str]:
    """Flag and value as two elements; as one when argparse would take the value for another option."""
    text = str(value)
    return [f"{flag}={text}"] if text.startswith("-") and not isinstance(value, int) else [flag, text]
