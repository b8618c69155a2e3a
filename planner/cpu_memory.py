"""How a container's memory is divided when vLLM computes on CPUs: weights and KV cache are in the same RAM as Python.

There is no card whose memory would be planned, only the container's limit: what goes beyond it is killed by the kernel.
A worker holds its weights, what a step computes with and its KV cache; API server and engine are processes of their
own (`vllm/platforms/cpu.py`, `vllm/v1/worker/cpu_worker.py`). Everything is in MiB (2^20 bytes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.gpus import Cpu
from planner.memory import (
    MIB,
    Fits,
    KvPool,
    MemoryPlan,
    Settings,
    constants,
    kv_pool,
    largest_context,
    layer_peak,
    logged_tokens,
    sampler_peak,
    settings_of,
    since,
    token_bytes,
    unknown_parts,
    weights_bytes,
)
from planner.models import ModelFacts
from planner.releases import Release, version_number
from planner.spec import ServiceSpec, gibibytes

GIB = 1024
"""MiB of a GiB."""


@dataclass(frozen=True)
class Worker:
    """What one worker has in RAM besides its KV cache, MiB."""

    base: float
    weights: float
    activations: float

    @property
    def mib(self) -> float:
        return self.base + self.weights + self.activations


def workers_of(service: ServiceSpec, settings: Settings) -> int:
    """Processes that each hold weights and a KV cache."""
    copies = service.engine.data_parallel_size or 1
    return settings.tensor_parallel * settings.pipeline_parallel * copies


def other_processes_mib(service: ServiceSpec) -> float:
    """API servers, engines, and the libraries that all processes map, MiB."""
    servers, engines = service.engine.api_server_count or 1, service.engine.data_parallel_size or 1
    return servers * _figure("apiServerMib") + engines * _figure("engineCoreMib") + _figure("mappedMib")


def _figure(name: str) -> float:
    return float(constants()["cpu"][name]["value"])


def plan_cpu_memory(cpu: Cpu, facts: ModelFacts, release: Release, service: ServiceSpec) -> MemoryPlan:
    """Divide the container's memory as the engine will. KV figures are those of one worker."""
    settings = settings_of(cpu, facts, release, service)
    pool = kv_pool(facts, service.engine, settings)
    limit = min(gibibytes(service.resources.memory_limit) * GIB, cpu.memory_mib)
    worker = _worker(facts, service, settings)
    fixed = fixed_kv_mib(service, settings)
    requested = settings.utilization * limit if fixed is None else worker.mib + fixed
    kv = _kv(cpu, worker, settings, limit) if fixed is None else fixed
    workers, others = workers_of(service, settings), other_processes_mib(service)
    used = others + workers * (worker.mib + max(kv, 0.0))
    band = _band(facts, worker, settings)
    needed, blocks = pool.needed_mib(settings.max_model_len), pool.blocks(kv)
    typical = service.workload.typical_tokens or max(1, settings.max_model_len // 4)
    return MemoryPlan(
        requested_mib=requested,
        weights_mib=worker.weights,
        activations_mib=worker.activations,
        overhead_mib=worker.base,
        graphs_charged_mib=0.0,
        graphs_mib=0.0,
        kv_mib=kv,
        needed_mib=needed,
        kv_bytes_per_token=token_bytes(facts, service.engine, settings),
        kv_blocks=blocks,
        kv_tokens=logged_tokens(pool, blocks, settings),
        kv_tokens_compiling=logged_tokens(pool, blocks, settings),
        kv_tokens_cached=logged_tokens(pool, blocks, settings),
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        utilization=settings.utilization,
        tensor_parallel=settings.tensor_parallel,
        context_mib=others,
        used_mib=used,
        limit_mib=limit,
        band_mib=band,
        fits=_fits(kv - needed, limit - used, band, computed=fixed is None),
        largest_context=largest_context(pool, kv, facts.max_position_embeddings),
        utilization_that_fits=None,
        full_length_requests=blocks / pool.blocks_of(settings.max_model_len),
        typical_requests=_typical(pool, blocks, typical, settings),
        typical_tokens=typical,
        unknown=_unknown(facts, service, settings),
    )


def fixed_kv_mib(service: ServiceSpec, settings: Settings) -> float | None:
    """The size that the stack or the release gives a worker's KV cache; ``None``: it is what memory leaves."""
    engine = service.engine
    if engine.cpu_kv_cache_space is not None:
        return engine.cpu_kv_cache_space * GIB
    if engine.kv_cache_memory_bytes is not None and reads_kv_bytes(settings):
        return engine.kv_cache_memory_bytes / MIB
    default = _default(settings)
    return default["gib"] * GIB if default["of"] == "nothing" else None


def reads_kv_bytes(settings: Settings) -> bool:
    """Whether the release heeds ``kvCacheMemoryBytes`` and ``gpuMemoryUtilization`` on CPUs."""
    return settings.version >= version_number(constants()["cpu"]["kvBytesSince"]["value"])


def _default(settings: Settings) -> Mapping[str, Any]:
    """How the release sizes the KV cache when nothing is said."""
    found: Mapping[str, Any] = since(constants()["cpu"]["kvDefault"], settings.version)
    return found


def _kv(cpu: Cpu, worker: Worker, settings: Settings, limit: float) -> float:
    """What the release takes of the memory that it finds, for each worker."""
    default = _default(settings)
    if default["of"] == "node":
        return float(default["share"] * cpu.memory_mib / (settings.tensor_parallel * settings.pipeline_parallel))
    # What the engine takes off is the worker's resident memory, mapped libraries included.
    return settings.utilization * limit - worker.mib - _figure("mappedMib")


def _worker(facts: ModelFacts, service: ServiceSpec, settings: Settings) -> Worker:
    return Worker(
        base=_figure("workerMib") + (_figure("compileMib") if settings.compiles else 0.0),
        weights=weights_bytes(facts, service.engine, settings) / MIB,
        activations=max(layer_peak(facts, settings), sampler_peak(facts, settings)),
    )


def _band(facts: ModelFacts, worker: Worker, settings: Settings) -> float:
    """How far the container's memory may be from the plan, MiB."""
    figures = {name: entry["value"] for name, entry in constants()["band"].items()}
    band = _figure("bandMib") + (figures["estimatedWeightsShare"] * worker.weights if facts.estimated else 0)
    band += figures["unknownLayoutShare"] * worker.weights if facts.unknown else 0
    measured = settings.version == version_number(constants()["cpu"]["measuredRelease"]["value"])
    unmeasured = (settings.tensor_parallel > 1, facts.experts is not None, not measured)
    return float(band + sum(unmeasured) * figures["unmeasuredMib"])


def _fits(room: float, free: float, band: float, *, computed: bool) -> Fits:
    """Compare what one full-length request leaves of the KV cache, and the container's memory with its limit.

    A KV cache whose size was given has no uncertainty of its own.
    """
    spare = room if computed else (math.inf if room >= 0 else -math.inf)
    least = min(spare, free)
    if least < -band:
        return "no"
    return "yes" if least >= band else "within band"


def _typical(pool: KvPool, blocks: int, tokens: int, settings: Settings) -> float:
    return min(blocks / pool.blocks_of(tokens), settings.max_num_seqs)


def _unknown(facts: ModelFacts, service: ServiceSpec, settings: Settings) -> tuple[str, ...]:
    notes = {
        "how several workers divide the memory of NUMA nodes": workers_of(service, settings) > 1,
        "which attention kernel the CPUs have for a latent KV cache": facts.kv_lora_rank is not None,
    }
    return (*unknown_parts(facts, service.engine, settings), *(note for note, holds in notes.items() if holds))
