"""A page of /metrics as a release of vLLM writes it: every family of its table, real bucket edges, all zero but what a
test gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.metrics import Metric, metrics_of
from planner.releases import release_at

LABELS = 'engine="{engine}",model_name="tiny"'


def page(
    version: str,
    values: Mapping[str, float] | None = None,
    observations: Mapping[str, Sequence[float]] | None = None,
    *,
    without: Sequence[str] = (),
    engine: int = 0,
) -> str:
    """``values`` of gauges and counters by exported name, ``observations`` of histograms; names ``without`` are left
    out."""
    labels = LABELS.format(engine=engine)
    lines = [
        "# HELP python_info Python platform information",
        "# TYPE python_info gauge",
        'python_info{implementation="CPython",major="3",minor="12"} 1.0',
    ]
    for name, metric in metrics_of(release_at(version)).families.items():
        if name in without:
            continue
        lines.append(f"# TYPE {name} {metric.kind}")
        if metric.kind == "histogram":
            lines += _histogram(metric, (observations or {}).get(name, ()), labels)
        elif not metric.label_values:
            lines.append(f"{name}{{{labels}}} {(values or {}).get(name, 0.0)}")
    return "\n".join(lines) + "\n"


def _histogram(metric: Metric, seen: Sequence[float], labels: str) -> list[str]:
    edges = [*metric.buckets, float("inf")]
    cumulated = [
        f'{metric.name}_bucket{{{labels},le="{"+Inf" if edge == float("inf") else edge}"}} '
        f"{float(sum(1 for value in seen if value <= edge))}"
        for edge in edges
    ]
    return [
        *cumulated,
        f"{metric.name}_count{{{labels}}} {float(len(seen))}",
        f"{metric.name}_sum{{{labels}}} {sum(seen)}",
    ]
