"""Fills in what a stack file leaves open: the digest of each image and the commit of each model.

The file stays a person's: only the values themselves are written, at the places that the YAML parser names, so
comments, order, quotes and layout are as they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from infra.config.stack_file import PROJECT
from planner.spec import ImageSpec

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOCK_SCALAR = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#](?:[^#\n]*[^#\s])?""")
_FLOW_SCALAR = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s,}\]]+""")

DigestOf = Callable[[str, str], str]
CommitOf = Callable[[str, str | None], str]


@dataclass(frozen=True)
class Pin:
    """One value of a stack file: where, what it was, what it is now. ``written`` is false for a pin that was there
    already, differs from what is current, and was left."""

    path: str
    old: str | None
    new: str
    written: bool


@dataclass(frozen=True)
class _Place:
    """A key of the file: its section, the key below which it belongs, and the value it is to have."""

    section: CommentedMap
    after: str
    key: str
    value: str


def pinned(text: str, digest_of: DigestOf, commit_of: CommitOf, *, update: bool) -> tuple[str, list[Pin]]:
    """The text of a stack file with every pin filled in, and what became of each.

    ``digest_of`` is asked for each repository and tag, ``commit_of`` for each model and the branch or tag that it
    names. A pin that is there is kept unless ``update``; a revision that is no commit is none.
    """
    content = YAML().load(text)
    found = list(_pins(content["config"][f"{PROJECT}:services"], digest_of, commit_of, update))
    places = {(place.section.lc.line, place.section.lc.col, place.key): place for pin, place in found if pin.written}
    lines = text.splitlines(keepends=True)
    # From the end of the file, so that the lines that are still to be changed stay where they are.
    for place in sorted(places.values(), key=_position, reverse=True):
        _write(lines, place)
    return "".join(lines), [pin for pin, _ in found]


def pin_file(file: Path, digest_of: DigestOf, commit_of: CommitOf, *, update: bool, dry_run: bool) -> list[Pin]:
    """Fill in the pins of a stack file in place; with ``dry_run`` only say which."""
    text, pins = pinned(file.read_text(encoding="utf-8"), digest_of, commit_of, update=update)
    if not dry_run:
        file.write_text(text, encoding="utf-8")
    return pins


def _pins(services: Any, digest_of: DigestOf, commit_of: CommitOf, update: bool) -> Iterator[tuple[Pin, _Place]]:
    for name, service in services.items():
        image, model = service["image"], service["model"]
        repository = image.get("repository", ImageSpec.model_fields["repository"].default)
        digest = digest_of(str(repository), str(image["tag"]))
        here = f"services.{name}"
        yield from _pin(f"{here}.image", _Place(image, "tag", "digest", digest), keep=not update and "digest" in image)
        given = None if model.get("revision") is None else str(model["revision"])
        is_commit = given is not None and _COMMIT.fullmatch(given) is not None
        commit = commit_of(str(model["id"]), None if is_commit else given)
        yield from _pin(f"{here}.model", _Place(model, "id", "revision", commit), keep=not update and is_commit)


def _pin(path: str, place: _Place, *, keep: bool) -> Iterator[tuple[Pin, _Place]]:
    old = place.section.get(place.key)
    if old != place.value:
        yield Pin(f"{path}.{place.key}", None if old is None else str(old), place.value, written=not keep), place


def _position(place: _Place) -> tuple[int, int]:
    line, column = place.section.lc.value(place.key if place.key in place.section else place.after)
    return line, column


def _write(lines: list[str], place: _Place) -> None:
    """Put one value into the file: in the place of the one that is there, or as a new key below ``after``."""
    line, column = _position(place)
    flow = bool(place.section.fa.flow_style())
    scalar = (_FLOW_SCALAR if flow else _BLOCK_SCALAR).match(lines[line], column)
    end = scalar.end() if scalar else column
    if place.key in place.section:
        lines[line] = f"{lines[line][:column]}{_scalar(place.value)}{lines[line][end:]}"
    elif flow:
        lines[line] = f"{lines[line][:end]}, {place.key}: {_scalar(place.value)}{lines[line][end:]}"
    else:
        indentation = " " * place.section.lc.key(place.after)[1]
        ending = "\r\n" if lines[line].endswith("\r\n") else "\n"
        lines[line] = f"{lines[line].rstrip()}{ending}"
        lines.insert(line + 1, f"{indentation}{place.key}: {_scalar(place.value)}{ending}")


def _scalar(value: str) -> str:
    """A value as YAML has it: forty digits without a letter would be a number."""
    return value if isinstance(YAML(typ="safe", pure=True).load(value), str) else f'"{value}"'
