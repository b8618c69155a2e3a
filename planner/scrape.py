"""What Prometheus keeps of a server's /metrics, and how many series that is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from planner.alerts import ITL, TTFT, Target, rule_groups
from planner.metrics import exported_series, series_in

SHOWN_AS_QUANTILES = (TTFT, ITL)
"""Histograms that the dashboard shows quantiles of."""
ALWAYS_DROPPED = (".+_created", "http_request_duration(_highr)?_seconds_bucket")
"""Times of creation (one for each counter and histogram), and the HTTP library's buckets."""


@dataclass(frozen=True)
class Series:
    """Series of ``vllm:`` names that one replica exports, and how many of them are kept."""

    exported: int
    kept: int


def dropped_names(target: Target, keep: Iterable[str] = ()) -> tuple[str, ...]:
    """Regular expressions of the names that are not stored: what no rule and no panel reads.

    Sums and counts stay, so that every mean can still be computed. ``keep``: histograms whose buckets stay too.
    """
    read = {name for group in rule_groups(target) for rule in group["rules"] for name in series_in(rule["expr"])}
    stay = {f"{name}_bucket" for name in (*SHOWN_AS_QUANTILES, *keep)} | read
    buckets = [
        f"{metric.name}_bucket"
        for metric in target.metrics.families.values()
        if metric.kind == "histogram" and f"{metric.name}_bucket" not in stay
    ]
    return (*ALWAYS_DROPPED, *buckets)


def series_of(
    target: Target, arguments: Iterable[str], max_model_len: int, engines: int = 1, keep: Iterable[str] = ()
) -> Series:
    """Count the series of one replica with ``engines`` data-parallel engines, each of which exports its own."""
    dropped = re.compile("|".join(dropped_names(target, keep)))
    exported = exported_series(target.metrics, arguments, max_model_len)
    kept = {name: count for name, count in exported.items() if not dropped.fullmatch(name)}
    return Series(exported=sum(exported.values()) * engines, kept=sum(kept.values()) * engines)
