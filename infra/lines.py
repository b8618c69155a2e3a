"""What a look at something real found, one line for each question: for a person, and for a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rich.text import Text

Status = Literal["ok", "warn", "fail"]
_STYLES: Mapping[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_QUESTION_WIDTH = 22


@dataclass(frozen=True)
class Line:
    """The answer to one question: what was found, what was wanted, and what to do where they differ.

    ``facts`` are the figures of it, for a program.
    """

    status: Status
    question: str
    found: str
    wanted: str = ""
    remedy: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


def failed(lines: Iterable[Line]) -> bool:
    """Whether one of them says that something will not work."""
    return any(line.status == "fail" for line in lines)


def as_text(line: Line) -> Text:
    """The line for a person; what to do is below it."""
    wanted = f" (wanted: {line.wanted})" if line.wanted else ""
    said = Text.assemble(
        (f"{line.status:<5}", _STYLES[line.status]),
        (f"{line.question:<{_QUESTION_WIDTH}} ", "bold"),
        line.found,
        wanted,
    )
    if line.remedy:
        said.append(f"\n{'':5}{'':{_QUESTION_WIDTH}} → {line.remedy}", "dim")
    return said


def as_data(line: Line) -> dict[str, object]:
    """The line for a program."""
    return {
        "status": line.status,
        "question": line.question,
        "found": line.found,
        "wanted": line.wanted,
        "remedy": line.remedy,
        **line.facts,
    }
