"""One measured start beside the plan: each phase, the budget, the caches, the KV cache, the arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from infra.cold_start.arguments import cache_config, differences, kv_tokens_of
from infra.cold_start.evidence import Evidence
from infra.cold_start.start import IN_ENGINE, OUTSIDE, Start, starts_of
from planner.arguments import ArgumentsError
from planner.findings import Finding, Level
from planner.plan import ServicePlan
from planner.startup import CacheState, StartupPlan, downloads_in_container, figures, plan_startup

WARN_SHARE = 0.7
"""From this share of the startup probe's window on a start is close to being killed."""
KV_TOLERANCE = 0.01
CARD_TOLERANCE_MIB = 400
"""The plan of nvidia-smi was measured to be this near (H200, nine starts)."""
_GUIDE = "docs/measure-a-cold-start.md"

ReadFrom = Literal["volume", "page cache", "unknown"]


@dataclass(frozen=True)
class Row:
    """One phase, seconds; None: unknown, or not planned. ``part`` says that it is a part of the row below it."""

    name: str
    measured: float | None
    planned: float | None
    why: str
    part: bool = False


@dataclass(frozen=True)
class Report:
    """What is said of one start. ``state`` is what the plan beside it assumes to be cached."""

    service: str
    start: Start
    state: CacheState
    planned: StartupPlan
    rows: tuple[Row, ...]
    budget_seconds: int
    kv_tokens_planned: int
    read_from: ReadFrom
    findings: tuple[Finding, ...]


def reports_of(plan: ServicePlan, evidence: Evidence, card_mib: int | None = None) -> tuple[Report, ...]:
    """A report on each start that can be measured, the older first. ``card_mib``: used, as nvidia-smi shows it."""
    return tuple(_report(plan, evidence, start, card_mib) for start in starts_of(evidence))


def read_from(plan: ServicePlan, start: Start) -> ReadFrom:
    """Where the weights were read from, judged by their rate: nobody can see it from outside.

    What this start downloaded is not on the volume only: the L40S read it once in 14.8 s and once in 2.3 s. So such a
    read says nothing about the volume.
    """
    seconds = start.seconds("read")
    if not seconds or start.downloaded is not False:
        return "unknown"
    rate = plan.model.weight_bytes / seconds
    return "page cache" if rate >= float(figures("startup")["pageCacheBytesPerSecond"]["value"]) / 2 else "volume"


def _report(plan: ServicePlan, evidence: Evidence, start: Start, card_mib: int | None) -> Report:
    source = read_from(plan, start)
    state = _state(plan, start, source)
    planned = plan_startup(plan.gpu, plan.model, plan.release, plan.service, plan.pool, state)
    tokens = _kv_tokens(plan, start)
    return Report(
        service=plan.name,
        start=start,
        state=state,
        planned=planned,
        rows=tuple(_rows(start, planned)),
        budget_seconds=plan.clocks.startup_window_seconds,
        kv_tokens_planned=tokens,
        read_from=source,
        findings=tuple(_findings(plan, evidence, start, tokens, card_mib)),
    )


def _kv_tokens(plan: ServicePlan, start: Start) -> int:
    """The plan's KV tokens: a start that compiles has fewer than one that finds its cache."""
    memory = plan.memory
    return {"hit": memory.kv_tokens_cached, "miss": memory.kv_tokens_compiling}.get(start.cache, memory.kv_tokens)


def _state(plan: ServicePlan, start: Start, source: ReadFrom) -> CacheState:
    """What was there when this start began; where that is not known, what the stack provides for."""
    image = start.image_local if start.image_local is not None else plan.pool.image_delivery != "none"
    weights = not start.downloaded if start.downloaded is not None else not downloads_in_container(plan.service)
    # An eager start says nothing of the kernels that it builds; without a cache every start compiles.
    found = start.cache == "hit" or start.eager
    return CacheState(image, weights, page_cache=source == "page cache", compile_cache=found)


def _rows(start: Start, planned: StartupPlan) -> Iterator[Row]:
    expected: dict[str, float] = {}
    for expectation in planned.phases:
        # The log cannot tell the profile run's own time from kernels that it builds at their first use.
        name = "profile" if expectation.name == "kernels" else expectation.name
        expected[name] = expected.get(name, 0.0) + expectation.seconds
    for phase in start.phases:
        if phase.name == "answer":
            yield Row(
                "init engine", start.init_engine_seconds, planned.init_engine_seconds, "log: the sum of the three"
            )
        part = phase.name in IN_ENGINE
        label = "profile, kernels" if phase.name == "profile" else phase.name
        yield Row(label, phase.seconds, expected.get(phase.name), phase.why, part)
    unknown = [phase.name for phase in start.phases if phase.seconds is None and phase.name not in IN_ENGINE]
    holds = f"; holds what is unknown: {', '.join(unknown)}" if unknown else ""
    yield Row("not explained", start.unexplained_seconds, None, f"no stamp tells what it was{holds}")
    outside = start.total_from != "the pod's creation"
    total = planned.seconds - sum(phase.seconds for phase in planned.phases if outside and phase.name in OUTSIDE)
    yield Row("total", start.total_seconds, total, f"from {start.total_from}")


# What is to be said


def _findings(
    plan: ServicePlan, evidence: Evidence, start: Start, kv_tokens: int, card_mib: int | None
) -> Iterator[Finding]:
    yield from _budget(plan, start)
    yield from _caches(plan, start)
    yield from _kv(plan, evidence, start, kv_tokens)
    yield from _arguments(plan, start)
    yield from _card(plan, card_mib)
    yield from _gaps(plan, evidence, start)


