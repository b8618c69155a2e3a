"""What is wrong with the arguments in ``engine.extraArgs``, one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.arguments.names import OPTIMIZATION, OPTION, OWNED, SUPERSEDED, dashed, negated
from planner.arguments.values import between_commas, check_fields, check_value, check_variables
from planner.findings import Finding, Level
from planner.releases import Flag, Release, flag_status
from planner.spec import EngineSpec


@dataclass(frozen=True)
class ExtraArgument:
    """One option of extraArgs with what follows it. ``key`` is the part of a dotted JSON option after the dot."""

    path: str
    word: str
    name: str
    key: str
    inline: bool
    values: tuple[tuple[str, str], ...]


def read_extra(words: tuple[str, ...]) -> Iterator[ExtraArgument]:
    """The options with the words that follow each, as (path, word)."""
    index = 0
    while index < len(words):
        path, word = f"engine.extraArgs[{index}]", words[index]
        index += 1
        following = []
        while index < len(words) and not OPTION.match(words[index].strip()):
            following.append((f"engine.extraArgs[{index}]", words[index]))
            index += 1
        option, equals, value = word.strip().partition("=")
        name, _, key = dashed(option).partition(".")
        yield ExtraArgument(
            path, word, name, key, bool(equals), (((path, value),) if equals else ()) + tuple(following)
        )


def check_extra(
    argument: ExtraArgument, engine: EngineSpec, release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    """One option with its values."""
    yield from _check_shape(argument)
    if not OPTION.match(argument.word.strip()) or re.search(r"\s", argument.name):
        return
    level = OPTIMIZATION.fullmatch(argument.name)
    if level is not None:
        yield from _check_optimization(argument, level["level"], release)
        return
    flag = release.find(argument.name)
    if flag is None:
        yield from _check_absent(argument, release)
        return
    if release.certain(argument.name) is None:
        status = flag_status(release, argument.name)
        message = f"whether vLLM {release.version} has {argument.name} is not known"
        yield Finding("warn", argument.path, message, status.remedy, "ARG-3", status.source)
    owner = OWNED.get(flag.name)
    if owner is not None:
        unset = flag.name in SUPERSEDED and getattr(engine, SUPERSEDED[flag.name]) is None
        found = "is not seen by the plan of memory and start-up here" if unset else "is rendered from a setting"
        severity: Level = "warn" if unset else "error"
        source = "ai-runway/airunway#269"
        yield Finding(severity, argument.path, f"{argument.name} {found}", f"use {owner}", "NAM-2", source)
        if not unset:
            return
    yield from _check_count(argument, flag)
    yield from _check_extra_values(argument, flag, release, variables)


def _check_shape(argument: ExtraArgument) -> Iterator[Finding]:
    source = "vllm#8273; lightspeed-core/lightspeed-stack#1014"
    word = argument.word
    if not OPTION.match(word.strip()):
        message = f"{word!r} follows no option"
        yield Finding("error", argument.path, message, "put the option before it", "ARG-4", source)
        return
    if word != word.strip():
        message = f"{word!r} has a blank at its beginning or end, which becomes part of the argument"
        yield Finding("error", argument.path, message, f"write {word.strip()}", "ARG-4", source)
    if re.search(r"\s", argument.name):
        parts = word.split(maxsplit=1)
        message = f"{word!r} is one argument: nothing splits it at the blank"
        yield Finding("error", argument.path, message, f"write two elements: {', '.join(parts)}", "ARG-4", source)
    for path, value in argument.values:
        if value != value.strip():
            message = f"{value!r} has a blank at its beginning or end, which becomes part of the argument"
            yield Finding("error", path, message, f"write {value.strip()}", "ARG-4", source)


def _check_optimization(argument: ExtraArgument, level: str, release: Release) -> Iterator[Finding]:
    """-O0 to -O3: the level of compilation at 0.11.0, another scale under --optimization-level from 0.19.1 on."""
    if release.certain("--optimization-level") is None and release.certain("-O") is None:
        message = f"whether -O{level} is a compilation or an optimisation level in vLLM {release.version} is not known"
        remedy = "set engine.compilationConfig, or try it before it is rolled out"
        yield Finding("warn", argument.path, message, remedy, "ARG-3", "vllm/utils/argparse_utils.py")
    elif release.certain("-O") is not None:
        remedy = f"use engine.compilationConfig: {{level: {level}}}"
        message = f"-O{level} is rendered from a setting of its own"
        yield Finding("error", argument.path, message, remedy, "NAM-2", "vllm/utils/argparse_utils.py")
    elif int(level) > 3:
        message = f"-O{level}: the levels are 0 to 3"
        yield Finding("error", argument.path, message, "use -O0 to -O3", "ARG-3", "vllm/utils/argparse_utils.py")


def _check_absent(argument: ExtraArgument, release: Release) -> Iterator[Finding]:
    status = flag_status(release, argument.name)
    verb = {"removed": "no longer has", "renamed": "has another name for"}.get(status.status, "has no")
    message = f"vLLM {release.version} {verb} {argument.name}"
    yield Finding("error", argument.path, message, status.remedy, "ARG-3", status.source)


def _check_count(argument: ExtraArgument, flag: Flag) -> Iterator[Finding]:
    """Whether as many values follow as the flag takes."""
    count = len(argument.values)
    path = argument.values[-1][0] if argument.values else argument.path
    if flag.kind == "flag":
        if count:
            no = f" or {negated(flag)[0]}" if flag.negations else ""
            message = f"{argument.name} takes no value"
            yield Finding("error", path, message, f"write {flag.name}{no} alone", "ARG-4", "argparse")
    elif count == 0 and flag.nargs != "?":
        message, remedy = f"{argument.name} lacks its value", "put the value into the next element"
        yield Finding("error", path, message, remedy, "ARG-4", "argparse")
    elif count > 1 and (flag.nargs != "+" or argument.inline):
        message, remedy = f"{argument.name} takes one value, {count} follow", "remove what is too much"
        yield Finding("error", path, message, remedy, "ARG-4", "argparse")


def _check_extra_values(
    argument: ExtraArgument, flag: Flag, release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    if flag.kind == "flag":
        return
    if argument.key:
        yield from _check_dotted(argument, flag, release, variables)
        return
    for path, text in argument.values:
        yield from check_value(path, flag, text.strip(), release, variables)
        open_list = flag.nargs == "+" and flag.kind == "str" and flag.choices is None
        if open_list and "," in text and not text.lstrip().startswith("{"):
            message = f"{flag.name}: {text!r} is one value, comma included"
            remedy = f"if several are meant, write one element for each: {', '.join(between_commas(text))}"
            yield Finding("warn", path, message, remedy, "ARG-4", "ai-dynamo/aiconfigurator#377")


def _check_dotted(
    argument: ExtraArgument, flag: Flag, release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    """`--flag.key value`: one part of a JSON flag."""
    key = argument.key.split(".")[0].removesuffix("+")
    if flag.kind not in ("json", "json-or-str"):
        message = f"{flag.name} has no parts: its value is no JSON"
        yield Finding("error", argument.path, message, f"write {flag.name}", "ARG-5", "vllm/utils/argparse_utils.py")
        return
    yield from check_fields(argument.path, flag, {key: None}, release)
    for path, text in argument.values:
        yield from check_variables(path, text, variables)


def check_duplicates(extra: tuple[ExtraArgument, ...], release: Release) -> Iterator[Finding]:
    """Options that are given twice, of which only the last one counts."""
    seen: dict[tuple[str, str], str] = {}
    for argument in extra:
        flag = release.find(argument.name)
        if flag is None or flag.repeatable:
            continue
        place = (flag.name, argument.key)
        if place in seen:
            message = f"{argument.name} is given twice (first in {seen[place]}); only the last one counts"
            yield Finding("error", argument.path, message, "keep one", "NAM-2", "eugr/spark-vllm-docker#32")
        seen.setdefault(place, argument.path)


def set_flags(extra: tuple[ExtraArgument, ...], release: Release) -> dict[str, tuple[ExtraArgument, Any]]:
    """extraArgs by canonical flag name, with what each sets."""
    found: dict[str, tuple[ExtraArgument, Any]] = {}
    for argument in extra:
        flag = release.find(argument.name)
        if flag is None or argument.key:
            continue
        if flag.kind == "flag":
            found[flag.name] = argument, argument.name not in flag.negations
        elif argument.values:
            found[flag.name] = argument, argument.values[0][1].strip()
    return found
