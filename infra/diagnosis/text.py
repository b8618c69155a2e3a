"""A diagnosis for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.diagnosis.classification import Diagnosis

EVENTS_SHOWN = 10
LOG_LINES_SHOWN = 20


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis for a terminal: reason, what to change, the last events and the last log lines."""
    facts = diagnosis.facts
    where = f"{facts.owner or facts.service}{f', pod {facts.pod}' if facts.pod else ''}"
    before = " before its restart" if facts.log_is_previous else ""
    lines = [
        f"{facts.service} ({where}): {diagnosis.happened}.",
        f"  evidence: {diagnosis.evidence}",
        *([f"  change:   {', '.join(diagnosis.fields)}"] if diagnosis.fields else []),
        f"  remedy:   {diagnosis.remedy}",
        f"  source:   {diagnosis.source}",
        *(f"  not read: {reason}" for reason in facts.unread),
        *_block("last events", [str(event) for event in facts.events[-EVENTS_SHOWN:]]),
        *_block(f"last log lines of {facts.log_of or 'the server'}{before}", facts.log[-LOG_LINES_SHOWN:]),
    ]
    return "\n".join(lines)


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"  {title}:"
    yield from (f"    {line}" for line in lines or ["(none)"])
