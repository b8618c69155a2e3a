"""The Grafana dashboard of one service: what is happening now, and where the time to the first token goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    GridPos,
    Threshold,
    ThresholdsMode,
)

from planner.alerts import (
    FINISHED,
    GENERATED,
    HITS,
    ITL,
    KV_USAGE,
    PREEMPTIONS,
    PROMPTED,
    QUERIES,
    RUNNING,
    TTFT,
    WAITING,
    Target,
    by_service,
)

DATA_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
QUANTILES = (0.5, 0.95, 0.99)
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
STAT_WIDTH, STAT_HEIGHT, STAT_COLUMNS = 4, 4, 6


@dataclass(frozen=True)
class Panel:
    """A panel: its queries by legend, its unit as Grafana names it, and the alert's threshold where there is one."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    description: str = ""
    threshold: float | None = None
    stacked: bool = False
    low_is_bad: bool = False


def dashboard_json(target: Target) -> str:
    """The dashboard as Grafana imports it."""
    return str(JSONEncoder(sort_keys=True, indent=2).encode(_dashboard(target).build()))


def panels_now(target: Target) -> Iterator[Panel]:
    """Single numbers of this moment."""
    alerts = target.alerts
    up = f"sum(up{target.selector()})"
    yield Panel("Replicas that answer", "none", [("", up)], threshold=len(target.servers), low_is_bad=True)
    yield Panel("Running requests", "none", [("", f"sum({target.series(RUNNING)})")])
    yield Panel(
        "Waiting requests",
        "none",
        [("", f"sum({target.series(WAITING)})")],
        threshold=alerts.queue_backlog.waiting_per_replica,
    )
    yield Panel(
        "KV cache in use",
        "percentunit",
        [("", f"max({target.series(KV_USAGE)})")],
        threshold=alerts.kv_cache_saturated.usage,
    )
    yield Panel(
        "First token in time",
        "percentunit",
        [("", target.within(TTFT, target.edge(TTFT, alerts.ttft_slo_breach.seconds)))],
        threshold=alerts.ttft_slo_breach.quantile,
        low_is_bad=True,
    )
    yield Panel("Tokens per second", "none", [("", target.rate(GENERATED))])


def panels_over_time(target: Target) -> Iterator[Panel]:
    """Curves: latencies and their parts, queue, KV cache, tokens, and each replica."""
    alerts = target.alerts
    recorded = target.selector()
    edge = target.edge(TTFT, alerts.ttft_slo_breach.seconds)
    yield Panel("Time to first token", "s", _quantiles(target, TTFT), "Interpolated between bucket edges.", edge)
    yield Panel(
        "Time to first token, taken apart",
        "s",
        [
            ("queue", f"service:vllm_request_queue_time_seconds:mean5m{recorded}"),
            ("prefill", f"service:vllm_request_prefill_time_seconds:mean5m{recorded}"),
            ("rest", f"service:vllm_time_to_first_token_rest_seconds:mean5m{recorded}"),
        ],
        "Means. Rest: API server, tokenising, waiting for the event loop. Queue and prefill are counted when a request "
        "ends, the first token when it comes, so while load changes the parts do not add up exactly.",
        stacked=True,
    )
    yield Panel("Time between tokens", "s", _quantiles(target, ITL), "Interpolated between bucket edges.")
    yield Panel(
        "Waiting requests by replica",
        "none",
        [("{{pod}}", by_service("sum", target.series(WAITING), "pod"))],
        threshold=alerts.queue_backlog.waiting_per_replica,
    )
    yield Panel("Running requests by replica", "none", [("{{pod}}", by_service("sum", target.series(RUNNING), "pod"))])
    yield Panel(
        "KV cache in use by replica",
        "percentunit",
        [("{{pod}}", by_service("max", target.series(KV_USAGE), "pod"))],
        threshold=alerts.kv_cache_saturated.usage,
    )
    yield Panel(
        "Prefix cache hit rate",
        "percentunit",
        [("{{model_name}}", f"{target.rate(HITS, window='10m')} / ({target.rate(QUERIES, window='10m')} > 0)")],
        "Share of prompt tokens.",
        alerts.prefix_cache_collapse.hit_rate,
        low_is_bad=True,
    )
    yield Panel("Tokens per second", "none", [("prompt", target.rate(PROMPTED)), ("answer", target.rate(GENERATED))])
    yield Panel(
        "Requests per second by how they ended",
        "reqps",
        [("{{finished_reason}}", by_service("sum", f"rate({target.series(FINISHED)}[5m])", "finished_reason"))],
        stacked=True,
    )
    yield Panel("Pre-emptions per minute", "none", [("{{model_name}}", f"{target.rate(PREEMPTIONS)} * 60")])
    used = f"service:vllm_kv_cache_tokens:used{recorded}"
    yield Panel("KV cache tokens in use", "none", [("{{model_name}}", used)])
    if target.price_per_hour is not None:
        cost = f"service:vllm_cost_dollars_per_million_tokens:mean5m{recorded}"
        yield Panel("Cost per million tokens", "currencyUSD", [("{{model_name}}", cost)])


def _quantiles(target: Target, histogram: str) -> list[tuple[str, str]]:
    return [(f"p{quantile * 100:g}", target.quantile(quantile, histogram, "5m")) for quantile in QUANTILES]


def _dashboard(target: Target) -> dashboard.Dashboard:
    title = f"vLLM {target.namespace}/{target.service}"
    uid = f"vllm-{hashlib.sha256(title.encode()).hexdigest()[:12]}"
    board = (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["vllm", target.namespace])
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for position, panel in enumerate(panels_now(target)):
        row, column = divmod(position, STAT_COLUMNS)
        place = GridPos(h=STAT_HEIGHT, w=STAT_WIDTH, x=column * STAT_WIDTH, y=row * STAT_HEIGHT)
        board = board.with_panel(_stat(panel).grid_pos(place))
    for position, panel in enumerate(panels_over_time(target)):
        row, column = divmod(position, COLUMNS)
        place = GridPos(h=HEIGHT, w=WIDTH, x=column * WIDTH, y=STAT_HEIGHT + row * HEIGHT)
        board = board.with_panel(_curves(panel).grid_pos(place))
    return board


def _stat(panel: Panel) -> stat.Panel:
    built = stat.Panel().title(panel.title).unit(panel.unit).datasource(DATA_SOURCE).thresholds(_thresholds(panel))
    for query in _queries(panel):
        built = built.with_target(query)
    return built


def _curves(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .min(0)
        .datasource(DATA_SOURCE)
        .thresholds(_thresholds(panel))
    )
    if panel.threshold is not None:
        built = built.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.LINE))
    if panel.stacked:
        built = built.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    for query in _queries(panel):
        built = built.with_target(query)
    return built


def _queries(panel: Panel) -> Iterator[prometheus.Dataquery]:
    for letter, (legend, expression) in zip(ascii_uppercase, panel.queries, strict=False):
        yield prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend)


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    """Green, and red from the alert's threshold on; the other way round where a low value is bad."""
    if panel.threshold is None:
        steps = [Threshold(value=None, color="green")]
    else:
        low, high = ("red", "green") if panel.low_is_bad else ("green", "red")
        steps = [Threshold(value=None, color=low), Threshold(value=panel.threshold, color=high)]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
