"""What happened between two readings: counters subtracted per replica and summed, means and percentiles.

Means are quotients of sums and counts. Percentiles come from buckets and are only as fine as these: of queue and
prefill the lowest ends at 0.3 s, so that theirs say nothing about a service that answers quickly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from infra.snapshot.reading import PREFIX, STARTED, Exposition, Labels
from planner.alerts import (
    GENERATED,
    HITS,
    IDLE_BEFORE_EVICT,
    ITL,
    KV_USAGE,
    PREEMPTIONS,
    PREFILL_TIME,
    PROMPTED,
    QUERIES,
    QUEUE_TIME,
    REUSE_GAP,
    RUNNING,
    TTFT,
    WAITING,
)
from planner.metrics import Metrics, unknown

E2E = "vllm:e2e_request_latency_seconds"
DECODE_TIME = "vllm:request_decode_time_seconds"
CONFIGURATION = "vllm:cache_config_info"
OLDER: Mapping[str, str] = MappingProxyType(
    {
        ITL: "vllm:time_per_output_token_seconds",
        KV_USAGE: "vllm:gpu_cache_usage_perc",
        HITS: "vllm:gpu_prefix_cache_hits_total",
        QUERIES: "vllm:gpu_prefix_cache_queries_total",
    }
)
"""What a family was called in a release before (vllm#24245, vllm#32661; planner/data/metric_history.json)."""
QUANTILES = (0.5, 0.9, 0.95, 0.99)
MONOTONE = ("_total", "_count", "_sum", "_bucket")
"""Samples that only grow while their process lives."""


@dataclass(frozen=True)
class Percentile:
    """Where a quantile of a histogram lies: between two edges of a bucket.

    ``above`` is 0 in the lowest bucket, ``up_to`` infinite beyond the last edge. ``estimate`` is what
    ``histogram_quantile`` would answer, ``None`` where it would be an invention: in the lowest and beyond the last.
    """

    quantile: float
    above: float
    up_to: float
    estimate: float | None

    @property
    def is_lowest(self) -> bool:
        """Whether it lies in the lowest bucket: all that is known is an upper bound."""
        return self.above == 0


@dataclass(frozen=True)
class Timing:
    """One histogram between the readings: seconds in all, observations, percentiles (none without buckets)."""

    seconds: float
    count: float
    percentiles: tuple[Percentile, ...] = ()

    @property
    def mean(self) -> float | None:
        """Seconds of one observation."""
        return self.seconds / self.count if self.count else None


@dataclass(frozen=True)
class Difference:
    """Between two readings, all replicas together. ``None``: the pages do not have it.

    ``seconds`` lie between the readings (``None`` for saved pages). ``requests`` have ended. ``running`` and
    ``waiting`` are those of the second reading, ``kv_usage`` is the fullest cache at either (0 to 1), ``kv_tokens``
    what all caches hold. ``gpu_utilisation`` is in %. ``notes`` say what makes the figures less than they seem.
    """

    replicas: int
    seconds: float | None
    requests: float | None
    prompt_tokens: float | None
    generated_tokens: float | None
    prefix_queries: float | None
    prefix_hits: float | None
    preemptions: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    kv_tokens: int | None
    timings: Mapping[str, Timing]
    gpu_utilisation: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing was computed: no request ended and no token went in or out."""
        return not (self.requests or self.prompt_tokens or self.generated_tokens)

    def mean(self, family: str) -> float | None:
        """Mean seconds of a histogram."""
        return self.timings[family].mean if family in self.timings else None

    @property
    def rest(self) -> float | None:
        """Mean of what is neither queue nor prefill in the time to the first token, seconds: API server, tokenising,
        waiting for the event loop."""
        first, queue, prefill = self.mean(TTFT), self.mean(QUEUE_TIME), self.mean(PREFILL_TIME)
        return None if first is None or queue is None or prefill is None else first - queue - prefill

    def share(self, part: str, whole: str) -> float | None:
        """Seconds of one histogram over those of another."""
        if part not in self.timings or whole not in self.timings or not self.timings[whole].seconds:
            return None
        return self.timings[part].seconds / self.timings[whole].seconds

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that came from the prefix cache."""
        return None if self.prefix_hits is None or not self.prefix_queries else self.prefix_hits / self.prefix_queries

    @property
    def in_flight(self) -> float | None:
        """Mean number of requests in the server, by Little's law from the requests that ended."""
        whole = self.timings.get(E2E)
        return None if whole is None or not self.seconds else whole.seconds / self.seconds


TIMINGS = (TTFT, QUEUE_TIME, PREFILL_TIME, ITL, DECODE_TIME, E2E, REUSE_GAP, IDLE_BEFORE_EVICT)


def difference(
    before: Mapping[str, Exposition],
    after: Mapping[str, Exposition],
    *,
    seconds: float | None = None,
    metrics: Metrics | None = None,
    gpu_utilisation: float | None = None,
) -> Difference:
    """Subtract the pages of ``before`` from those of ``after``, by replica, and sum.

    A replica whose counters restarted, and one that is new, counts from 0, as Prometheus' ``increase`` has it. One that
    is gone counts for nothing. ``metrics`` is what the declared release exports: a missing name is then said.
    """
    names = {family: _name_in(after, family) for family in (*TIMINGS, KV_USAGE, HITS, QUERIES)}
    grown = [_growth(before.get(replica), page) for replica, page in after.items()]
    requests = _sum(grown, f"{E2E}_count")
    timings = {family: _timing(grown, names[family], requests) for family in TIMINGS}
    fullest = [
        max(page.samples[names[KV_USAGE]].values())
        for page in _having([*before.values(), *after.values()], names[KV_USAGE])
    ]
    found = Difference(
        replicas=len(after),
        seconds=seconds,
        requests=requests,
        prompt_tokens=_sum(grown, PROMPTED),
        generated_tokens=_sum(grown, GENERATED),
        prefix_queries=_sum(grown, names[QUERIES]),
        prefix_hits=_sum(grown, names[HITS]),
        preemptions=_sum(grown, PREEMPTIONS),
        running=_sum(after.values(), RUNNING),
        waiting=_sum(after.values(), WAITING),
        kv_usage=max(fullest, default=None),
        kv_tokens=_kv_tokens(after.values()),
        timings=MappingProxyType({family: timing for family, timing in timings.items() if timing is not None}),
        gpu_utilisation=gpu_utilisation,
    )
    return _with_notes(found, before, after, names, metrics)


def _growth(before: Exposition | None, after: Exposition) -> Exposition:
    """What grew, as a page. A name that only the second page has is left out: from where it grew is not known."""
    if before is None or restarted(before, after):
        return after
    return Exposition(
        {
            name: {labels: value - before.samples[name].get(labels, 0.0) for labels, value in series.items()}
            for name, series in after.samples.items()
            if name in before.samples
        }
    )


def restarted(before: Exposition, after: Exposition) -> bool:
    """Whether another process is behind the second page: it began at another time, or a counter fell."""
    if STARTED in before.samples and STARTED in after.samples and before.total(STARTED) != after.total(STARTED):
        return True
    return any(
        after.samples[name].get(labels, value) < value
        for name, series in before.samples.items()
        if name.startswith(PREFIX) and name.endswith(MONOTONE) and name in after.samples
        for labels, value in series.items()
    )


def _name_in(pages: Mapping[str, Exposition], family: str) -> str:
    """How the pages call a family: by its name, or by the one of an older release."""
    older = OLDER.get(family, family)
    present = {name for page in pages.values() for name in page.samples}
    has_only_older = older in present or f"{older}_sum" in present
    return older if has_only_older and not {family, f"{family}_sum"} & present else family


def _having(pages: Iterable[Exposition], name: str) -> list[Exposition]:
    return [page for page in pages if page.samples.get(name)]


def _sum(pages: Iterable[Exposition], name: str) -> float | None:
    having = _having(pages, name)
    return sum(sum(page.samples[name].values()) for page in having) if having else None


def _timing(grown: Iterable[Exposition], family: str, requests: float | None) -> Timing | None:
    pages = list(grown)
    seconds, count = _sum(pages, f"{family}_sum"), _sum(pages, f"{family}_count")
    if seconds is None:
        return None
    # An excerpt that kept only the sums: each request that ended has one first token, one queue, one prefill.
    observed = requests if count is None and family in {TTFT, QUEUE_TIME, PREFILL_TIME, DECODE_TIME} else count
    return Timing(seconds, observed or 0.0, percentiles(_buckets(pages, family)))


def _buckets(pages: Iterable[Exposition], family: str) -> dict[float, float]:
    """Observations up to each edge, of all replicas; only edges that all of them have can be added up."""
    each = []
    for page in _having(pages, f"{family}_bucket"):
        edges: dict[float, float] = {}
        for labels, value in page.samples[f"{family}_bucket"].items():
            edge = _edge(labels)
            edges[edge] = edges.get(edge, 0.0) + value
        each.append(edges)
    shared = set.intersection(*(set(edges) for edges in each)) if each else set()
    return {edge: sum(edges[edge] for edges in each) for edge in sorted(shared)}


def _edge(labels: Labels) -> float:
    return float(dict(labels)["le"])


def percentiles(buckets: Mapping[float, float]) -> tuple[Percentile, ...]:
    """The percentiles that cumulated buckets show; none without observations or without a finite edge."""
    edges = sorted(buckets)
    if not any(math.isfinite(edge) for edge in edges) or not buckets[edges[-1]] > 0:
        return ()
    return tuple(_percentile(quantile, edges, buckets) for quantile in QUANTILES)


def _percentile(quantile: float, edges: list[float], buckets: Mapping[float, float]) -> Percentile:
    rank = quantile * buckets[edges[-1]]
    number = next(index for index, edge in enumerate(edges) if buckets[edge] >= rank)
    edge = edges[number]
    if number == 0:
        return Percentile(quantile, 0.0, edge, None)
    above = edges[number - 1]
    if math.isinf(edge):
        return Percentile(quantile, above, edge, None)
    inside = (rank - buckets[above]) / (buckets[edge] - buckets[above])
    return Percentile(quantile, above, edge, above + (edge - above) * inside)


def _kv_tokens(pages: Iterable[Exposition]) -> int | None:
    """Tokens that all KV caches hold; ``None`` where an engine does not say."""
    engines = [dict(labels) for page in _having(pages, CONFIGURATION) for labels in page.samples[CONFIGURATION]]
    sizes = [_size(engine) for engine in engines]
    known = [size for size in sizes if size is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def _size(engine: Mapping[str, str]) -> int | None:
    told = engine.get("kv_cache_size_tokens", "")
    if told.isdecimal():
        return int(told)
    block, blocks = engine.get("block_size", ""), engine.get("num_gpu_blocks", "")
    return int(block) * int(blocks) if block.isdecimal() and blocks.isdecimal() else None


def _with_notes(
    found: Difference,
    before: Mapping[str, Exposition],
    after: Mapping[str, Exposition],
    names: Mapping[str, str],
    metrics: Metrics | None,
) -> Difference:
    notes = [
        f"the counters of {replica} restarted between the readings: only what came after the restart is counted"
        for replica in after
        if replica in before and restarted(before[replica], after[replica])
    ]
    notes += [
        f"{name} is gone: what it did between the readings is not counted" for name in before if name not in after
    ]
    notes += [f"{name} is new: everything it did is counted" for name in after if name not in before]
    first, queue = found.timings.get(TTFT), found.timings.get(QUEUE_TIME)
    if first is not None and queue is not None and first.count != queue.count:
        notes.append(
            f"{first.count:g} first tokens and {queue.count:g} ended requests: TTFT and its parts are not of quite the "
            "same requests, measure longer"
        )
        notes += _given_up(first.count - queue.count, found.running)
    if metrics is not None:
        notes += [
            f"{unknown(metrics, name)}. The server exports it: it runs another release than `image` says"
            for name in sorted(set(names.values()))
            if _is_exported(after.values(), name) and not _is_known(metrics, name)
        ]
    return replace(found, notes=tuple(notes))


def _given_up(without_end: float, running: float | None) -> list[str]:
    """What clients gave up, at the least: vLLM forgets such a request (abort_requests of
    vllm/v1/engine/output_processor.py), and what runs may have begun before the first reading."""
    count = without_end - (running or 0.0)
    if running is None or count <= 0:
        return []
    return [f"at least {count:g} had a first token and no end: their clients went away, which vLLM counts nowhere"]


def _is_exported(pages: Iterable[Exposition], name: str) -> bool:
    return any(name in page.samples or f"{name}_sum" in page.samples for page in pages)


def _is_known(metrics: Metrics, name: str) -> bool:
    return name in metrics.families or name in metrics.uncertain
