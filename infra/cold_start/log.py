"""The log of one start: which of the known lines are in it, when and from which process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from typing import Any

from planner.releases import Version, version_number

_CLUSTER_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ?")
"""What the kubelet puts before each line with `timestamps=true`; `kubectl logs --timestamps` prints it."""
_KUBECTL_PREFIX = re.compile(r"^\[pod/\S+\] ")
_OWN_STAMP = re.compile(r"\b(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<when>\d\d-\d\d \d\d:\d\d:\d\d)\b")
_PROCESS = re.compile(r"\((\w[\w.-]*) pid=(\d+)\)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINE_END = re.compile(r"\r\n|\n|\r")
_MESSAGE_KEYS = ("message", "msg", "event")
_TIME_KEYS = ("timestamp", "time", "asctime", "ts")
_PROCESS_KEYS = ("process_name", "processName", "process", "name")
_AFTER_BANNER = frozenset({"loadStarts", "read", "loaded", "initEngine", "http", "ready", "failure"})
_ANY_YEAR = 2000
"""vLLM's own stamp has no year; only differences are taken of it. A leap year, so that 02-29 is a date."""


@dataclass(frozen=True)
class Pattern:
    """One line that vLLM prints while it starts, from ``data/log_patterns.json``."""

    name: str
    search: re.Pattern[str]
    always: bool
    not_on: frozenset[str]
    since: Version


@dataclass(frozen=True)
class Match:
    """One known line: when (None: no stamp), by which process (empty: not said), and what it says."""

    name: str
    when: datetime | None
    process: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class StartLog:
    """The known lines of one start, in their order.

    ``cluster_clock`` says that the stamps are the kubelet's, so that they may be compared with the pod's; otherwise
    they are vLLM's own, whole seconds of the container's clock. ``first`` and ``last`` are the stamps at both ends.
    """

    matches: tuple[Match, ...]
    cluster_clock: bool
    first: datetime | None
    last: datetime | None

    @property
    def answers(self) -> datetime | None:
        """When the server began to answer; uvicorn's line has no stamp of its own, the one before it is then near."""
        return (self.first_stamp("ready") or self.last) if self.has("ready") else None

    def all(self, name: str) -> tuple[Match, ...]:
        return tuple(match for match in self.matches if match.name == name)

    def has(self, *names: str) -> bool:
        return any(match.name in names for match in self.matches)

    def text(self, name: str, group: str = "text") -> str | None:
        """What the first such line says; None without one."""
        return next((match.values[group] for match in self.all(name) if group in match.values), None)

    def seconds(self, name: str, group: str = "seconds", *, last: bool = False) -> float | None:
        """Seconds of a stage in the slowest process: processes work side by side, one process one after the other.

        ``last``: only the last line of each process counts, not their sum.
        """
        each: dict[str, float] = {}
        for match in self.all(name):
            if group in match.values:
                earlier = 0.0 if last else each.get(match.process, 0.0)
                each[match.process] = earlier + float(match.values[group])
        return max(each.values(), default=None)

    def count(self, name: str) -> int | None:
        """The smallest number that such a line gives: what every process has."""
        return min((int(match.values["count"].replace(",", "")) for match in self.all(name)), default=None)

    def first_stamp(self, name: str) -> datetime | None:
        return min((match.when for match in self.all(name) if match.when), default=None)

    def last_stamp(self, name: str) -> datetime | None:
        return max((match.when for match in self.all(name) if match.when), default=None)

    def absent(self, release: Version) -> tuple[str, ...]:
        """Lines that every start of a release on this device prints and that are not there."""
        device = self.text("device")
        return tuple(
            pattern.name
            for pattern in patterns()
            if pattern.always
            and pattern.since <= release
            and device not in pattern.not_on
            and not self.has(pattern.name)
        )


