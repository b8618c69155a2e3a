"""What servers expose over time, as input series of promtool: every family of a release, real bucket edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.metrics import Metric, Metrics

STEP_SECONDS = 30
Distribution = Mapping[float, float]
"""Value → share of the observations."""


@dataclass(frozen=True)
class Stage:
    """How one replica behaves for some minutes. Rates are per second; each request is of the same kind.

    ``restarted``: its counters begin again at 0. ``gone``: Prometheus no longer has it as a target. ``answers`` false:
    it is a target and does not answer.
    """

    minutes: float
    requests: float = 0.0
    first_token: Distribution = field(default_factory=lambda: {0.2: 1.0})
    queue_seconds: float = 0.01
    prefill_seconds: float = 0.1
    between_tokens: Distribution = field(default_factory=lambda: {0.02: 1.0})
    prompt_tokens: float = 512
    generated_tokens: float = 100
    hit_rate: float = 0.6
    ended: Mapping[str, float] = field(default_factory=lambda: {"stop": 1.0})
    waiting: float = 0
    running: float = 0
    kv_usage: float = 0.0
    preemptions: float = 0.0
    evictions: float = 0.0
    reuse_gap: Distribution = field(default_factory=lambda: {1.5: 1.0})
    idle_before_evict: Distribution = field(default_factory=lambda: {90.0: 1.0})
    restarted: bool = False
    answers: bool = True
    gone: bool = False

    @property
    def steps(self) -> int:
        """Readings in this stage."""
        return round(self.minutes * 60 / STEP_SECONDS)


GAUGES: Mapping[str, Callable[[Stage], float]] = {
    "vllm:num_requests_running": lambda stage: stage.running,
    "vllm:num_requests_waiting": lambda stage: stage.waiting,
    "vllm:kv_cache_usage_perc": lambda stage: stage.kv_usage,
}
COUNTERS: Mapping[str, Callable[[Stage], float]] = {
    "vllm:prompt_tokens_total": lambda stage: stage.requests * stage.prompt_tokens,
    "vllm:generation_tokens_total": lambda stage: stage.requests * stage.generated_tokens,
    "vllm:prefix_cache_queries_total": lambda stage: stage.requests * stage.prompt_tokens,
    "vllm:prefix_cache_hits_total": lambda stage: stage.requests * stage.prompt_tokens * stage.hit_rate,
    "vllm:num_preemptions_total": lambda stage: stage.preemptions,
}
HISTOGRAMS: Mapping[str, Callable[[Stage], tuple[float, Distribution]]] = {
    "vllm:time_to_first_token_seconds": lambda stage: (stage.requests, stage.first_token),
    "vllm:inter_token_latency_seconds": lambda stage: (stage.requests * stage.generated_tokens, stage.between_tokens),
    "vllm:request_queue_time_seconds": lambda stage: (stage.requests, {stage.queue_seconds: 1.0}),
    "vllm:request_prefill_time_seconds": lambda stage: (stage.requests, {stage.prefill_seconds: 1.0}),
    "vllm:request_prompt_tokens": lambda stage: (stage.requests, {stage.prompt_tokens: 1.0}),
    "vllm:kv_block_reuse_gap_seconds": lambda stage: (stage.evictions, stage.reuse_gap),
    "vllm:kv_block_idle_before_evict_seconds": lambda stage: (stage.evictions, stage.idle_before_evict),
}


def replica(
    metrics: Metrics, stages: Sequence[Stage], labels: Mapping[str, str], only: frozenset[str] | None = None
) -> list[dict[str, str]]:
    """The series of one replica and its ``up``. ``labels``: what a scrape adds, and the model's name.

    ``only``: the names of those series that a rule reads, which is much faster than all.
    """
    where = {name: value for name, value in labels.items() if name != "model_name"}
    full = {**labels, "engine": "0"}
    series = [_series("up", where, _readings(stages, lambda stage: 1.0 if stage.answers else 0.0, exposed=False))]
    for metric in metrics.families.values():
        if only is None or only.intersection(metric.samples):
            series += _family(metric, full, stages)
    return series


def _family(metric: Metric, labels: Mapping[str, str], stages: Sequence[Stage]) -> Iterator[dict[str, str]]:
    if metric.name in GAUGES:
        yield _series(metric.name, labels, _readings(stages, GAUGES[metric.name]))
    elif metric.name in COUNTERS:
        yield _series(metric.name, labels, _counted(stages, COUNTERS[metric.name]))
    elif metric.name == "vllm:request_success_total":
        for reason in metric.label_values["finished_reason"]:
            ended = _counted(stages, lambda stage, reason=reason: stage.requests * stage.ended.get(reason, 0.0))
            yield _series(metric.name, {**labels, "finished_reason": reason}, ended)
    elif metric.name in HISTOGRAMS:
        yield from _histogram(metric, labels, stages, HISTOGRAMS[metric.name])


def _histogram(
    metric: Metric,
    labels: Mapping[str, str],
    stages: Sequence[Stage],
    observed: Callable[[Stage], tuple[float, Distribution]],
) -> Iterator[dict[str, str]]:
    def below(edge: float) -> Callable[[Stage], float]:
        def rate(stage: Stage) -> float:
            total, values = observed(stage)
            return total * sum(share for value, share in values.items() if value <= edge)

        return rate

    def total_seconds(stage: Stage) -> float:
        total, values = observed(stage)
        return total * sum(value * share for value, share in values.items())

    for edge in (*metric.buckets, float("inf")):
        le = "+Inf" if edge == float("inf") else str(edge)
        yield _series(f"{metric.name}_bucket", {**labels, "le": le}, _counted(stages, below(edge)))
    yield _series(f"{metric.name}_count", labels, _counted(stages, below(float("inf"))))
    yield _series(f"{metric.name}_sum", labels, _counted(stages, total_seconds))


def _readings(stages: Sequence[Stage], value: Callable[[Stage], float], *, exposed: bool = True) -> list[str]:
    """One reading for each step; a target that went away is marked stale once, as Prometheus does."""
    readings: list[str] = []
    for stage in stages:
        there = not stage.gone and (stage.answers or not exposed)
        readings += [f"{value(stage):.10g}"] * stage.steps if there else ["stale"] + ["_"] * (stage.steps - 1)
    return readings


def _counted(stages: Sequence[Stage], rate: Callable[[Stage], float]) -> list[str]:
    """A counter's readings: it grows by rate and step, and begins again at 0 after a restart."""
    readings: list[str] = []
    value = 0.0
    for stage in stages:
        value = 0.0 if stage.restarted else value
        for step in range(stage.steps):
            if stage.gone or not stage.answers:
                readings.append("_" if step else "stale")
            else:
                value += rate(stage) * STEP_SECONDS
                readings.append(f"{value:.10g}")
    return readings


def _series(name: str, labels: Mapping[str, str], readings: Sequence[str]) -> dict[str, str]:
    return constant(name, labels, " ".join(readings))


def constant(name: str, labels: Mapping[str, str], values: str) -> dict[str, str]:
    """An input series with values in promtool's own notation, for example ``1x40``."""
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def expectation(name: str, minutes: float, expected: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """That at ``minutes`` exactly the alerts with labels ``expected`` are firing."""
    return {
        "expr": f'ALERTS{{alertname="{name}",alertstate="firing"}}',
        "eval_time": f"{round(minutes * 60)}s",
        "exp_samples": [
            {
                "labels": "ALERTS{"
                + ",".join(
                    f'{label}="{value}"'
                    for label, value in sorted({"alertname": name, "alertstate": "firing", **labels}.items())
                )
                + "}",
                "value": 1,
            }
            for labels in expected
        ],
    }
