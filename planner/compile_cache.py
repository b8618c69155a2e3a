"""What a change does to the compile cache: whether the next start finds its entry or compiles once more.

vLLM keeps one entry for each combination of what its key is made of, inside a folder that we choose. Which settings,
flags and variables are part of the key differs between releases (``data/compile_cache.json``); a release between two
tables counts for certain what both count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from planner import caches
from planner.arguments import ArgumentsError, parse
from planner.clocks import engine_patience
from planner.gpus import Gpu
from planner.memory import capture_sizes, settings_of
from planner.plan import ServicePlan
from planner.releases import version_number
from planner.spec import ExistingClaimCache, HostPathCache
from planner.startup import CacheState, plan_startup

Verdict = Literal["hit", "miss", "perhaps", "off"]

_REPLACED_BY_SETTINGS = frozenset(
    f"--{name}"
    for name in (
        *("dtype", "max-model-len", "tensor-parallel-size", "pipeline-parallel-size", "max-num-batched-tokens"),
        *("max-num-seqs", "block-size", "cudagraph-capture-sizes", "cuda-graph-sizes", "enforce-eager"),
    )
)
"""Flags whose resolved value is among the settings: left out and given as the default are then the same."""

_DTYPES = {"half": "float16", "float": "float32"}
_KERNELS_FROM_FOLDER = CacheState(image=True, weights=True, page_cache=True, compile_cache=False)
_EVERYTHING = CacheState(image=True, weights=True, page_cache=True, compile_cache=True)


@dataclass(frozen=True)
class CompileCacheKey:
    """What one service's compile cache depends on. All values are text, so that a key survives JSON as it is.

    ``folder`` is where the entries lie: another volume, image or GPU is an empty folder. ``counted`` is part of the
    key for certain, ``possible`` only by the next known release. ``miss_seconds`` is what a start that compiles takes
    longer than one that hits.
    """

    folder: Mapping[str, str]
    counted: Mapping[str, str]
    possible: Mapping[str, str]
    compiles: bool
    miss_seconds: float
    kv_tokens_compiling: int
    kv_tokens_cached: int

    @property
    def digest(self) -> str:
        """Ten hex digits that differ when the next start may have to compile."""
        entry = [dict(self.counted), dict(self.possible)] if self.compiles else []
        parts = [dict(self.folder), entry]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]

    def as_data(self) -> dict[str, Any]:
        """The key as JSON has it; ``from_data`` reads it."""
        return asdict(self)


@dataclass(frozen=True)
class CompileCacheChange:
    """What the first start after a change finds.

    ``verdict`` is ``off`` where nothing is compiled before and after. ``changed`` names the inputs that differ.
    ``seconds`` is what that start takes longer than the ones after it; the second start is the first that can hit.
    ``kv_tokens_first`` and ``kv_tokens_after`` are the KV cache of that start and of the ones after it, tokens.
    """

    verdict: Verdict
    changed: tuple[str, ...]
    seconds: float
    kv_tokens_first: int
    kv_tokens_after: int


def from_data(data: Mapping[str, Any]) -> CompileCacheKey:
    """A key from what ``as_data`` returned.

    Raises:
        TypeError: ``data`` is none.
    """
    return CompileCacheKey(**data)


def key_of(plan: ServicePlan) -> CompileCacheKey:
    """Everything that decides which entry the service's next start looks for."""
    inputs = dict(_inputs(plan))
    certain, next_known = _entries(plan.release.version)
    counted = {name: value for name, value in inputs.items() if _counts(certain, name) and _counts(next_known, name)}
    either = {name: value for name, value in inputs.items() if _counts(certain, name) or _counts(next_known, name)}
    settings = settings_of(plan.gpu, plan.model, plan.release, plan.service)
    return CompileCacheKey(
        folder=dict(_folder(plan)),
        counted=counted,
        possible={name: value for name, value in either.items() if name not in counted},
        compiles=settings.compiles,
        miss_seconds=round(_miss_seconds(plan), 1),
        kv_tokens_compiling=plan.memory.kv_tokens_compiling,
        kv_tokens_cached=plan.memory.kv_tokens_cached,
    )


def compare(old: CompileCacheKey | None, new: CompileCacheKey) -> CompileCacheChange:
    """What the first start after a change finds; ``old`` is None for a service that is new.

    A miss is certain unless the same configuration ran before on the same volume: its entry may still be there.
    """
    if old is None:
        return _change("miss" if new.miss_seconds else "off", ("a new service",), new)
    moved = _differences(old.folder, new.folder)
    if moved:
        return _change("miss" if new.miss_seconds else "off", moved, new)
    if not new.compiles:
        return _change("off", (), new)
    if not old.compiles:
        return _change("miss", ("engine.enforceEager",), new)
    certain, possible = _differences(old.counted, new.counted), _differences(old.possible, new.possible)
    if certain or possible:
        return _change("miss" if certain else "perhaps", (*certain, *possible), new)
    return _change("hit", (), new)