def _say(level: Level, path: str, message: str, remedy: str, rule: str) -> Finding:
    return Finding(level, path, message, remedy, f"START-{rule}", _GUIDE)


def _budget(plan: ServicePlan, start: Start) -> Iterator[Finding]:
    path, window = f"vllm:services.{plan.name}.overrides.startupSeconds", plan.clocks.startup_window_seconds
    seconds = start.in_container_seconds
    if start.outcome == "ended":
        after = f" after {seconds:.0f} s" if seconds is not None else ""
        message = f"the start did not come to its end: {start.ended}{after}"
        yield _say("error", path, message, "ask `vllm-infra diagnose` for the reason", "ENDED")
    if seconds is None:
        return
    at_least = "" if start.outcome == "ready" else "at least "
    share = f"{at_least}{seconds:.0f} s in the container, of a window of {window} s"
    inside = [phase for phase in start.phases if phase.seconds and phase.name not in OUTSIDE]
    slowest = max(inside, key=lambda phase: phase.seconds or 0.0, default=None)
    remedy = f"the longest phase is {slowest.name}, {slowest.seconds:.0f} s; " if slowest else ""
    if seconds > window:
        yield _say("error", path, share, f"{remedy}speed it up or raise startupSeconds", "BUDGET")
    elif seconds >= WARN_SHARE * window:
        yield _say("warn", path, share, f"{remedy}a slower day would be killed", "BUDGET")


def _caches(plan: ServicePlan, start: Start) -> Iterator[Finding]:
    path = f"vllm:services.{plan.name}"
    if start.cache == "broken":
        reason = start.log.text("cacheBroken", "reason") or "no reason is given"
        message = f"the compile cache could not be loaded ({reason}): compiled again"
        remedy = "the next start should hit; if it does not, empty the folder of the compile cache"
        yield _say("warn", f"{path}.cache", message, remedy, "CACHE")
    elif start.cache in ("miss", "partly"):
        message = f"the compile cache was {'missed' if start.cache == 'miss' else 'only partly hit'}"
        remedy = "right for the first start after a change; a restart without one must hit"
        yield _say("info", f"{path}.cache", message, remedy, "CACHE")
    if start.downloaded and not downloads_in_container(plan.service):
        message = "the weights were downloaded by the server, although the stack has them on the claim"
        yield _say("warn", f"{path}.cache.seed", message, "look at the claim and at the seed Job's log", "DOWNLOAD")
    if start.image_local is False and plan.pool.image_delivery != "none":
        message = f"the image was pulled by the server's pod, although imageDelivery is {plan.pool.image_delivery}"
        remedy = "the kubelet may have collected it: look at the node's disk"
        yield _say("warn", f"vllm:nodes.{plan.service.pool}.imageDelivery", message, remedy, "IMAGE")


def _kv(plan: ServicePlan, evidence: Evidence, start: Start, planned: int) -> Iterator[Finding]:
    path = f"vllm:services.{plan.name}.engine.gpuMemoryUtilization"
    if start.kv_tokens is not None and abs(start.kv_tokens - planned) > KV_TOLERANCE * planned:
        message = f"{start.kv_tokens:,} KV tokens, planned {planned:,} ({start.kv_tokens / planned - 1:+.1%})"
        remedy = "look whether another process holds memory of the card; else the plan is wrong for this case"
        yield _say("warn", path, message, remedy, "KV")
    counted = kv_tokens_of(cache_config(evidence.metrics or ""))
    if counted is not None and start.kv_tokens is not None and not start.before_restart and counted != start.kv_tokens:
        message = f"the log says {start.kv_tokens:,} KV tokens, /metrics {counted:,} (block size x blocks)"
        yield _say("info", path, message, "hybrid models count blocks by group; else they must agree", "KV-METRICS")


def _arguments(plan: ServicePlan, start: Start) -> Iterator[Finding]:
    path = f"vllm:services.{plan.name}.engine"
    if start.arguments is None:
        return
    try:
        found = differences(plan.argv, plan.release, start.arguments)
    except ArgumentsError as error:
        yield _say(
            "info", path, f"arguments not compared: {error}", "`vllm-infra plan` says what is wrong", "ARGUMENTS"
        )
        return
    for one in found:
        message = f"{one.name}: rendered {one.rendered or 'nothing'}, the server has {one.logged or 'nothing'}"
        remedy = "this start is of another stack file, or something between changed the command"
        yield _say("warn", path, message, remedy, "ARGUMENTS")


def _card(plan: ServicePlan, card_mib: int | None) -> Iterator[Finding]:
    planned = plan.memory.used_mib
    if card_mib is not None and abs(card_mib - planned) > CARD_TOLERANCE_MIB:
        message = f"nvidia-smi shows {card_mib:,} MiB, planned {planned:,.0f}"
        remedy = "look for other processes on the card; else the plan is wrong for this case"
        yield _say("warn", f"vllm:services.{plan.name}.engine.gpuMemoryUtilization", message, remedy, "CARD")


def _gaps(plan: ServicePlan, evidence: Evidence, start: Start) -> Iterator[Finding]:
    path = f"vllm:services.{plan.name}"
    absent = start.log.absent(plan.release.number)
    if absent and start.outcome == "ready":
        remedy = (
            "a log above INFO, or one whose beginning was rotated away, lacks them; else the release words them anew"
        )
        yield _say(
            "info",
            path,
            f"lines that vLLM {plan.release.version} prints are not in the log: {', '.join(absent)}",
            remedy,
            "LINES",
        )
    for reason in evidence.unread:
        yield _say(
            "info", path, f"not read: {reason}", "measure right after the start, while it is all there", "UNREAD"
        )
