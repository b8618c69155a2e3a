"""The seconds of each phase of one start, from the pod's conditions, its events and its log.

A phase without evidence is unknown, never zero: an event that has expired says nothing. Two figures of the log are
sums and are not added to their parts: `Model loading took` holds download and read, `init engine` holds compile,
capture, profile run and warm-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from infra.cold_start.evidence import Evidence, Manifest, condition, container_status, name_of, restarts_of
from infra.cold_start.log import StartLog, event_pattern, read_log

PhaseName = Literal["node", "image", "sandbox", "import", "download", "read", "compile", "profile", "graphs", "answer"]
CacheUse = Literal["hit", "miss", "partly", "broken", "off", "unknown"]
Outcome = Literal["ready", "starting", "ended"]

OUTSIDE: tuple[PhaseName, ...] = ("node", "image", "sandbox")
"""Before the container runs: they belong to a pod's first start only."""
IN_ENGINE: tuple[PhaseName, ...] = ("profile", "compile", "graphs")
"""Parts of `init engine`. ``profile`` is what is left of it: profile run, kernels at first use, KV cache, warm-up."""

_LATER_READY_SECONDS = 60.0
"""Ready came this long after the server answered: the condition is of a later loss of readiness, not of the start."""
_STAMP_SECONDS = 2.0
"""Kubernetes' stamps are whole seconds: a difference of two can be this much too small."""
_DURATION = re.compile(r"([\d.]+)(h|ms|µs|us|ns|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Measured:
    """One phase: its seconds (None: unknown) and what they are known from, or why they are not."""

    name: PhaseName
    seconds: float | None
    why: str


@dataclass(frozen=True)
class Pull:
    """An image that was pulled: seconds of the pull alone and with waiting for others, and its bytes if said."""

    seconds: float
    waited_seconds: float
    bytes: int | None


@dataclass(frozen=True)
class Start:
    """One start of the server's container.

    ``total_seconds`` runs from ``total_from`` to Ready, ``in_container_seconds`` from the container's start to the
    answer, which is what the startup probe waits for; of a start that has not answered it is the least it can be.
    ``init_engine_seconds`` and ``loading_seconds`` are the log's sums. ``unexplained_seconds`` is the rest of the total
    for which there is no stamp; it also holds what is unknown. ``old_stop_seconds`` is the stop of the pod before.
    ``image_local`` and ``downloaded`` are None when not known.
    """

    pod: str
    before_restart: bool
    outcome: Outcome
    ended: str
    phases: tuple[Measured, ...]
    total_seconds: float | None
    total_from: str
    in_container_seconds: float | None
    init_engine_seconds: float | None
    loading_seconds: float | None
    unexplained_seconds: float | None
    old_stop_seconds: float | None
    image_local: bool | None
    pull: Pull | None
    downloaded: bool | None
    cache: CacheUse
    cache_folder: str | None
    eager: bool
    kv_tokens: int | None
    arguments: str | None
    log: StartLog

    def seconds(self, name: PhaseName) -> float | None:
        """The seconds of one phase; None when unknown, or when the start has no such phase."""
        return next((phase.seconds for phase in self.phases if phase.name == name), None)


@dataclass(frozen=True)
class _Run:
    """The stamps of one run of the container; ``first`` says that the pod was made for it."""

    first: bool
    before_restart: bool
    started: datetime | None
    finished: datetime | None
    ended: str
    ready: datetime | None


def starts_of(evidence: Evidence) -> tuple[Start, ...]:
    """The starts that can be measured, the older first: the one before the last restart, and the newest."""
    runs = list(_runs(evidence.pod))
    logs = {run.before_restart: evidence.previous_log if run.before_restart else evidence.log for run in runs}
    return tuple(
        _start(evidence, run, read_log(logs[run.before_restart] or ""))
        for run in runs
        if run.started or logs[run.before_restart]
    )


def _runs(pod: Manifest | None) -> Iterator[_Run]:
    if pod is None:
        yield _Run(first=True, before_restart=False, started=None, finished=None, ended="", ready=None)
        return
    status = container_status(pod)
    state, restarts = status.get("state") or {}, restarts_of(pod)
    last = (status.get("lastState") or {}).get("terminated")
    if last:
        yield _ended_run(last, first=restarts == 1, before_restart=True)
    if state.get("terminated"):
        yield _ended_run(state["terminated"], first=restarts == 0, before_restart=False)
    elif not last or state.get("running"):
        started = stamp((state.get("running") or {}).get("startedAt"))
        ready = stamp(condition(pod, "Ready").get("lastTransitionTime"))
        yield _Run(restarts == 0, before_restart=False, started=started, finished=None, ended="", ready=ready)


def _ended_run(state: Mapping[str, Any], *, first: bool, before_restart: bool) -> _Run:
    ended = f"{state.get('reason') or 'ended'}, exit code {state.get('exitCode')}"
    return _Run(first, before_restart, stamp(state.get("startedAt")), stamp(state.get("finishedAt")), ended, ready=None)


def _start(evidence: Evidence, run: _Run, log: StartLog) -> Start:
    pod = evidence.pod
    created = stamp(pod["metadata"].get("creationTimestamp")) if pod and run.first else None
    answered = log.answers if log.cluster_clock else None
    ready = _trusted_ready(run, log)
    begin, origin = _begin(created, run, log)
    end = ready or (log.answers if begin == log.first else answered)
    pulls, present = pulls_of(evidence.events, name_of(pod)) if pod and run.first else ((), False)
    outside = _outside(pod, run, pulls, present) if run.first else ()
    phases = (*outside, *_inside(run, log), _answer(log, ready))
    total = _between(begin, end)
    return Start(
        pod=name_of(pod) if pod else "",
        before_restart=run.before_restart,
        outcome=_outcome(run, log),
        ended=run.ended,
        phases=phases,
        total_seconds=total,
        total_from=origin,
        in_container_seconds=_in_container(run, log, answered, ready),
        init_engine_seconds=log.seconds("initEngine"),
        loading_seconds=log.seconds("loaded"),
        unexplained_seconds=_unexplained(total, phases, log.seconds("initEngine")),
        old_stop_seconds=_old_stop(evidence, created),
        image_local=False if pulls else True if present else None,
        pull=max(pulls, key=lambda pull: pull.seconds, default=None),
        downloaded=_downloaded(log),
        cache=_cache(log),
        cache_folder=log.text("cacheFolder") or log.text("cacheHit"),
        eager=log.has("eager"),
        kv_tokens=log.count("kvTokens"),
        arguments=log.text("arguments"),
        log=log,
    )


def _begin(created: datetime | None, run: _Run, log: StartLog) -> tuple[datetime | None, str]:
    if created:
        return created, "the pod's creation"
    if run.started:
        return run.started, "the container's start"
    return log.first, "the log's first line"


def _trusted_ready(run: _Run, log: StartLog) -> datetime | None:
    """When the pod became Ready, unless that was long after the server had answered: then it was lost and found."""
    if run.ready is None or run.started is None or log.answers is None or log.first is None:
        return run.ready
    # vLLM's own clock says only how long it was; its first line comes soon after the container's start.
    answered = log.answers if log.cluster_clock else run.started + (log.answers - log.first)
    return run.ready if (run.ready - answered).total_seconds() <= _LATER_READY_SECONDS else None


def _outcome(run: _Run, log: StartLog) -> Outcome:
    if log.has("ready") or run.ready:
        return "ready"
    return "ended" if run.ended else "starting"


# Before the container


def pulls_of(events: Sequence[Manifest], pod: str, node: str | None = None) -> tuple[tuple[Pull, ...], bool]:
    """The image pulls of the pods whose name begins with ``pod``, and whether an image was there already.

    ``node``: only what its kubelet says, where an event names one.
    """
    pulls: list[Pull] = []
    present = False
    for event in events:
        involved = event["involvedObject"]
        if event.get("reason") != "Pulled" or not str(involved.get("name", "")).startswith(pod):
            continue
        host = (event.get("source") or {}).get("host") or event.get("reportingInstance")
        if node and host and host != node:
            continue
        message = str(event.get("message") or "")
        present = present or event_pattern("present").search(message) is not None
        found = event_pattern("pulled").search(message)
        if found:
            pull = duration(found["pull"])
            pulls.append(Pull(pull, duration(found["waited"] or found["pull"]), int(found["size"] or 0) or None))
    return tuple(pulls), present


def duration(text: str) -> float:
    """Seconds of a duration as Go prints it: 3m40.2s, 890ms."""
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def _outside(pod: Manifest | None, run: _Run, pulls: Sequence[Pull], present: bool) -> tuple[Measured, ...]:
    image = sum(pull.waited_seconds for pull in pulls) if pulls else 0.0 if present else None
    said = "event: pulled" if pulls else "event: already present on machine"
    scheduled = stamp(condition(pod, "PodScheduled").get("lastTransitionTime")) if pod else None
    created = stamp(pod["metadata"].get("creationTimestamp")) if pod else None
    node, placed = _between(created, scheduled), _between(scheduled, run.started)
    sandbox = placed - image if placed is not None and image is not None else None
    why = "scheduled until the container runs, less the pull"
    if placed is not None and image is None:
        why = f"unknown: {placed:.0f} s with the pull, whose event is gone"
    return (
        Measured("node", node, "created until scheduled" if node is not None else "unknown: no condition PodScheduled"),
        Measured(
            "image", image, said if image is not None else "unknown: no event Pulled; events expire after an hour"
        ),
        Measured(
            "sandbox", _not_negative(sandbox), why if placed is not None else "unknown: no stamp of the container"
        ),
    )


def _old_stop(evidence: Evidence, created: datetime | None) -> float | None:
    """From the end of the pod before to this one's creation: the old server's stop is no part of a start."""
    server, pod = f"{evidence.service}-{evidence.replica}-", name_of(evidence.pod) if evidence.pod else ""
    stops = [
        when
        for event in evidence.events
        if event.get("reason") == "Killing"
        and (name := str(event["involvedObject"].get("name", ""))).startswith(server)
        and name != pod
        and (when := event_stamp(event))
        and created
        and when <= created
    ]
    return _between(max(stops, default=None), created)


# In the container


def _inside(run: _Run, log: StartLog) -> Iterator[Measured]:
    yield _import(run, log)
    yield _download(log)
    read = log.seconds("read")
    yield Measured("read", read, "log" if read is not None else _not_in(log, "Loading weights took"))
    yield from _engine(log)


def _import(run: _Run, log: StartLog) -> Measured:
    """Until a byte of weights moves. The V2 runner logs no beginning of the load: it is the end less its seconds."""
    begin = run.started if log.cluster_clock and run.started else log.first if log.has("banner", "platform") else None
    loads = log.first_stamp("loadStarts")
    if loads is None:
        ends = (("loaded", ("loaded",)), ("read", ("download", "read")), ("download", ("download",)))
        for name, parts in ends:
            end = log.last_stamp(name)
            if end:
                loads = end - timedelta(seconds=sum(log.seconds(part) or 0.0 for part in parts))
                break
    seconds = _not_negative(_between(begin, loads))
    since = "the container's start" if begin == run.started and begin else "the log's first line"
    why = f"{since} until the weights are loaded" if seconds is not None else _not_in(log, "the load of the weights")
    return Measured("import", seconds, why)


def _downloaded(log: StartLog) -> bool | None:
    if log.has("download"):
        return True
    # The line is left out below 0.5 s; that it is missing says something only where it would have been.
    begins = log.has("banner", "arguments", "engineBanner", "loadStarts")
    return False if begins and log.has("read", "loaded") else None


def _download(log: StartLog) -> Measured:
    downloaded = _downloaded(log)
    if downloaded is None:
        return Measured("download", None, _not_in(log, "the load, or its beginning is gone"))
    if downloaded:
        return Measured("download", log.seconds("download"), "log")
    return Measured("download", 0.0, "log: nothing downloaded (a line from 0.5 s on)")


def _engine(log: StartLog) -> Iterator[Measured]:
    total, compiling, graphs = log.seconds("initEngine"), _compiling(log), _graphs(log)
    rest = None
    if total is not None and compiling.seconds is not None and graphs.seconds is not None:
        rest = total - compiling.seconds - graphs.seconds
    run = log.seconds("profile")
    of = f", the profile run {run:.1f} s of it" if run is not None else ""
    unknown = "unknown: " + ("init engine" if total is None else "one of its parts") + " is not in the log"
    yield compiling
    yield Measured(
        "profile", _not_negative(rest), f"init engine less its other parts{of}" if rest is not None else unknown
    )
    yield graphs


def _compiling(log: StartLog) -> Measured:
    seconds = _compile(log)
    if log.has("eager"):
        return Measured("compile", seconds or 0.0, "off: eager")
    if seconds is None and (seconds := _warm_up(log)) is not None:
        return Measured("compile", seconds, "log: from the beginning of the warm-up until the graph is there")
    return Measured("compile", seconds, "log" if seconds is not None else _not_in(log, "the compile"))


def _warm_up(log: StartLog) -> float | None:
    """On processors no line has the seconds of the compile, but its beginning and its result have a stamp each."""
    ends = (log.last_stamp(name) for name in ("cacheSaved", "cacheHit", "warmUpEnds"))
    return _not_negative(_between(log.first_stamp("warmUpStarts"), next((end for end in ends if end), None)))


def _graphs(log: StartLog) -> Measured:
    seconds = log.seconds("graphs", last=True)
    if log.has("eager", "graphsOff"):
        return Measured("graphs", seconds or 0.0, "off: eager" if log.has("eager") else "off: no CUDA graphs")
    return Measured("graphs", seconds, "log" if seconds is not None else _not_in(log, "the end of the capture"))


def _compile(log: StartLog) -> float | None:
    """Trace and compile, or load from the cache; None when the log only says it together with the profile run.

    The total of releases around 0.11.0 leaves the load from the cache out, so it counts only where it is the larger.
    """
    trace, compiled, loaded = (log.seconds(name) for name in ("trace", "compiled", "cacheHit"))
    parts = None if compiled is None and loaded is None else (trace or 0.0) + (compiled or 0.0) + (loaded or 0.0)
    said = (log.seconds("compile"), log.seconds("initEngine", "compilation"), parts)
    return max((seconds for seconds in said if seconds is not None), default=None)


def _cache(log: StartLog) -> CacheUse:
    """A write is a miss. The line decides, not the seconds."""
    if log.has("eager", "cacheOff"):
        return "off"
    if log.has("cacheBroken"):
        return "broken"
    hit, missed = log.has("cacheHit"), log.has("compiled", "cacheWritten", "cacheSaved")
    if hit and missed:
        return "partly"
    return "hit" if hit else "miss" if missed else "unknown"


def _answer(log: StartLog, ready: datetime | None) -> Measured:
    """From the engine to the answer: the API server's own start, then the probe that finds it."""
    engine = log.last_stamp("initEngine")
    end = ready if ready and log.cluster_clock else log.answers
    seconds = _not_negative(_between(engine, end))
    until = "Ready" if end is ready else "the server answers"
    return Measured(
        "answer", seconds, f"init engine until {until}" if seconds is not None else _not_in(log, "the answer")
    )


def _in_container(run: _Run, log: StartLog, answered: datetime | None, ready: datetime | None) -> float | None:
    if _outcome(run, log) == "ready":
        if run.started:
            return _not_negative(_between(run.started, answered or ready))
        return _between(log.first, log.answers)
    if run.started:
        return _between(run.started, run.finished or (log.last if log.cluster_clock else None))
    return _between(log.first, log.last)


def _unexplained(total: float | None, phases: Sequence[Measured], init_engine: float | None) -> float | None:
    if total is None:
        return None
    known = sum(phase.seconds or 0.0 for phase in phases if phase.name not in IN_ENGINE)
    parts = sum(phase.seconds or 0.0 for phase in phases if phase.name in IN_ENGINE)
    return total - known - (init_engine if init_engine is not None else parts)


# Stamps


def stamp(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it; None without one."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00")) if text else None


def event_stamp(event: Manifest) -> datetime | None:
    """When an event was last seen. Old and new API spell it differently."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return stamp(event.get("lastTimestamp") or series or event.get("eventTime"))


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return (end - begin).total_seconds() if begin and end else None


def _not_negative(seconds: float | None) -> float | None:
    """Zero for what whole-second stamps made negative; None for what cannot be a duration."""
    if seconds is None or seconds < -_STAMP_SECONDS:
        return None
    return max(0.0, seconds)


def _not_in(log: StartLog, what: str) -> str:
    return (
        f"unknown: the log ends before {what}"
        if log.matches and not log.has("ready")
        else f"unknown: the log lacks {what}"
    )
