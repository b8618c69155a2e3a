"""What is wrong with one value of a flag."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.arguments.parsing import UNSET, folded, read_value
from planner.findings import Finding
from planner.releases import Flag, Release

_STRICT_JSON_FROM = (0, 19, 1)
"""From here on an unknown key of a JSON flag ends the process; 0.11.0 ignores it (vllm/engine/arg_utils.py)."""
_SHELL_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
_POD_VARIABLE = re.compile(r"(?<!\$)\$\((?P<name>[A-Za-z_]\w*)\)")


def check_value(path: str, flag: Flag, text: str, release: Release, variables: Mapping[str, str]) -> Iterator[Finding]:
    """One value in the words of the command line."""
    source = f"argument parser of vLLM {release.version}"
    if flag.none_ok and text in UNSET:
        message = f"vLLM takes {text!r} for {flag.name} as no value at all"
        yield Finding("error", path, message, "leave it out", "ARG-3", "vllm/engine/arg_utils.py: optional_type")
        return
    if flag.kind in ("json", "json-or-str"):
        yield from check_variables(path, text, variables)
    try:
        value = read_value(flag, text)
    except ValueError as error:
        remedy, rule = _value_remedy(flag, text)
        yield Finding("error", path, f"{flag.name}: {error}", remedy, rule, source)
        return
    if isinstance(value, dict):
        yield from check_fields(path, flag, value, release)
    elif flag.kind == "json" and flag.json_fields is not None:
        yield Finding("error", path, f"{flag.name} takes a JSON object, not {text!r}", "write {…}", "ARG-5", source)
    if flag.certain_choices is not None and folded(flag, text) not in flag.certain_choices:
        message = f"{flag.name}: whether vLLM {release.version} takes {text!r} is not known"
        yield Finding("warn", path, message, "try it before it is rolled out", "ARG-3", source)
    elif flag.suggested is not None and flag.choices is None and text not in flag.suggested:
        message = f"{flag.name}: {text!r} is none of the values that come with vLLM: {', '.join(flag.suggested)}"
        yield Finding("warn", path, message, "keep it only if a plugin adds it", "ARG-3", source)


def _value_remedy(flag: Flag, text: str) -> tuple[str, str]:
    if flag.nargs == "+" and "," in text:
        return f"write one element for each value: {', '.join([flag.name, *between_commas(text)])}", "ARG-4"
    if flag.kind in ("json", "json-or-str"):
        return "write one JSON object without quotes around it: no shell removes them", "ARG-5"
    return "see `vllm serve --help` of that release", "ARG-3"


def between_commas(text: str) -> list[str]:
    """What commas separate."""
    return [part.strip() for part in text.split(",") if part.strip()]


def check_json(
    path: str, flag: Flag, value: Mapping[str, Any], release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    """A JSON value that is given as an object."""
    yield from check_variables(path, json.dumps(value, default=str), variables)
    yield from check_fields(path, flag, value, release)


def check_fields(path: str, flag: Flag, value: Mapping[str, Any], release: Release) -> Iterator[Finding]:
    """The top-level keys of a JSON flag whose value is one of vLLM's config classes."""
    if flag.json_fields is None:
        return
    strict = release.number >= _STRICT_JSON_FROM
    source = f"argument parser of vLLM {release.version}"
    for key in sorted(map(str, value)):
        if key not in flag.json_fields:
            effect = "ends the process" if strict else "is ignored without a word"
            message = f"{flag.name} of vLLM {release.version} has no key {key!r}: it {effect}"
            known = f"known: {', '.join(sorted(flag.json_fields))}"
            yield Finding("error" if strict else "warn", path, message, known, "ARG-5", source)
        elif key in flag.uncertain_json_fields:
            message = f"whether {flag.name} of vLLM {release.version} has the key {key!r} is not known"
            yield Finding("warn", path, message, "try it before it is rolled out", "ARG-5", source)


def check_variables(path: str, text: str, variables: Mapping[str, str]) -> Iterator[Finding]:
    """References to variables inside a value, which no shell expands."""
    source = "https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/"
    for found in _SHELL_VARIABLE.findall(text):
        name = found.strip("${}")
        message = f"{found} stays as it is: no shell expands it"
        yield Finding("error", path, message, f"write $({name}) and set {name} in env", "ARG-5", source)
    for name in (match["name"] for match in _POD_VARIABLE.finditer(text)):
        if name not in variables:
            message = f"$({name}) stays as it is: the container has no variable {name}"
            yield Finding("error", path, message, f"set {name} in env", "ARG-5", source)
