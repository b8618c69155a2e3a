"""The Grafana dashboard of one service: what is happening now, and where the time to the first token goes.

Rows follow the questions of somebody who was paged: what fires, is the first token late and is it queue or prefill,
is there room in the KV cache, what does it do and cost. One service has one dashboard, because its limits are its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DynamicConfigValue,
    GridPos,
    Threshold,
    ThresholdsMode,
)

from planner.alerts import (
    ALERTS,
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
    Rule,
    Target,
    alerts,
    by_service,
)

DATA_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""Columns of Grafana's grid."""
STAT_HEIGHT, CURVES_HEIGHT = 4, 8
WIDE, NARROW = 6, 3
"""Columns of the number panels: names of alerts, and figures."""
TAG = "vllm"
"""By which dashboards of services find each other."""
ABOVE_LIMIT = 1.2
"""How far an axis reaches above a limit, as a multiple of it: a line that is not in the picture warns nobody."""
NAME_PIXELS = 16
REPLICA = "replica"
PARTS = {"queue": "orange", "prefill": "blue", "rest": "text"}
"""Colours of the parts of the time to the first token."""
ENDINGS = {"stop": "green", "length": "blue", "repetition": "purple", "abort": "orange", "error": "red"}
"""Colours of the values of ``finished_reason``."""


@dataclass(frozen=True)
class Limit:
    """Where an alert begins. ``text`` says so to a reader, with the alert's name and the way to its runbook entry."""

    value: float
    text: str
    low_is_bad: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel: its queries by legend, its unit as Grafana names it, and the alert's limit where there is one.

    ``top``: where the axis must reach at least, in the panel's unit. ``colours`` by legend.
    """

    title: str
    unit: str
    description: str
    queries: Sequence[tuple[str, str]]
    limit: Limit | None = None
    top: float | None = None
    stacked: bool = False
    names: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Panels side by side under a question."""

    title: str
    panels: Sequence[Panel]


def dashboard_json(target: Target) -> str:
    """The dashboard as Grafana imports it.

    Raises:
        UnknownMetricError: an alert is switched on that this release has no metric for.
    """
    return str(JSONEncoder(sort_keys=True, indent=2).encode(_dashboard(target).build()))


def panels_now(target: Target) -> Iterator[Panel]:
    """Single numbers of this moment. A number whose series are gone is not shown as if it were today's."""
    replicas, limits = len(target.servers), _limits(target)
    yield Panel(
        "Alerts firing",
        "none",
        "Names of this service's alerts that fire. No data: its rules are not evaluated, or no replica answers.",
        [("{{alertname}}", _firing(target))],
        limit=Limit(1, "Red from the first one on."),
        names=True,
    )
    yield Panel(
        f"Replicas up, of {replicas}",
        "none",
        "Servers whose /metrics Prometheus can read.",
        [("", f"sum(up{target.selector()}) or vector(0)")],
        limit=Limit(replicas, "Red below what the stack has.", low_is_bad=True),
    )
    yield Panel(
        "First token in time",
        "percentunit",
        f"Share of requests of the last five minutes with their first token within {_ttft_edge(target):g} s: exact, "
        "because that is a bucket edge.",
        [("", _share_in_time(target))],
        limit=limits.get("ttft_share"),
    )
    yield Panel(
        "Waiting, fullest replica",
        "none",
        "Requests that wait for the scheduler at the replica where most do.",
        [("", by_service("max", by_service("sum", target.series(WAITING), "pod")))],
        limit=limits.get("queue_backlog"),
    )
    yield Panel(
        "KV cache, fullest",
        "percentunit",
        "Share of the KV cache's blocks in use. Not the card's memory, which is as full when nobody asks anything.",
        [("", by_service("max", target.series(KV_USAGE)))],
        limit=limits.get("kv_cache_saturated"),
    )
    yield Panel(
        "Prefix hits now",
        "percentunit",
        "Share of the prompt tokens of the last ten minutes that the prefix cache had.",
        [("", _hit_rate(target))],
        limit=limits.get("prefix_cache_collapse"),
    )
    yield Panel("Generated per second", "short", "Tokens, all replicas together.", [("", target.rate(GENERATED))])


