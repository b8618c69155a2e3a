"""Requests to a vLLM server: what is sent, what came back, and a load that lasts until it is stopped.

Paths and fields are those of the OpenAI-compatible server
(https://docs.vllm.ai/en/latest/serving/openai_compatible_server/).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

TIMEOUT_SECONDS = 600
"""A request that waits in a long queue behind a slow processor is no failure."""


class TrafficError(Exception):
    """The server did not answer a request; the message holds what it said."""


@dataclass(frozen=True)
class Answer:
    """What one request cost, as the server counts it: tokens; ``first_token_seconds`` at the client, of a stream."""

    prompt_tokens: int
    generated_tokens: int
    finish_reason: str
    first_token_seconds: float | None = None


@dataclass(frozen=True)
class Client:
    """Sends requests to the server on ``port`` of this host, for the model that it serves as ``model``."""

    port: int
    model: str

    def complete(self, prompt: str, tokens: int) -> Answer:
        """A completion of exactly ``tokens`` tokens."""
        document = self._document("/v1/completions", {"prompt": prompt, **_exactly(tokens)})
        return _answer(document)

    def chat(self, messages: Sequence[Mapping[str, str]], tokens: int) -> Answer:
        """An answer of exactly ``tokens`` tokens in a conversation."""
        document = self._document("/v1/chat/completions", {"messages": list(messages), **_exactly(tokens)})
        return _answer(document)

    def stream(self, prompt: str, tokens: int) -> Answer:
        """A completion that comes token by token."""
        begin, first, reason = time.monotonic(), None, ""
        usage: Mapping[str, int] = {}
        body = {"prompt": prompt, "stream": True, "stream_options": {"include_usage": True}, **_exactly(tokens)}
        with self._asked("/v1/completions", body) as answer:
            for document in _events(answer):
                for choice in document["choices"]:
                    first = time.monotonic() - begin if first is None else first
                    reason = choice.get("finish_reason") or reason
                usage = document.get("usage") or usage
        return Answer(usage["prompt_tokens"], usage["completion_tokens"], reason, first)

    def abandon(self, prompt: str, tokens: int) -> None:
        """Ask for a stream and go away after its first token: the server counts the request as aborted."""
        with self._asked("/v1/completions", {"prompt": prompt, "stream": True, **_exactly(tokens)}) as answer:
            next(_events(answer))

    def page(self, path: str = "/metrics") -> str:
        """The text at ``path``."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def _document(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._asked(path, body) as answer:
            document: Mapping[str, Any] = json.loads(answer.read())
        return document

    @contextmanager
    def _asked(self, path: str, body: Mapping[str, Any]) -> Iterator[HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            text = json.dumps({"model": self.model, **body})
            connection.request("POST", path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise TrafficError(f"{path} answers {answer.status}: {answer.read().decode(errors='replace')}")
            yield answer
        finally:
            connection.close()


def _exactly(tokens: int) -> dict[str, Any]:
    """A random model ends its answer anywhere: it is told not to, so that work and counts are known beforehand."""
    return {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}


def _answer(document: Mapping[str, Any]) -> Answer:
    usage = document["usage"]
    return Answer(usage["prompt_tokens"], usage["completion_tokens"], document["choices"][0]["finish_reason"])


def _events(answer: HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """The documents of a stream of server-sent events, until it says that it is done."""
    for line in answer:
        name, _, text = line.decode().partition(":")
        if name == "data" and text.strip() == "[DONE]":
            return
        if name == "data":
            yield json.loads(text)


def at_once(count: int, ask: Callable[[int], Answer]) -> list[Answer]:
    """The answers to ``count`` requests that are sent at the same time; ``ask`` gets the number of the request."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


@contextmanager
def steady(clients: int, ask: Callable[[int], object]) -> Iterator[None]:
    """As many clients at once, each asking again when it has its answer, until the block ends.

    ``ask`` gets a number that no other request has. A server that goes away ends a client quietly: only
    what the block itself does can fail.
    """
    stopped, numbers, lock = threading.Event(), iter(range(1_000_000_000)), threading.Lock()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                number = next(numbers)
            try:
                ask(number)
            except (OSError, HTTPException, TrafficError):
                return

    workers = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stopped.set()
        for worker in workers:
            worker.join()