@cache
def _document() -> Mapping[str, Any]:
    text = (resources.files("planner") / "data" / "log_patterns.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


@cache
def patterns() -> tuple[Pattern, ...]:
    """Every known line. All are tried whatever the release: none means something else in another one."""
    return tuple(
        Pattern(
            line["name"],
            re.compile(line["pattern"]),
            line["always"],
            frozenset(line.get("notOn", ())),
            version_number(line["since"]),
        )
        for line in _document()["lines"]
    )


@cache
def event_pattern(name: str) -> re.Pattern[str]:
    """The pattern of an event's message: ``pulled`` or ``present``."""
    return re.compile(_document()["events"][name]["pattern"])


@dataclass(frozen=True)
class _Line:
    when: datetime | None
    by_cluster: bool
    process: str
    text: str


def read_log(text: str) -> StartLog:
    """The last start in a log, up to the moment in which it answers.

    What follows is not looked at: a prompt that is logged may contain any text. A collected log can hold several
    starts; each begins with the banner of the API server.
    """
    lines = [_line(raw) for raw in _LINE_END.split(text) if raw.strip()]
    starts: list[list[tuple[_Line, list[Match]]]] = [[]]
    for line in lines:
        found = list(_matches(line))
        names = {match.name for match in found}
        if "banner" in names and any(match.name in _AFTER_BANNER for _, each in starts[-1] for match in each):
            starts.append([])
        if not any(match.name == "ready" for _, each in starts[-1] for match in each):
            starts[-1].append((line, found))
    return _start_log(starts[-1])


def _start_log(lines: Sequence[tuple[_Line, list[Match]]]) -> StartLog:
    # One clock for all: the kubelet's where it is there, since a line of a library has no stamp of its own.
    by_cluster = any(line.by_cluster for line, _ in lines)
    matches = tuple(
        match if line.by_cluster == by_cluster else Match(match.name, None, match.process, match.values)
        for line, found in lines
        for match in found
    )
    stamps = [line.when for line, _ in lines if line.when and line.by_cluster == by_cluster]
    return StartLog(matches, by_cluster, min(stamps, default=None), max(stamps, default=None))


def _matches(line: _Line) -> Iterable[Match]:
    for pattern in patterns():
        found = pattern.search.search(line.text)
        if found:
            values = {name: value for name, value in found.groupdict().items() if value is not None}
            yield Match(pattern.name, line.when, line.process, values)


def _line(raw: str) -> _Line:
    text = _KUBECTL_PREFIX.sub("", _COLOUR.sub("", raw))
    stamp = _CLUSTER_STAMP.match(text)
    # Python 3.10 reads six decimals and no other number of them; the kubelet prints up to nine.
    when = _parsed(f"{stamp[1]}{(stamp[2] or '.'):0<7.7}{stamp[3]}") if stamp else None
    text = text[stamp.end() :] if stamp else text
    record = _record(text)
    if record is not None:
        return _from_record(record, when)
    own = _OWN_STAMP.search(text)
    if own and own["level"] == "DEBUG":
        # What is measured is printed at INFO; at DEBUG anything may be quoted.
        text = ""
    process = _PROCESS.search(text)
    return _Line(
        when or (_own(own["when"]) if own else None), bool(when), process[1] + process[2] if process else "", text
    )


def _record(text: str) -> Mapping[str, Any] | None:
    """The object that a line of JSON is; None for every other line, also one with a prefix in JSON."""
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) and any(key in record for key in _MESSAGE_KEYS) else None


def _from_record(record: Mapping[str, Any], when: datetime | None) -> _Line:
    message = str(next(record[key] for key in _MESSAGE_KEYS if key in record))
    level = str(record.get("level", record.get("levelname", ""))).upper()
    own = next((str(record[key]) for key in _TIME_KEYS if key in record), "")
    process = _PROCESS.search(message)
    named = "".join(str(record.get(key, "")) for key in (*_PROCESS_KEYS, "pid"))
    return _Line(
        when or _parsed(own),
        bool(when),
        process[1] + process[2] if process else named,
        "" if level == "DEBUG" else message,
    )


def _parsed(text: str) -> datetime | None:
    """A date with a year, in UTC where it says no zone; None for anything else."""
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00").replace(",", "."))
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


def _own(text: str) -> datetime | None:
    return _parsed(f"{_ANY_YEAR}-{text}")