def rows_over_time(target: Target) -> Iterator[Row]:
    """Curves, in the order in which one asks."""
    yield Row("Is the first token late: queue or prefill?", list(_first_token(target)))
    yield Row("Is there room in the KV cache?", list(_room(target)))
    yield Row("What does it do, and what does it cost?", list(_throughput(target)))


def panels_over_time(target: Target) -> Iterator[Panel]:
    """The curves without their rows."""
    for row in rows_over_time(target):
        yield from row.panels


def _first_token(target: Target) -> Iterator[Panel]:
    limits, recorded = _limits(target), target.selector()
    objective = target.alerts.ttft_slo_breach.quantile
    yield Panel(
        "Time to first token",
        "s",
        "Quantiles over all replicas, interpolated between bucket edges.",
        _quantiles(target, TTFT, objective),
        limit=limits.get("ttft_slo_breach"),
    )
    yield Panel(
        "Time to first token, taken apart",
        "s",
        "Means. Rest: API server, tokenising, waiting for the event loop. Queue and prefill are counted when a request "
        "ends, the first token when it comes, so while load changes the parts do not add up exactly.",
        [
            ("queue", f"service:vllm_request_queue_time_seconds:mean5m{recorded}"),
            ("prefill", f"service:vllm_request_prefill_time_seconds:mean5m{recorded}"),
            ("rest", f"service:vllm_time_to_first_token_rest_seconds:mean5m{recorded}"),
        ],
        stacked=True,
        colours=PARTS,
    )
    yield Panel(
        "Waiting requests by replica",
        "none",
        "Requests that wait for the scheduler. One replica only: clients stick to it.",
        [(f"{{{{{REPLICA}}}}}", _by_replica(target, "sum", WAITING))],
        limit=limits.get("queue_backlog"),
    )
    yield Panel(
        "Prefix cache hit rate",
        "percentunit",
        "Share of prompt tokens that the prefix cache had. When it falls, prefill grows and so does the cost.",
        [("{{model_name}}", _hit_rate(target))],
        limit=limits.get("prefix_cache_collapse"),
        top=1,
    )


def _room(target: Target) -> Iterator[Panel]:
    limits = _limits(target)
    yield Panel(
        "KV cache in use by replica",
        "percentunit",
        "Share of blocks. At 100 % running requests are pre-empted and computed again.",
        [(f"{{{{{REPLICA}}}}}", _by_replica(target, "max", KV_USAGE))],
        limit=limits.get("kv_cache_saturated"),
        top=1,
    )
    room = target.kv_tokens * len(target.servers)
    yield Panel(
        "KV cache tokens in use",
        "short",
        f"All replicas together; {room:,} are planned.",
        [("{{model_name}}", f"service:vllm_kv_cache_tokens:used{target.selector()}")],
        top=room,
    )
    yield Panel(
        "Running requests by replica",
        "none",
        "Requests in the batch. Few requests and a full cache: their contexts are long.",
        [(f"{{{{{REPLICA}}}}}", _by_replica(target, "sum", RUNNING))],
    )
    yield Panel(
        "Pre-emptions per minute",
        "short",
        "Running requests that were stopped for lack of KV blocks.",
        [("{{model_name}}", f"{target.rate(PREEMPTIONS)} * 60")],
        limit=limits.get("preemptions"),
        top=target.alerts.preemptions.per_minute * ABOVE_LIMIT,
    )


