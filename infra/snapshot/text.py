"""A difference for a person, and the same for a program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from infra.snapshot.difference import DECODE_TIME, E2E, Difference, Percentile, Timing
from infra.snapshot.verdict import Verdict
from planner.alerts import IDLE_BEFORE_EVICT, ITL, PREFILL_TIME, QUEUE_TIME, REUSE_GAP, TTFT

UNKNOWN = "not known"
TITLES = {
    TTFT: "first token",
    QUEUE_TIME: "queue",
    PREFILL_TIME: "prefill",
    ITL: "between tokens",
    DECODE_TIME: "decode",
    E2E: "whole request",
    REUSE_GAP: "block used again after",
    IDLE_BEFORE_EVICT: "block idle before it goes",
}
KEYS = {
    TTFT: "timeToFirstToken",
    QUEUE_TIME: "queue",
    PREFILL_TIME: "prefill",
    ITL: "interTokenLatency",
    DECODE_TIME: "decode",
    E2E: "endToEnd",
    REUSE_GAP: "kvBlockReuseGap",
    IDLE_BEFORE_EVICT: "kvBlockIdleBeforeEvict",
}


def render(name: str, found: Difference, points: Sequence[Verdict]) -> str:
    """A difference and what it points at, for a person."""
    lines = [_title(name, found)]
    if not found.is_idle:
        lines += [f"  {label:<16}{said}" for label, said in _served(found)]
    lines += [f"  {label:<16}{said}" for label, said in _now(found)]
    lines += [f"  {line}" for line in _percentiles(found)]
    lines += [f"  note: {note}" for note in found.notes]
    for verdict in points:
        lines.append(
            f"  points at {verdict.name}: {verdict.because}"
            if verdict.changes
            else f"  {verdict.name}: {verdict.because}"
        )
        lines += [f"    {change.path}: {change.advice}" for change in verdict.changes]
    if not found.is_idle and not any(verdict.changes for verdict in points):
        lines.append("  points at nothing in the stack file")
    return "\n".join(lines)


def _title(name: str, found: Difference) -> str:
    within = "" if found.seconds is None else f" in {found.seconds:.0f} s"
    if found.is_idle:
        return f"{name}: nothing was served between the readings{within}: no request ended, no token went in or out"
    replicas = "" if found.replicas == 1 else f", {found.replicas} replicas together"
    return (
        f"{name}: {_count(found.requests)} {'request' if found.requests == 1 else 'requests'} ended{within}{replicas}"
    )


def _served(found: Difference) -> Iterator[tuple[str, str]]:
    rate = ""
    if found.seconds and found.generated_tokens is not None:
        rate = f" ({found.generated_tokens / found.seconds:,.1f} per second)"
    yield "tokens", f"{_count(found.prompt_tokens)} of prompts, {_count(found.generated_tokens)} generated{rate}"
    hits = f"{_count(found.prefix_hits)} of {_count(found.prefix_queries)} prompt tokens"
    yield "prefix cache", hits + ("" if found.hit_rate is None else f" ({found.hit_rate:.1%})")
    yield TITLES[TTFT], _first_token(found)
    yield TITLES[ITL], _span(found.mean(ITL))
    yield TITLES[E2E], _whole(found)
    if found.preemptions is not None:
        yield "pre-emptions", _count(found.preemptions)


def _first_token(found: Difference) -> str:
    first = found.mean(TTFT)
    said = f"{_span(first)} = queue {_span(found.mean(QUEUE_TIME))} + prefill {_span(found.mean(PREFILL_TIME))}"
    rest = found.rest
    return f"{said} + rest {_span(rest)}" + (f" ({rest / first:.0%})" if rest is not None and first else "")


def _whole(found: Difference) -> str:
    parts = [
        f"{TITLES[family]} {_span(found.mean(family))}, {share:.2%}"
        for family, share in ((each, found.share(each, E2E)) for each in (PREFILL_TIME, DECODE_TIME))
        if share is not None and found.mean(family) is not None
    ]
    return _span(found.mean(E2E)) + (f" ({'; '.join(parts)})" if parts else "")


def _now(found: Difference) -> Iterator[tuple[str, str]]:
    yield "now", f"{_count(found.running)} running, {_count(found.waiting)} waiting"
    size = "" if found.kv_tokens is None else f"; all caches hold {found.kv_tokens:,} tokens"
    usage = UNKNOWN if found.kv_usage is None else f"{found.kv_usage:.2%} in use in the fullest, at either reading"
    yield "KV cache", usage + size
    if found.gpu_utilisation is not None:
        yield "GPU", f"{found.gpu_utilisation:.0f} % used"


def _percentiles(found: Difference) -> Iterator[str]:
    for family, timing in found.timings.items():
        if timing.percentiles:
            yield f"{TITLES[family]}: {', '.join(_in_buckets(timing.percentiles))}"


def _in_buckets(percentiles: Sequence[Percentile]) -> Iterator[str]:
    """Percentiles by the bucket that they lie in."""
    for (above, up_to), group in groupby(percentiles, key=lambda one: (one.above, one.up_to)):
        names = "/".join(f"p{one.quantile * 100:g}" for one in group)
        if above == 0:
            yield f"{names} at most {_edge(up_to)} (lowest bucket)"
        elif math.isinf(up_to):
            yield f"{names} above {_edge(above)} (beyond the last bucket)"
        else:
            yield f"{names} {_edge(above)} to {_edge(up_to)}"


def _edge(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{seconds * 1000:.2f} ms" if abs(seconds) < 1 else f"{seconds:.3f} s"


def _count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.0f}"


def document(found: Difference, points: Sequence[Verdict]) -> dict[str, Any]:
    """The same as JSON: seconds, tokens, shares from 0 to 1; ``null`` is what is not known."""
    return {
        "replicas": found.replicas,
        "seconds": found.seconds,
        "idle": found.is_idle,
        "requests": found.requests,
        "promptTokens": found.prompt_tokens,
        "generatedTokens": found.generated_tokens,
        "prefixCache": {"queries": found.prefix_queries, "hits": found.prefix_hits, "hitRate": found.hit_rate},
        "preemptions": found.preemptions,
        "running": found.running,
        "waiting": found.waiting,
        "kvCache": {"usage": found.kv_usage, "tokens": found.kv_tokens},
        "gpuUtilisationPercent": found.gpu_utilisation,
        "timings": {KEYS[family]: _timing(timing) for family, timing in found.timings.items()},
        "timeToFirstTokenRestSeconds": found.rest,
        "prefillShare": found.share(PREFILL_TIME, E2E),
        "decodeShare": found.share(DECODE_TIME, E2E),
        "notes": list(found.notes),
        "pointsAt": [
            {
                "name": verdict.name,
                "because": verdict.because,
                "changes": [{"path": change.path, "advice": change.advice} for change in verdict.changes],
            }
            for verdict in points
        ],
    }


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "meanSeconds": timing.mean,
        "count": timing.count,
        "percentiles": {
            f"p{one.quantile * 100:g}": {
                "above": one.above,
                "upTo": None if math.isinf(one.up_to) else one.up_to,
                "estimate": one.estimate,
                "lowestBucket": one.is_lowest,
            }
            for one in timing.percentiles
        },
    }
