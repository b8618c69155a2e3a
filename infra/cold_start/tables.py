"""The report on a start: a table with a bar for each phase, and plain data for a program."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infra.cold_start.cache_keys import CacheKey, keys_of
from infra.cold_start.comparison import Report
from infra.cold_start.evidence import Evidence, is_ready
from infra.cold_start.start import Start

_BAR_WIDTH = 24
_KEY_DIGITS = 10
_IMAGE = {True: "already on the node", False: "pulled", None: "unknown: no event"}
_WEIGHTS = {True: "downloaded", False: "on the volume", None: "unknown"}


def block(report: Report, evidence: Evidence, card_mib: int | None) -> RenderableType:
    """One start for a person."""
    start = report.start
    which = " before the last restart" if start.before_restart else ""
    title = f"{report.service}: start of {start.pod or 'a saved log'}{which}"
    return Panel(Group(_phases(report), Text(), _facts(report, evidence, card_mib)), title=title, title_align="left")


def _phases(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("phase")
    table.add_column("measured", justify="right")
    table.add_column("planned", justify="right")
    table.add_column("", width=_BAR_WIDTH)
    table.add_column("from")
    sums = ("init engine", "total")
    longest = max((row.measured or row.planned or 0.0 for row in report.rows if row.name not in sums), default=0.0)
    for row in report.rows:
        bar: RenderableType = Text()
        if row.measured and longest and row.name not in sums:
            bar = Bar(longest, 0, min(row.measured, longest), width=_BAR_WIDTH)
        name = f"  {row.name}" if row.part else row.name
        table.add_row(
            Text(name),
            _seconds(row.measured, "unknown"),
            _seconds(row.planned, ""),
            bar,
            Text(row.why, style="dim"),
            style="bold" if row.name in sums else "",
        )
    return table


def _facts(report: Report, evidence: Evidence, card_mib: int | None) -> Table:
    start = report.start
    table = Table(show_header=False, box=None, pad_edge=False)
    inside = "unknown" if start.in_container_seconds is None else f"{start.in_container_seconds:.1f} s"
    least = "" if start.outcome == "ready" else "at least "
    tokens = "unknown" if start.kv_tokens is None else f"{start.kv_tokens:,}"
    card = "unknown: give it with --card-mib" if card_mib is None else f"{card_mib:,} MiB"
    answered = is_ready(evidence.pod) if evidence.pod else None
    rows = {
        "outcome": start.outcome if not start.ended else f"{start.outcome}; then ended: {start.ended}",
        "budget": f"{least}{inside} in the container, of {report.budget_seconds} s",
        "image": _IMAGE[start.image_local],
        "weights": f"{_WEIGHTS[start.downloaded]}, read from: {report.read_from}",
        "compile cache": start.cache + (f" ({start.cache_folder})" if start.cache_folder else ""),
        "compile caches": _keys(evidence, start),
        "KV cache": f"{tokens} tokens, planned {report.kv_tokens_planned:,}",
        "card": card,
        "/health": {True: "answers (Ready)", False: "does not answer now", None: "unknown: no pod"}[answered],
        "old server": "stop unknown" if start.old_stop_seconds is None else f"{start.old_stop_seconds:.0f} s to stop",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _keys(evidence: Evidence, start: Start) -> str:
    """The keys that lie on the claim, the largest first; those of this start are marked."""
    keys = keys_of(evidence.compile_cache or "", start.log)
    if not keys:
        return "none" if evidence.compile_cache is not None else "unknown: not listed"
    each = [f"{key.name[:_KEY_DIGITS]} {key.kibibytes / 1024:.1f} MiB{' (this start)' * key.used}" for key in keys]
    return f"{len(keys)}: {', '.join(each)}"


def _seconds(value: float | None, absent: str) -> Text:
    return Text(absent, style="dim") if value is None else Text(f"{value:.1f} s")


def as_data(report: Report, evidence: Evidence) -> dict[str, Any]:
    """One start for a program; seconds, None where unknown."""
    start = report.start
    return {
        "service": report.service,
        "pod": start.pod,
        "beforeRestart": start.before_restart,
        "outcome": start.outcome,
        "ended": start.ended,
        "phases": [
            {"name": row.name, "measured": row.measured, "planned": row.planned, "from": row.why} for row in report.rows
        ],
        "totalSeconds": start.total_seconds,
        "totalFrom": start.total_from,
        "inContainerSeconds": start.in_container_seconds,
        "budgetSeconds": report.budget_seconds,
        "initEngineSeconds": start.init_engine_seconds,
        "loadingSeconds": start.loading_seconds,
        "notExplainedSeconds": start.unexplained_seconds,
        "oldServerStopSeconds": start.old_stop_seconds,
        "imageLocal": start.image_local,
        "weightsDownloaded": start.downloaded,
        "weightsReadFrom": report.read_from,
        "compileCache": start.cache,
        "compileCacheFolder": start.cache_folder,
        "compileCaches": [_as_data(key) for key in keys_of(evidence.compile_cache, start.log)]
        if evidence.compile_cache is not None
        else None,
        "kvTokens": start.kv_tokens,
        "kvTokensPlanned": report.kv_tokens_planned,
        "findings": [asdict(finding) for finding in report.findings],
    }


def _as_data(key: CacheKey) -> dict[str, Any]:
    return {"key": key.name, "bytes": key.kibibytes * 1024, "used": key.used}
