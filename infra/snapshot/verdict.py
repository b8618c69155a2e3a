"""What the figures point at, and which field of the stack file to change.

Queue and prefill have opposite cures: a queue needs room for more requests at once, a prefill more tokens in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from infra.snapshot.difference import E2E, Difference
from planner.alerts import IDLE_BEFORE_EVICT, PREFILL_TIME, QUEUE_TIME, REUSE_GAP, TTFT
from planner.releases import Release
from planner.spec.monitoring import AlertsSpec

Name = Literal["queue-bound", "prefill-bound", "KV cache too small", "CPU-bound", "CPU-bound: not known"]
FIRST_TOKEN_SHARE = 0.25
"""Share of a request's time below which no cure of the first token is proposed while it keeps its objective: a request
could become faster by no more than this."""
BUSY_GPU_PERCENT = 60
"""Utilisation below which a GPU is taken to wait for the CPU, given load and no queue: a rule of thumb."""
LOADED = 1.0
"""Requests in the server, on average, below which a GPU that rests is no sign of anything."""
FASTOKENS = "VLLM_USE_FASTOKENS"


@dataclass(frozen=True)
class Change:
    """One field of the stack file, and what to do with it."""

    path: str
    advice: str


@dataclass(frozen=True)
class Verdict:
    """What the figures point at, the figures, and the changes that cure it, the cheapest first."""

    name: Name
    because: str
    changes: tuple[Change, ...] = ()


def verdicts(
    found: Difference, service: str = "KEY", *, alerts: AlertsSpec | None = None, release: Release | None = None
) -> tuple[Verdict, ...]:
    """What ``found`` points at; empty when nothing was served, or nothing stands out.

    ``service`` is its key in the stack file, ``alerts`` hold the objectives that it is measured by, ``release`` says
    which settings there are.
    """
    limits = alerts or AlertsSpec()
    path = f"vllm:services.{service}"
    full = _cache(found, limits, path)
    waiting = _waiting(found, limits, path, has_room=full is None)
    if found.is_idle:
        return tuple(verdict for verdict in (waiting, full) if verdict is not None)
    first = waiting or _first_token(found, limits, path, has_room=full is None)
    queue_is_low = first is None or first.name != "queue-bound"
    return tuple(
        verdict
        for verdict in (first, full, _cpu(found, path, release) if queue_is_low else None)
        if verdict is not None
    )


def _waiting(found: Difference, limits: AlertsSpec, path: str, *, has_room: bool) -> Verdict | None:
    limit = limits.queue_backlog.waiting_per_replica * found.replicas
    if found.waiting is None or found.waiting <= limit:
        return None
    because = f"{found.waiting:g} requests wait, {limit:g} are allowed"
    return Verdict("queue-bound", because, tuple(_room(path, has_room=has_room)))


def _first_token(found: Difference, limits: AlertsSpec, path: str, *, has_room: bool) -> Verdict | None:
    """Queue against prefill, where the first token is late or a large part of a request's time."""
    first, queue, prefill, rest = found.mean(TTFT), found.mean(QUEUE_TIME), found.mean(PREFILL_TIME), found.rest
    whole = found.mean(E2E)
    if first is None or queue is None or prefill is None or rest is None:
        return None
    objective = limits.ttft_slo_breach.seconds
    is_late = first > objective
    if not is_late and (not whole or first / whole < FIRST_TOKEN_SHARE):
        return None
    parts = f"of {first:.3f} s to the first token queue has {queue:.3f}, prefill {prefill:.3f}, the rest {rest:.3f}"
    because = f"{parts}; the objective is {objective:g} s" + ("" if is_late else " and kept")
    if queue >= max(prefill, rest):
        return Verdict("queue-bound", because, tuple(_room(path, has_room=has_room)))
    if prefill >= rest:
        return Verdict("prefill-bound", because, _budget(path))
    return None


def _room(path: str, *, has_room: bool) -> Iterator[Change]:
    """More requests at once. More sequences only while their KV fits."""
    if has_room:
        yield Change(f"{path}.engine.maxNumSeqs", "up, while the KV cache has room")
    yield Change(f"{path}.engine.maxModelLen", "down to what is needed")
    yield Change(f"{path}.replicas", "up")


def _budget(path: str) -> tuple[Change, ...]:
    return (
        Change(f"{path}.engine.maxNumBatchedTokens", "up; tokens then come less evenly"),
        Change(f"{path}.engine.enablePrefixCaching", "not false, and prompts that begin alike: a hit is not computed"),
    )


def _cache(found: Difference, limits: AlertsSpec, path: str) -> Verdict | None:
    signs = list(_signs_of_a_full_cache(found, limits))
    if not signs:
        return None
    changes = (
        Change(f"{path}.engine.maxNumSeqs", "down"),
        Change(f"{path}.engine.maxModelLen", "down to what is needed"),
        Change(f"{path}.engine.kvCacheDtype", "fp8"),
        Change(f"{path}.engine.gpuMemoryUtilization", "up, as far as `vllm-infra plan` lets you"),
        Change(f"{path}.replicas", "up"),
    )
    return Verdict("KV cache too small", "; ".join(signs), changes)


def _signs_of_a_full_cache(found: Difference, limits: AlertsSpec) -> Iterator[str]:
    if found.preemptions:
        yield f"{found.preemptions:g} pre-emptions: running requests lost their blocks and were computed again"
    usage = limits.kv_cache_saturated.usage
    if found.kv_usage is not None and found.kv_usage > usage:
        yield f"{found.kv_usage:.0%} of the fullest cache in use, {usage:.0%} are allowed"
    reuse, idle = _lower(found, REUSE_GAP, 0.9), _upper(found, IDLE_BEFORE_EVICT, 0.5)
    if reuse is not None and idle is not None and reuse > idle:
        yield f"1 in 10 blocks is used again after more than {reuse:g} s, half are thrown out within {idle:g} s"


def _lower(found: Difference, family: str, quantile: float) -> float | None:
    """What a percentile is at least."""
    timing = found.timings.get(family)
    return None if timing is None else next((p.above for p in timing.percentiles if p.quantile == quantile), None)


def _upper(found: Difference, family: str, quantile: float) -> float | None:
    """What a percentile is at most."""
    timing = found.timings.get(family)
    return None if timing is None else next((p.up_to for p in timing.percentiles if p.quantile == quantile), None)


def _cpu(found: Difference, path: str, release: Release | None) -> Verdict | None:
    """A GPU that rests under load and without a queue. One measurement cannot show that throughput does not grow."""
    if found.gpu_utilisation is None:
        return Verdict("CPU-bound: not known", "no GPU utilisation: name the DCGM exporter with --dcgm URL")
    if found.gpu_utilisation >= BUSY_GPU_PERCENT or found.in_flight is None or found.in_flight < LOADED:
        return None
    because = (
        f"the GPU is used {found.gpu_utilisation:.0f} % with {found.in_flight:.1f} requests in the server and a low "
        "queue; it is so if tokens per second do not grow under more load"
    )
    servers = Change(
        f"{path}.engine.apiServerCount",
        "up; their metrics are then merged, and a LoRA adapter that is loaded at run time reaches only one of them",
    )
    faster = Change(f"{path}.env.{FASTOKENS}", "'1': a faster tokeniser")
    has_it = release is not None and FASTOKENS in release.environment
    return Verdict("CPU-bound", because, (servers, faster) if has_it else (servers,))