def _change(verdict: Verdict, changed: tuple[str, ...], new: CompileCacheKey) -> CompileCacheChange:
    compiling = verdict in {"miss", "perhaps"}
    return CompileCacheChange(
        verdict=verdict,
        changed=changed,
        seconds=new.miss_seconds if compiling else 0.0,
        kv_tokens_first=new.kv_tokens_compiling if compiling else new.kv_tokens_cached,
        kv_tokens_after=new.kv_tokens_cached,
    )


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def _miss_seconds(plan: ServicePlan) -> float:
    arguments = (plan.gpu, plan.model, plan.release, plan.service, plan.pool)
    return plan_startup(*arguments, _KERNELS_FROM_FOLDER).seconds - plan_startup(*arguments, _EVERYTHING).seconds


def _folder(plan: ServicePlan) -> Iterator[tuple[str, str]]:
    """Where the entries lie, by the fields that decide it."""
    yield "image and GPU", caches.compile_cache_key(plan.service.image, plan.gpu.name, 0)
    cache_spec = plan.service.cache
    if isinstance(cache_spec, HostPathCache):
        yield "cache.path", f"{cache_spec.node or ''}:{cache_spec.path}"
    elif isinstance(cache_spec, ExistingClaimCache):
        yield "cache.claimName", cache_spec.claim_name
    else:
        yield "cache.claimName", cache_spec.claim_name or f"{plan.name}-cache"


def _inputs(plan: ServicePlan) -> Iterator[tuple[str, str]]:
    """Everything that some release counts: the model, resolved settings, flags that are not the default, variables."""
    yield "model.id", plan.service.model.id
    yield from _settings(plan)
    yield from _flags(plan)
    known = plan.release.environment | plan.release.environment_uncertain
    variables = {**engine_patience(plan.release, plan.clocks), **plan.service.env}
    for name, value in variables.items():
        if name in known:
            yield f"env.{name}", value


def _settings(plan: ServicePlan) -> Iterator[tuple[str, str]]:
    settings = settings_of(plan.gpu, plan.model, plan.release, plan.service)
    asked = plan.service.engine.dtype or "auto"
    # `auto` takes the model's own type, except that it never computes in float32 (vllm/config/model.py).
    own = plan.model.dtype if plan.model.dtype in {"float16", "bfloat16"} else "auto"
    yield "engine.dtype", own if asked == "auto" else _DTYPES.get(asked, asked)
    yield "engine.maxModelLen", str(settings.max_model_len)
    yield "engine.tensorParallelSize", str(settings.tensor_parallel)
    yield "engine.pipelineParallelSize", str(settings.pipeline_parallel)
    yield "engine.maxNumBatchedTokens", str(settings.max_num_batched_tokens)
    yield "engine.maxNumSeqs", str(settings.max_num_seqs)
    yield "engine.blockSize", str(settings.block_size)
    if settings.captures and isinstance(plan.gpu, Gpu):
        sizes = capture_sizes(
            plan.gpu, settings.version, plan.service.engine, settings.max_num_seqs, settings.max_num_batched_tokens
        )
        yield "engine.cudagraphCaptureSizes", " ".join(map(str, sizes))


def _flags(plan: ServicePlan) -> Iterator[tuple[str, str]]:
    """Flags of the command that say something else than the release's default, JSON flags key by key."""
    try:
        given = parse(plan.argv, plan.release)
    except ArgumentsError:
        # A command that the parser refuses never starts; a rule says so.
        return
    for name, value in given.items():
        flag = plan.release.find(name)
        if flag is None or name in _REPLACED_BY_SETTINGS or value == flag.default:
            continue
        if isinstance(value, dict):
            for key, inner in value.items():
                yield f"{name}.{key}", json.dumps(inner, sort_keys=True)
        else:
            yield name, json.dumps(value)


def _counts(entry: Mapping[str, Any], name: str) -> bool:
    """Whether an input is part of the key by one entry of the table."""
    if name == "model.id":
        return True
    kind, _, rest = name.partition(".")
    if kind == "engine":
        return rest in entry["settings"]
    if kind == "env":
        counted = entry.get("countedEnvironment")
        return rest in counted if counted is not None else rest not in entry["ignoredEnvironment"]
    if "countedFlags" in entry:
        keys = entry["countedKeys"].get(kind)
        return kind in entry["countedFlags"] and (keys is None or rest in keys)
    return not any(kind in flags for flags in entry["ignoredFlags"].values())


@cache
def _table() -> tuple[Mapping[str, Any], ...]:
    """The entries of ``data/compile_cache.json``, oldest first, each complete."""
    text = (resources.files("planner") / "data" / "compile_cache.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = {}
    for entry in json.loads(text)["keys"]:
        entries[entry["since"]] = {**entries.get(entry.get("ignoredLike", ""), {}), **entry}
    return tuple(entries.values())


def _entries(version: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The last entry that is not newer than a release, and the next one where the release lies between two."""
    number = version_number(version)
    older = [entry for entry in _table() if version_number(entry["since"]) <= number]
    newer = [entry for entry in _table() if version_number(entry["since"]) > number]
    current = older[-1]
    return current, current if current["since"] == version or not newer else newer[0]
