"""Faults of a stack file in a person's words: the path, what was found, what is allowed."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from planner.findings import Finding
from planner.not_offered import NOT_OFFERED

SECTION_SOURCE = "stacks/schema.json"
_MISTAKEN_UNIT = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT])i?[bB]$")
_DECIMAL_COMMA = re.compile(r"^\d+,\d+$")


class ConfigError(Exception):
    """A stack file cannot be used. ``findings`` holds every fault, not just the first."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(f"{finding.path}: {finding.message}" for finding in findings))
        self.findings = tuple(findings)


def findings_of(error: ValidationError, model: type[BaseModel]) -> list[Finding]:
    """One finding for each fault that pydantic saw in data for ``model``."""
    return [_finding(fault, model) for fault in error.errors(include_url=False)]


def _finding(fault: Any, model: type[BaseModel]) -> Finding:
    kind, found = fault["type"], fault["input"]
    location, _ = place(model, fault["loc"])
    path = f"vllm:{yaml_path(location)}"
    if kind == "extra_forbidden":
        key = str(location[-1])
        absent = NOT_OFFERED.get(key)
        if absent is not None:
            return Finding("error", path, f"not offered: {absent.what}", absent.instead, "CFG-KEY", SECTION_SOURCE)
        allowed = sorted(place(model, fault["loc"][:-1])[1])
        return Finding("error", path, f"{key!r} is no key here", _nearest(key, allowed), "CFG-KEY", SECTION_SOURCE)
    if kind == "missing":
        return Finding("error", path, "is missing", "add it; it has no default", "CFG-MISSING", SECTION_SOURCE)
    message, remedy = _value_fault(fault, found)
    return Finding("error", path, f"found {_shown(found)}: {message}", remedy, "CFG-VALUE", SECTION_SOURCE)


def _value_fault(fault: Any, found: object) -> tuple[str, str]:
    """What is wrong with a value, and what to write."""
    unit = _MISTAKEN_UNIT.match(found) if isinstance(found, str) else None
    if unit:
        return f"{unit[2]}B is no unit of Kubernetes", f"write {unit[1]}{unit[2]}i (powers of 1024)"
    if isinstance(found, str) and _DECIMAL_COMMA.match(found):
        return "a number is written with a point", f"write {found.replace(',', '.')}"
    context = fault.get("ctx", {})
    known = {
        "union_tag_invalid": ("unknown kind", f"one of {context.get('expected_tags')}"),
        "union_tag_not_found": ("has no `kind`", "add `kind`; the kinds are in the field's description"),
        "literal_error": ("is not among the allowed values", f"one of {context.get('expected')}"),
        "string_type": ("a text is expected", f'put it in quotes: "{found}"'),
        "string_pattern_mismatch": ("does not have the expected form", f"it must match {context.get('pattern')}"),
    }
    message = fault["msg"].removeprefix("Value error, ")
    fallback = (message[:1].lower() + message[1:], "see the field's description in stacks/schema.json")
    return known.get(fault["type"], fallback)


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}…"


def yaml_path(location: Sequence[str | int]) -> str:
    """``("services", "chat", "engine", "extraArgs", 2)`` as ``services.chat.engine.extraArgs[2]``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _nearest(key: str, allowed: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, allowed, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(allowed)}"


def place(model: type[BaseModel], location: Sequence[str | int]) -> tuple[tuple[str | int, ...], set[str]]:
    """Where ``location`` of a pydantic fault is in the YAML, and which keys are allowed there.

    pydantic puts the discriminator of a union (`kind`, `mode`) into a location; the YAML has no such level.
    """
    kinds: set[Any] = {model}
    parts: list[str | int] = []
    for part in location:
        if part == "[key]":  # pydantic's mark for "the key itself, not its value"
            continue
        members = {kind for kind in kinds if part in _discriminators(kind)} if len(kinds) > 1 else set()
        if members:
            kinds = members
            continue
        parts.append(part)
        kinds = {inner for kind in kinds for inner in _step(kind, part)}
    return tuple(parts), {name for kind in kinds for name in _keys(kind)}


def _keys(kind: Any) -> set[str]:
    if not _is_model(kind):
        return set()
    return {field.alias or name for name, field in kind.model_fields.items()}


def _discriminators(kind: Any) -> tuple[Any, ...]:
    fields = [kind.model_fields.get(name) for name in ("kind", "mode")] if _is_model(kind) else []
    return tuple(value for field in fields if field for value in typing.get_args(field.annotation))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _step(kind: Any, part: str | int) -> set[Any]:
    if _is_model(kind):
        for name, field in kind.model_fields.items():
            if (field.alias or name) == part:
                return _members(field.annotation)
        return set()
    arguments = typing.get_args(kind)
    return _members(arguments[-1] if isinstance(part, str) else arguments[0]) if arguments else set()


def _members(annotation: Any) -> set[Any]:
    """The alternatives of an annotation: a union's members, with Annotated taken off."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return {inner for member in typing.get_args(annotation) for inner in _members(member)}
    return {annotation}