def _throughput(target: Target) -> Iterator[Panel]:
    limits = _limits(target)
    yield Panel(
        "Time between tokens",
        "s",
        "Quantiles over all replicas, interpolated between bucket edges.",
        _quantiles(target, ITL, target.alerts.inter_token_latency.quantile),
        limit=limits.get("inter_token_latency"),
    )
    yield Panel(
        "Tokens per second",
        "short",
        "All replicas together. Prompt tokens include those that the prefix cache had.",
        [("prompt", target.rate(PROMPTED)), ("generated", target.rate(GENERATED))],
    )
    yield Panel(
        "Requests per second by how they ended",
        "reqps",
        "Aborted: the client went away, usually because it waited too long.",
        [("{{finished_reason}}", by_service("sum", f"rate({target.series(FINISHED)}[5m])", "finished_reason"))],
        stacked=True,
        colours={
            reason: colour
            for reason, colour in ENDINGS.items()
            if reason in target.metrics.require(FINISHED).label_values["finished_reason"]
        },
    )
    if target.price_per_hour is not None:
        yield Panel(
            "Cost per million tokens",
            "currencyUSD",
            f"Replicas at ${target.price_per_hour:g} an hour, over prompt and generated tokens.",
            [("{{model_name}}", f"service:vllm_cost_dollars_per_million_tokens:mean5m{target.selector()}")],
        )


def _limits(target: Target) -> dict[str, Limit]:
    """The limits of the alerts that this stack makes, by their field; ``ttft_share`` is the TTFT alert's own unit."""
    spec, made = target.alerts, {rule["alert"]: rule for rule in alerts(target)}
    values: dict[str, Callable[[], float]] = {
        "queue_backlog": lambda: spec.queue_backlog.waiting_per_replica,
        "ttft_slo_breach": lambda: _ttft_edge(target),
        "kv_cache_saturated": lambda: spec.kv_cache_saturated.usage,
        "prefix_cache_collapse": lambda: spec.prefix_cache_collapse.hit_rate,
        "preemptions": lambda: spec.preemptions.per_minute,
        "inter_token_latency": lambda: target.edge(ITL, spec.inter_token_latency.seconds),
    }
    limits = {
        name: Limit(value(), _limit_text(made[ALERTS[name]]), low_is_bad=name == "prefix_cache_collapse")
        for name, value in values.items()
        if ALERTS[name] in made
    }
    if "ttft_slo_breach" in limits:
        share = spec.ttft_slo_breach.quantile
        limits["ttft_share"] = replace(limits["ttft_slo_breach"], value=share, low_is_bad=True)
    return limits


def _limit_text(rule: Rule) -> str:
    runbook = rule["annotations"]["runbook_url"]
    name = f"[{rule['alert']}]({runbook})" if "://" in runbook else f"{rule['alert']} ({runbook})"
    return f"Red: where {name} begins; it fires after {rule['for']}."


def _ttft_edge(target: Target) -> float:
    return target.edge(TTFT, target.alerts.ttft_slo_breach.seconds)


def _share_in_time(target: Target) -> str:
    """Without the 0/0 of a service that nobody asks anything."""
    return f"{target.within(TTFT, _ttft_edge(target))} and {target.rate(f'{TTFT}_count')} > 0"


def _hit_rate(target: Target) -> str:
    return f"{target.rate(HITS, window='10m')} / ({target.rate(QUERIES, window='10m')} > 0)"


def _firing(target: Target) -> str:
    """The alerts that fire, else 0 named "none" as long as the rules of this service are evaluated at all."""
    state = 'alertstate="firing"'
    firing = f"sum by (alertname) (ALERTS{target.selector(state)})"
    evaluated = f"sum(service:vllm_kv_cache_tokens:used{target.selector()}) * 0"
    return f'{firing} or on () label_replace({evaluated}, "alertname", "none", "", "")'


def _by_replica(target: Target, aggregation: str, sample: str) -> str:
    """One curve for each Deployment, over the names of its pods: short, and the same curve after a restart."""
    pod = f"({'|'.join(target.servers)})-.+"
    named = f'label_replace({target.series(sample)}, "{REPLICA}", "$1", "pod", "{pod}")'
    return by_service(aggregation, named, REPLICA)


def _quantiles(target: Target, histogram: str, objective: float) -> list[tuple[str, str]]:
    """Half of all, the share that the objective is about (it crosses the limit as the alert does), and the tail."""
    shown = sorted({0.5, objective, 0.99})
    return [(f"p{quantile * 100:g}", target.quantile(quantile, histogram, "5m")) for quantile in shown]


