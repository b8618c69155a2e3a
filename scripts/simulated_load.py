"""A queueing model of vLLM servers under load: what their /metrics would have shown over some hours.

For pictures of the dashboard only: nothing here is a measurement, and no figure of the product comes from it. Each
engine step admits waiting requests while the KV cache has room, computes prompt tokens within the step's budget and
one token of each running request, and takes as long as measured steps of a 7B model on an L40S do.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from planner.metrics import Metrics

STEP_SECONDS, SECONDS_PER_RUNNING = 0.0206, 0.00024
"""Length of a step without prompt tokens: 20.8 ms for one request, 24.5 ms for sixteen, measured; straight beyond."""
SECONDS_PER_PROMPT_TOKEN = 0.000057
"""Measured: prefill takes 0.057 ms for each token."""
REST_SECONDS = 0.027
"""Measured: 27 ms of each time to the first token are neither queue nor prefill."""
TOKENS_PER_STEP, MAX_RUNNING = 2048, 256
"""max_num_batched_tokens and max_num_seqs of vLLM 0.11.0 for an API server (vllm/engine/arg_utils.py)."""
BLOCK = 16
PATIENCE_SECONDS = 60.0
"""How long a client waits for its first token before it goes away."""
LONGEST_ANSWER = 1024


@dataclass(frozen=True)
class Moment:
    """What clients do: requests per second at one replica, and which share of a prompt the prefix cache has."""

    requests_per_second: float
    hit_rate: float


@dataclass
class Request:
    """One request. ``left``: prompt tokens that are still to be computed."""

    arrived: float
    prompt: int
    answer: int
    left: int = 0
    admitted: float = 0.0
    prefilled: float = 0.0

    @property
    def blocks(self) -> int:
        """Its KV tokens when it ends, in whole blocks."""
        return -(-(self.prompt + self.answer) // BLOCK) * BLOCK


@dataclass
class Histogram:
    """A histogram as prometheus_client counts it."""

    edges: tuple[float, ...]
    buckets: Counter[int] = field(default_factory=Counter)
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``."""
        self.buckets[bisect_left(self.edges, value)] += times
        self.total += value * times

    def cumulated(self) -> Iterator[tuple[str, int]]:
        """Each edge as a label value, and how many observations are not above it."""
        below = 0
        for position, edge in enumerate((*self.edges, float("inf"))):
            below += self.buckets[position]
            yield ("+Inf" if edge == float("inf") else str(edge)), below


