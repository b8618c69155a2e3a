"""What each vLLM release exports on /metrics: families, labels, buckets, and what became of older names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from planner.releases import Release, known_releases, version_number

Kind = Literal["gauge", "counter", "histogram"]
LENGTH_BUCKETS = "1-2-5"
"""How a table writes the buckets of token counts: 1, 2, 5, 10 … up to the context length."""
CUSTOM_BUCKETS = "--custom-histogram-buckets"
CUSTOM_BUCKET_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "vllm:time_to_first_token_seconds": "time_to_first_token",
        "vllm:inter_token_latency_seconds": "inter_token_latency",
    }
)
"""Key of a family in the JSON of --custom-histogram-buckets (vllm/config/observability.py, 0.33.0)."""
_SAMPLES = ("_bucket", "_sum", "_count")
_NAME = re.compile(r"(?<![\w:])[a-zA-Z_:][\w:]*")


class UnknownMetricError(ValueError):
    """A release does not export a name; the message says which and what to use instead."""


@dataclass(frozen=True)
class Metric:
    """One family.

    ``name`` is the exported one (a counter's ends in ``_total``). ``label_values`` holds the values of labels whose
    values the release fixes. ``buckets`` are finite upper edges, ``length_buckets`` says that they are 1, 2, 5, 10 …
    up to the context length instead. ``needs`` is the argument without which the family is not exported.
    """

    name: str
    kind: Kind
    labels: frozenset[str]
    label_values: Mapping[str, tuple[str, ...]]
    buckets: tuple[float, ...]
    length_buckets: bool
    needs: str | None

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of the series that a query can use."""
        return tuple(f"{self.name}{part}" for part in _SAMPLES) if self.kind == "histogram" else (self.name,)

    def edge_at(self, value: float) -> float | None:
        """The smallest bucket edge at or above ``value``, ``None`` beyond the last."""
        return next((edge for edge in self.buckets if edge >= value), None)


@dataclass(frozen=True)
class Metrics:
    """The families of one release; between two tables, those that both neighbours have alike.

    ``uncertain`` holds those that only one neighbour exports: nothing may rely on them.
    """

    version: str
    families: Mapping[str, Metric]
    uncertain: Mapping[str, Metric]

    def family_of(self, sample: str) -> Metric | None:
        """The family that exports the series ``sample``, ``None`` when none does."""
        return _by_sample(self.families).get(sample)

    def require(self, name: str) -> Metric:
        """The family ``name``.

        Raises:
            UnknownMetricError: this release does not export it.
        """
        if name not in self.families:
            raise UnknownMetricError(unknown(self, name))
        return self.families[name]


def metrics_of(release: Release) -> Metrics:
    """What ``release`` exports."""
    return _metrics_at(release.version)


def unknown(metrics: Metrics, sample: str) -> str:
    """What to say of a series that the release does not export."""
    return f"vLLM {metrics.version} exports no {sample}: {remedy(metrics, sample)}"


def remedy(metrics: Metrics, sample: str) -> str:
    """What to use instead of a series that the release does not export."""
    entry = next((each for each in _history()["renamed"] if sample in each["names"]), None)
    if entry is not None:
        return f"{entry['remedy']} ({entry['source']})"
    if metrics.family_of(f"{sample}_total") is not None:
        return f"a counter is exported with its suffix: {sample}_total"
    having = [version for version in known_releases() if _by_sample(_table(version)).get(sample)]
    return f"of the known releases {', '.join(having)} have it" if having else "no known release has it"


def foreign_series() -> Mapping[str, str]:
    """Series that something else than vLLM exports, and who does."""
    return {name: entry["exporter"] for name, entry in _history()["foreign"].items()}


def series_in(expression: str) -> frozenset[str]:
    """The series of vLLM's that a PromQL expression names."""
    return frozenset(name for name in _NAME.findall(expression) if name.startswith("vllm:"))


def unknown_series(metrics: Metrics, expression: str) -> tuple[str, ...]:
    """The series of vLLM's that an expression names and that the release does not export, sorted."""
    return tuple(sorted(name for name in series_in(expression) if metrics.family_of(name) is None))


def with_custom_buckets(metrics: Metrics, arguments: Iterable[str]) -> Metrics:
    """The same families with the edges that ``--custom-histogram-buckets`` in ``arguments`` gives."""
    words = list(arguments)
    given = next(
        (value for word, value in zip(words, [*words[1:], ""], strict=True) if word == CUSTOM_BUCKETS),
        next((word.partition("=")[2] for word in words if word.startswith(f"{CUSTOM_BUCKETS}=")), None),
    )
    chosen = _buckets_by_key(given or "")
    changed = {
        name: replace(metrics.families[name], buckets=tuple(sorted(float(edge) for edge in chosen[key])))
        for name, key in CUSTOM_BUCKET_KEYS.items()
        if key in chosen
    }
    return replace(metrics, families=MappingProxyType({**metrics.families, **changed}))


def _buckets_by_key(text: str) -> Mapping[str, list[float]]:
    """The edges by key; none when the text is no JSON object, which the check of the arguments reports."""
    try:
        chosen = json.loads(text)
    except ValueError:
        return {}
    return chosen if isinstance(chosen, dict) else {}


def length_bucket_count(max_model_len: int) -> int:
    """How many finite buckets a histogram of token counts has: 1, 2, 5, 10 … not above the context length."""
    edges = (mantissa * 10**power for power in range(int(math.log10(max_model_len)) + 1) for mantissa in (1, 2, 5))
    return sum(1 for edge in edges if edge <= max_model_len)


def exported_series(metrics: Metrics, arguments: Iterable[str], max_model_len: int) -> dict[str, int]:
    """Series of each exported sample name for one engine, ``_created`` ones included.

    ``arguments`` is the argv of the server: a family that needs an argument is counted only with it. Between two tables
    a family that only one of them has is counted: it may be there.
    """
    given = {word.partition("=")[0] for word in arguments}
    counts: dict[str, int] = {}
    for metric in (*metrics.families.values(), *metrics.uncertain.values()):
        if metric.needs is not None and metric.needs not in given:
            continue
        each = math.prod(len(values) for values in metric.label_values.values())
        if metric.kind == "histogram":
            edges = length_bucket_count(max_model_len) if metric.length_buckets else len(metric.buckets)
            counts |= {
                f"{metric.name}_bucket": (edges + 1) * each,
                f"{metric.name}_sum": each,
                f"{metric.name}_count": each,
            }
        else:
            counts[metric.name] = each
        if metric.kind != "gauge":
            # prometheus_client exports the time of creation of every counter and histogram as a gauge of its own.
            counts[f"{metric.name.removesuffix('_total')}_created"] = each
    return counts


@cache
def _document(path: str) -> Any:
    return json.loads((resources.files("planner") / "data" / path).read_text(encoding="utf-8"))


def _history() -> Any:
    return _document("metric_history.json")


@cache
def _table(version: str) -> Mapping[str, Metric]:
    entries = _document(f"metrics/{version}.json")["metrics"]
    return MappingProxyType({name: _metric(name, entry) for name, entry in entries.items()})


def _metric(name: str, entry: Mapping[str, Any]) -> Metric:
    buckets = entry.get("buckets", [])
    return Metric(
        name=name,
        kind=entry["type"],
        labels=frozenset(entry["labels"]),
        label_values=MappingProxyType({key: tuple(values) for key, values in entry.get("labelValues", {}).items()}),
        buckets=() if buckets == LENGTH_BUCKETS else tuple(buckets),
        length_buckets=buckets == LENGTH_BUCKETS,
        needs=entry.get("needs"),
    )


@cache
def _metrics_at(version: str) -> Metrics:
    number, known = version_number(version), known_releases()
    lower = max((each for each in known if version_number(each) <= number), key=version_number)
    upper = min((each for each in known if version_number(each) >= number), key=version_number, default=lower)
    old, new = _table(lower), _table(upper)
    both = {name: _merged(old[name], new[name]) for name in sorted(old.keys() & new.keys())}
    either = {name: old.get(name) or new[name] for name in sorted(old.keys() ^ new.keys())}
    return Metrics(version, MappingProxyType(both), MappingProxyType(either))


def _merged(old: Metric, new: Metric) -> Metric:
    """A family between two tables: only what both have of it."""
    values = {
        label: tuple(value for value in known if value in new.label_values.get(label, ()))
        for label, known in old.label_values.items()
    }
    edges = tuple(edge for edge in old.buckets if edge in new.buckets)
    return replace(new, labels=old.labels & new.labels, label_values=MappingProxyType(values), buckets=edges)


def _by_sample(families: Mapping[str, Metric]) -> Mapping[str, Metric]:
    return {sample: metric for metric in families.values() for sample in metric.samples}
