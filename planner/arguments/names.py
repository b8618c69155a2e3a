"""Which flag says which setting, and how a flag is spelled."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.releases import Flag, Release
from planner.spec import EngineSpec

TYPED: Mapping[str, tuple[str, ...]] = {
    field: (f"--{field.replace('_', '-')}",)
    for field in EngineSpec.model_fields
    if field not in {"extra_args", "cpu_kv_cache_space"}
} | {"cudagraph_capture_sizes": ("--cudagraph-capture-sizes", "--cuda-graph-sizes")}
"""Fields of EngineSpec and the flags that say them, the newest first."""
OWNED: Mapping[str, str] = {
    "--model": "model.id",
    "--served-model-name": "model.servedName",
    "--revision": "model.revision",
    "--port": "exposure.port",
    "--host": "exposure (the server listens on every address of its pod)",
    "--api-key": "the secret vllm:apiKey",
    "--hf-token": "the secret vllm:hfToken",
    "--shutdown-timeout": "stop.drainSeconds",
    "--download-dir": "cache",
} | {flag: f"engine.{EngineSpec.model_fields[field].alias}" for field, flags in TYPED.items() for flag in flags}
"""Flags that one typed field or secret says already, and which one."""
SUPERSEDED: Mapping[str, str] = {flag: field for field, flags in TYPED.items() for flag in flags[1:]}
"""Older names of a flag and the field that renders it: recipes of their release carry them."""
CUDA_GRAPH_SIZES = "cudagraph_capture_sizes"
OPTION = re.compile(r"--?[A-Za-z]")
OPTIMIZATION = re.compile(r"-O(?P<level>\d)")


def typed_flag(field: str, release: Release) -> Flag | None:
    """The flag that says a field in this release; of a flag with two names the one that is certain."""
    names = TYPED[field]
    certain = next((flag for flag in map(release.certain, names) if flag is not None), None)
    return certain or (release.find(names[0]) if len(names) == 1 else None)


def negated(flag: Flag) -> list[str]:
    """The spelling of false. `--no-…` is taken by every release that has a negation at all."""
    spelled = sorted(flag.negations, key=lambda each: not each.startswith("--no-"))
    return spelled[:1]


def dashed(word: str) -> str:
    """The word with dashes for the underscores of an option's name, as vLLM's parser reads it."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    head, dot, rest = name.partition(".")
    return f"{head.replace('_', '-')}{dot}{rest}{equals}{value}"