def _dashboard(target: Target) -> dashboard.Dashboard:
    board, identifiers = _empty(target), count(1)
    x = 0
    for panel in panels_now(target):
        place = GridPos(h=STAT_HEIGHT, w=WIDE if panel.names else NARROW, x=x, y=0)
        board = board.with_panel(_stat(panel).id(next(identifiers)).grid_pos(place))
        x += place.w
    y = STAT_HEIGHT
    for row in rows_over_time(target):
        heading = dashboard.Row(row.title).id(next(identifiers))
        board = board.with_row(heading.grid_pos(GridPos(h=1, w=WIDTH, x=0, y=y)))
        width = WIDTH // len(row.panels)
        for column, panel in enumerate(row.panels):
            place = GridPos(h=CURVES_HEIGHT, w=width, x=column * width, y=y + 1)
            # No finer than the readings: Grafana would draw the gaps between them.
            curves = _curves(panel).interval(f"{target.scrape_interval_seconds}s")
            board = board.with_panel(curves.id(next(identifiers)).grid_pos(place))
        y += 1 + CURVES_HEIGHT
    return board


def _empty(target: Target) -> dashboard.Dashboard:
    """The dashboard without its panels. The data source is a variable; the links lead to the other services."""
    title = f"vLLM {target.namespace}/{target.service}"
    others = dashboard.DashboardLink("Other services").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return (
        dashboard.Dashboard(title)
        .uid(f"vllm-{hashlib.sha256(title.encode()).hexdigest()[:12]}")
        .tags([TAG, target.namespace])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(others.as_dropdown(True).keep_time(True))
    )


def _stat(panel: Panel) -> stat.Panel:
    """A number, coloured by its limit. Asked for this moment only: the last of a range may be hours old."""
    built = (
        stat.Panel()
        .title(panel.title)
        .description(_description(panel))
        .unit(panel.unit)
        .datasource(DATA_SOURCE)
        .thresholds(_thresholds(panel, good="green"))
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(BigValueColorMode.NONE if panel.limit is None else BigValueColorMode.BACKGROUND_SOLID)
        .text_mode(BigValueTextMode.NAME if panel.names else BigValueTextMode.VALUE)
    )
    if panel.names:
        # One below the other and of one size: fitted into a share of the panel, three names are too small to read.
        size = common.VizTextDisplayOptions().value_size(NAME_PIXELS)
        built = built.orientation(VizOrientation.HORIZONTAL).text(size)
    for query in _queries(panel):
        built = built.with_target(query.instant())
    return built


def _curves(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(_description(panel))
        .unit(panel.unit)
        .min(0)
        .datasource(DATA_SOURCE)
        .thresholds(_thresholds(panel, good="transparent"))
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if panel.limit is not None:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        built = built.thresholds_style(style)
    top = panel.top if panel.top is not None or panel.limit is None else panel.limit.value * ABOVE_LIMIT
    if top is not None:
        built = built.axis_soft_max(top)
    if panel.stacked:
        built = built.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    for legend, colour in panel.colours.items():
        fixed = DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        built = built.override_by_name(legend, [fixed])
    for query in _queries(panel):
        built = built.with_target(query.range())
    return built


def _description(panel: Panel) -> str:
    return panel.description if panel.limit is None else f"{panel.description} {panel.limit.text}"


def _queries(panel: Panel) -> Iterator[prometheus.Dataquery]:
    for letter, (legend, expression) in zip(ascii_uppercase, panel.queries, strict=False):
        yield prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend)


def _thresholds(panel: Panel, good: str) -> dashboard.ThresholdsConfig:
    """Red from the alert's limit on, or below it where a low value is bad.

    Beside curves ``good`` is transparent: Grafana then draws the one line in red, whichever side is bad
    (UPlotThresholds.ts of @grafana/ui).
    """
    if panel.limit is None:
        steps = [Threshold(value=None, color=good)]
    else:
        low, high = ("red", good) if panel.limit.low_is_bad else (good, "red")
        steps = [Threshold(value=None, color=low), Threshold(value=panel.limit.value, color=high)]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