class Server:
    """One replica."""

    def __init__(
        self, metrics: Metrics, model: str, kv_tokens: int, load: Callable[[float], Moment], seed: int
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._metrics, self._kv_tokens, self._load = metrics, kv_tokens, load
        self._labels = {"engine": "0", "model_name": model}
        self._waiting: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()
        self._decoding: list[tuple[int, int, Request]] = []
        self._now = self._next_arrival = 0.0
        self._step = self._order = self._held = 0
        self._counters: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._histograms = {
            name: Histogram(metrics.require(f"vllm:{name}").buckets)
            for name in (
                "time_to_first_token_seconds",
                "inter_token_latency_seconds",
                "request_queue_time_seconds",
                "request_prefill_time_seconds",
                "request_prompt_tokens",
            )
        }

    def run_until(self, end: float) -> None:
        """Serve until ``end``, seconds from the beginning."""
        while self._now < end:
            self._arrive()
            self._give_up()
            self._one_step()

    def _arrive(self) -> None:
        while self._next_arrival <= self._now:
            moment = self._load(self._next_arrival)
            prompt = max(64, int(self._random.lognormvariate(7.3, 0.5)))
            answer = min(LONGEST_ANSWER, 1 + int(self._random.expovariate(1 / 280)))
            self._waiting.append(Request(self._next_arrival, prompt, answer))
            self._next_arrival += self._random.expovariate(moment.requests_per_second)

    def _give_up(self) -> None:
        while self._waiting and self._now - self._waiting[0].arrived > PATIENCE_SECONDS:
            self._waiting.popleft()
            self._ended["abort"] += 1

    def _one_step(self) -> None:
        decoding = len(self._decoding)
        computed, first = self._prefill(TOKENS_PER_STEP - decoding)
        seconds = STEP_SECONDS + SECONDS_PER_RUNNING * decoding + SECONDS_PER_PROMPT_TOKEN * computed
        self._now, self._step = self._now + seconds, self._step + 1
        if decoding:
            self._histograms["inter_token_latency_seconds"].observe(seconds, decoding)
        self._counters["generation_tokens_total"] += decoding + len(first)
        for request in first:
            self._first_token(request)
        while self._decoding and self._decoding[0][0] <= self._step:
            self._finish(heappop(self._decoding)[2])

    def _prefill(self, budget: int) -> tuple[int, list[Request]]:
        """Compute prompt tokens, of waiting requests too as long as budget is left: how many, and who is done."""
        computed, first = 0, []
        while computed < budget and (self._prefilling or self._admit()):
            request = self._prefilling[0]
            part = min(request.left, budget - computed)
            request.left, computed = request.left - part, computed + part
            if request.left == 0:
                first.append(self._prefilling.popleft())
        return computed, first

    def _admit(self) -> bool:
        """Take the first waiting request if there is room for all of it: nothing is pre-empted in this model."""
        full = len(self._decoding) + len(self._prefilling) >= MAX_RUNNING
        if full or not self._waiting or self._held + self._waiting[0].blocks > self._kv_tokens:
            return False
        request = self._waiting.popleft()
        request.admitted = self._now
        share = self._load(self._now).hit_rate * self._random.uniform(0.7, 1.3)
        hits = min(int(request.prompt * share) // BLOCK * BLOCK, request.prompt - 1)
        request.left = request.prompt - hits
        self._counters["prefix_cache_queries_total"] += request.prompt
        self._counters["prefix_cache_hits_total"] += hits
        self._held += request.blocks
        self._prefilling.append(request)
        return True

    def _first_token(self, request: Request) -> None:
        request.prefilled = self._now
        rest = REST_SECONDS * self._random.uniform(0.6, 1.6)
        self._histograms["time_to_first_token_seconds"].observe(self._now - request.arrived + rest)
        self._counters["prompt_tokens_total"] += request.prompt
        self._order += 1
        heappush(self._decoding, (self._step + request.answer - 1, self._order, request))

    def _finish(self, request: Request) -> None:
        self._held -= request.blocks
        self._ended["length" if request.answer == LONGEST_ANSWER else "stop"] += 1
        self._histograms["request_queue_time_seconds"].observe(request.admitted - request.arrived)
        self._histograms["request_prefill_time_seconds"].observe(request.prefilled - request.admitted)
        self._histograms["request_prompt_tokens"].observe(request.prompt)

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """What /metrics shows now: name, labels, value of every series of the families that are modelled."""
        gauges = {
            "num_requests_running": float(len(self._decoding) + len(self._prefilling)),
            "num_requests_waiting": float(len(self._waiting)),
            "kv_cache_usage_perc": self._held / self._kv_tokens,
        }
        for name, value in {**gauges, "num_preemptions_total": 0.0, **self._counters}.items():
            yield self._metrics.require(f"vllm:{name}").name, self._labels, float(value)
        ended = self._metrics.require("vllm:request_success_total")
        for reason in ended.label_values["finished_reason"]:
            yield ended.name, {**self._labels, "finished_reason": reason}, float(self._ended[reason])
        for name, histogram in self._histograms.items():
            below = 0
            for edge, below in histogram.cumulated():
                yield f"vllm:{name}_bucket", {**self._labels, "le": edge}, float(below)
            yield f"vllm:{name}_count", self._labels, float(below)
            yield f"vllm:{name}_sum", self._labels, histogram.total


def backfill(servers: Mapping[str, Server], labels: Mapping[str, str], times: range, dropped: re.Pattern[str]) -> str:
    """Readings of all servers (by pod) at ``times``, seconds since 1970, as OpenMetrics for promtool.

    ``labels``: what the scrape adds to every series; ``dropped``: names that it does not store.
    """
    series: dict[str, list[str]] = {}
    for at in times:
        for pod, server in servers.items():
            server.run_until(at - times.start)
            where = {**labels, "instance": pod, "pod": pod}
            series.setdefault("up", []).append(f"{_line('up', where, 1.0)} {at}\n")
            for name, own, value in server.samples():
                if not dropped.fullmatch(name):
                    series.setdefault(name, []).append(f"{_line(name, {**where, **own}, value)} {at}\n")
    return "".join(line for lines in series.values() for line in lines) + "# EOF\n"


def page(server: Server) -> str:
    """What /metrics of a server shows now, in Prometheus' text format."""
    return "".join(f"{_line(name, own, value)}\n" for name, own, value in server.samples())


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value:.10g}"
