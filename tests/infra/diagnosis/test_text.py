"""How a diagnosis is shown."""

from __future__ import annotations

from infra.diagnosis import Container, Event, diagnose, render
from tests.infra.diagnosis.starts import died, facts


def test_reason_events_and_log_are_shown_and_no_more_than_the_last() -> None:
    events = tuple(Event("Pod/chat-0-5b5d", "Pulled", f"event {number};") for number in range(15))
    text = render(diagnose(died(*(f"line {number};" for number in range(30)), code=3, events=events)))
    assert text.startswith("chat (Deployment/chat-0, pod chat-0-5b5d): the reason is not known."), "reason first"
    assert ("event 5;" in text, "event 4;" in text) == (True, False), "the last 10 events"
    assert ("line 10;" in text, "line 9;" in text) == (True, False), "the last 20 lines"
    assert "last log lines of vllm before its restart" in text, "whose log it is"


def test_what_could_not_be_read_is_shown() -> None:
    text = render(diagnose(facts(Container("vllm", running=True), unread=("log of vllm: HTTP 500",))))
    assert "not read: log of vllm: HTTP 500" in text, "a missing log is not an empty one"
