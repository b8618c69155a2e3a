"""Clients that ask a Service for streams, each on a connection of its own, and never try twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import TypeVar

TIMEOUT_SECONDS = 120
Address = tuple[str, int]
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Outcome:
    """One request: when it began and ended (time.monotonic(), seconds), and what went wrong, if anything."""

    begun: float
    ended: float
    fault: str = ""


def ask(address: Address, model: str, tokens: int = 8, key: str = "") -> Outcome:
    """Ask for a stream of ``tokens`` tokens and read it to its end."""
    begun = time.monotonic()
    connection = HTTPConnection(*address, timeout=TIMEOUT_SECONDS)
    try:
        body = {"model": model, "prompt": "one two three", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        whole = answer.status == 200 and text.rstrip().endswith("data: [DONE]")
        fault = "" if whole else f"status {answer.status}, and the stream ends with {text[-200:]!r}"
    except (OSError, HTTPException) as error:
        fault = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return Outcome(begun, time.monotonic(), fault)


def healthy(address: Address) -> bool:
    """Whether /health answers with 200 now."""
    connection = HTTPConnection(*address, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def asking(address: Address, model: str, clients: int, tokens: int = 8, key: str = "") -> Iterator[list[Outcome]]:
    """As many clients at once, each asking again when it has its answer, until the block ends."""
    stopped, outcomes = threading.Event(), list[Outcome]()

    def work() -> None:
        while not stopped.is_set():
            outcomes.append(ask(address, model, tokens, key))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
    for worker in workers:
        worker.start()
    try:
        yield outcomes
    finally:
        stopped.set()
        for worker in workers:
            worker.join()


@contextmanager
def looking(look: Callable[[], Seen], pause: float) -> Iterator[list[Seen]]:
    """What ``look`` gave each time, with ``pause`` seconds before each, until the block ends."""
    stopped, seen = threading.Event(), list[Seen]()

    def work() -> None:
        while not stopped.wait(pause):
            seen.append(look())

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield seen
    finally:
        stopped.set()
        worker.join()


def watching_health(address: Address) -> AbstractContextManager[list[tuple[float, bool]]]:
    """Ask /health five times a second: (time.monotonic(), whether it answered) of each."""

    def look() -> tuple[float, bool]:
        answered = healthy(address)
        return time.monotonic(), answered

    return looking(look, 0.2)


def downtime(seen: list[tuple[float, bool]]) -> float:
    """Seconds from the first answer that failed to the last one that did; 0 when none failed."""
    failed = [moment for moment, answered in seen if not answered]
    return failed[-1] - failed[0] if failed else 0.0
