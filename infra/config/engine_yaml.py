"""YAML as Pulumi's engine reads it, so that `vllm-infra plan` and `pulumi up` never see two stack files.

The engine uses gopkg.in/yaml.v3, which is neither YAML 1.1 nor 1.2: `014` is twelve, `1e3` an integer,
a date a text. The parser is a library's; only what a plain scalar means is decided here, by the rules
of yaml.v3's resolve.go, and what becomes of a number on its way through the engine's JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark
from ruamel.yaml.events import AliasEvent, Event, MappingStartEvent, ScalarEvent, SequenceStartEvent

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"(?P<sign>[-+]?)(?P<base>0[xX]|0[bB]|0[oO]|0(?=[0-9]))?(?P<digits>[0-9a-fA-F]+)")
_BASES = {"0x": 16, "0b": 2, "0o": 8, "0": 8, "": 10}
_TIMESTAMPS = tuple(
    re.compile(rf"(?P<date>\d{{4}}-\d{{1,2}}-\d{{1,2}}){rest}")
    for rest in (
        r"",
        r" +(?P<time>\d{1,2}:\d{1,2}:\d{1,2})(?P<fraction>\.\d+)?",
        r"[Tt](?P<time>\d{1,2}:\d{1,2}:\d{1,2})(?P<fraction>\.\d+)?(?P<zone>Z|[-+]\d{2}:\d{2})",
    )
)
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_EXACT = 2**53
"""The engine carries every number as a float64."""
_EXPONENT_FROM = 1e21
"""From here on encoding/json writes an exponent, and a reader sees a fraction type again."""


class YamlFaultError(MarkedYAMLError):
    """The file is YAML and cannot be a stack file; `problem` and `problem_mark` say what and where."""


def load(path: Path) -> Any:
    """The first document of the file as plain Python values.

    Raises:
        MarkedYAMLError: no YAML, or something that the engine refuses, with line and column.
        OSError: the file cannot be read.
    """
    with path.open(encoding="utf-8") as stream:
        events = YAML(typ="safe", pure=True).parse(stream)
        for event in events:
            if isinstance(event, ScalarEvent | MappingStartEvent | SequenceStartEvent):
                return _value(event, events, {})
    return None


def _value(event: Event, events: Iterator[Event], anchors: dict[str, Any]) -> Any:
    if isinstance(event, AliasEvent):
        if event.anchor not in anchors:
            raise YamlFaultError(problem=f"there is no anchor {event.anchor!r}", problem_mark=event.start_mark)
        return anchors[event.anchor]
    if isinstance(event, ScalarEvent):
        value = _scalar(event)
    elif isinstance(event, SequenceStartEvent):
        value = [_value(item, events, anchors) for item in _until_end(events)]
    else:
        value = _mapping(events, anchors)
    anchor = getattr(event, "anchor", None)
    if anchor:
        anchors[anchor] = value
    return value


def _until_end(events: Iterator[Event]) -> Iterator[Event]:
    """The events of one collection's members; each is consumed whole before the next is asked for."""
    for event in events:
        if type(event).__name__.endswith("EndEvent"):
            return
        yield event


def _mapping(events: Iterator[Event], anchors: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    merged: dict[str, Any] = {}
    for event in _until_end(events):
        merge = isinstance(event, ScalarEvent) and event.value == "<<" and event.implicit[0]
        key = event.value if isinstance(event, ScalarEvent) else _value(event, events, anchors)
        if not isinstance(key, str):
            raise YamlFaultError(problem="a key must be a text", problem_mark=event.start_mark)
        value = _value(next(events), events, anchors)
        if merge:
            merged |= _merged(value, event.start_mark)
        elif key in own:
            raise YamlFaultError(problem=f"the key {key!r} stands twice", problem_mark=event.start_mark)
        else:
            own[key] = value
    return {**merged, **own}


def _merged(value: Any, mark: StringMark) -> dict[str, Any]:
    """What `<<` brings in: one mapping, or several of which the first wins."""
    mappings = value if isinstance(value, list) else [value]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise YamlFaultError(problem="`<<` takes a mapping", problem_mark=mark)
    return {key: item for mapping in reversed(mappings) for key, item in mapping.items()}


def _scalar(event: ScalarEvent) -> Any:
    if event.style or not event.implicit[0]:
        return event.value
    text = event.value
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise YamlFaultError(problem=f"{text} is no number of JSON", problem_mark=event.start_mark)
    if text[0] not in "+-.0123456789":
        return text
    timestamp = _timestamp(text)
    return _number(text) if timestamp is None else timestamp


def _number(text: str) -> int | float | str:
    """An integer, a fraction, or the text; a fraction without a fraction is an integer in JSON."""
    plain = text.replace("_", "")
    integer = _integer(plain) if text[0] != "." and not text.startswith("_") else None
    if integer is not None:
        return integer
    if _FLOAT.fullmatch(plain):
        number = float(plain)
        if math.isfinite(number):
            return _as_json(number)
    return text


def _as_json(number: float) -> int | float:
    """A fraction as it comes out of the engine's JSON, which writes the shortest digits."""
    whole = number.is_integer() and abs(number) < _EXPONENT_FROM
    return int(Decimal(repr(number))) if whole else number


def _integer(plain: str) -> int | None:
    match = _INTEGER.fullmatch(plain)
    if match is None:
        return None
    try:
        number = int(match["sign"] + match["digits"], _BASES[(match["base"] or "").lower()])
    except ValueError:
        return None
    if not _SMALLEST <= number <= _LARGEST:
        return None
    return number if abs(number) <= _EXACT else int(_as_json(float(number)))


def _timestamp(text: str) -> str | None:
    """A date as the engine prints it: Go's time.Time as text."""
    match = next((found for pattern in _TIMESTAMPS if (found := pattern.fullmatch(text))), None)
    if match is None:
        return None
    parts = {"time": "0:0:0", "fraction": "", "zone": "Z", **{key: it for key, it in match.groupdict().items() if it}}
    zone = parts["zone"].replace("Z", "+00:00")
    year, month, day = parts["date"].split("-")
    clock = ":".join(part.zfill(2) for part in parts["time"].split(":"))
    try:
        moment = datetime.fromisoformat(f"{year}-{int(month):02}-{int(day):02}T{clock}{zone}")
    except ValueError:
        return None
    name = "UTC" if moment.tzinfo == timezone.utc else moment.strftime("%z")
    fraction = parts["fraction"].rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} {moment:%z} {name}"
