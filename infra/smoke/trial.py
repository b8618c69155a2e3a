"""What a server is asked, in the order in which the answers build on each other; the first failure ends it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kubernetes import client

from infra.diagnosis import masked
from infra.lines import Line
from infra.live import Answer
from infra.port_forward import Request
from infra.smoke.key import VARIABLE, Key
from infra.smoke.way import Address, Fault, Way, ready_pods, to_address, to_pod
from planner.spec import ServiceSpec

PROMPT = "Say hello in one short sentence."
MAX_TOKENS = 24
"""Of the answer. A proof needs few, and a CPU gives a few in a second."""
SHOWN_CHARACTERS = 160
LORA = "--lora-modules"
FindKey = Callable[[], "Key | None"]


@dataclass(frozen=True)
class Subject:
    """A service of a stack. ``service_name`` is that of its Service; ``keyed``: the stack has an API key."""

    stack: str
    name: str
    spec: ServiceSpec
    namespace: str
    service_name: str
    keyed: bool

    @property
    def diagnosis(self) -> str:
        """The command that says why a server does not start."""
        return f"vllm-infra diagnose --stack {self.stack} --service {self.name}"


def through_cluster(api: client.ApiClient, subject: Subject, find_key: FindKey, seconds: float) -> Iterator[Line]:
    """Every ready replica, through the Service's EndpointSlices and a port-forward to each pod.

    Raises:
        infra.live.LiveError: the cluster cannot be reached.
    """
    try:
        pods = ready_pods(api, subject.namespace, subject.service_name)
    except Fault as fault:
        yield _failure(subject, "endpoints", fault)
        return
    replicas = subject.spec.replicas
    yield Line(
        "ok" if len(pods) >= replicas else "warn",
        f"{subject.name} endpoints",
        f"{len(pods)} of {replicas} replicas ready behind Service {subject.namespace}/{subject.service_name}",
        remedy="" if len(pods) >= replicas else subject.diagnosis,
        facts={"service": subject.name, "ready": len(pods), "replicas": replicas},
    )
    yield from _trial(subject, [to_pod(api, pod) for pod in pods], find_key, seconds)


def through_address(address: Address, subject: Subject, find_key: FindKey, seconds: float) -> Iterator[Line]:
    """The server at an address, whatever leads there."""
    yield from _trial(subject, [to_address(address)], find_key, seconds)


def _trial(subject: Subject, ways: list[Way], find_key: FindKey, seconds: float) -> Iterator[Line]:
    deadline = time.monotonic() + seconds
    question, key = "health", None
    try:
        for way in ways:
            question = "health"
            trial = Trial(subject, way, deadline)
            yield trial.health()
            question = "key"
            key = key or find_key()
            trial = Trial(subject, way, deadline, key)
            if subject.keyed:
                yield trial.key_is_asked_for()
            question = "models"
            yield trial.models()
            question = "completion"
            yield trial.completion()
    except Fault as fault:
        yield _failure(subject, question, fault)


def _failure(subject: Subject, question: str, fault: Fault) -> Line:
    remedy, facts = fault.remedy or subject.diagnosis, {"service": subject.name}
    return Line("fail", f"{subject.name} {question}", str(fault), remedy=remedy, facts=facts)


@dataclass(frozen=True)
class Trial:
    """One server, asked until ``deadline`` (of time.monotonic). Each method raises Fault."""

    subject: Subject
    way: Way
    deadline: float
    key: Key | None = None

    def health(self) -> Line:
        """/health answers: the engine is alive. It is open without a key."""
        answer = self._ask(Request("/health"))
        if answer.status != HTTPStatus.OK:
            raise Fault(f"/health of {self.way.name} answers {answer.status}{self._said(answer)}")
        return self._line("health", f"{self.way.name} answers /health")

    def key_is_asked_for(self) -> Line:
        """Without the key nothing below /v1 is told."""
        answer = self._ask(Request("/v1/models"))
        if answer.status != HTTPStatus.UNAUTHORIZED:
            raise Fault(
                f"the stack has an API key, and {self.way.name} answers {answer.status} to /v1/models without one",
                "`pulumi up`, so that the server is started with the key",
            )
        return self._line("key", f"{self.way.name} refuses a request without the API key")

    def models(self) -> Line:
        """The names that clients send as `model`, adapters too."""
        data = self._json("/v1/models", self._ask_as_client("/v1/models")).get("data")
        served = [str(one.get("id")) for one in data if isinstance(one, dict)] if isinstance(data, list) else []
        wanted = [self.subject.spec.model.public_name, *adapters(self.subject.spec)]
        missing = [name for name in wanted if name not in served]
        if missing:
            raise Fault(
                f"{self.way.name} serves {_named(served)}, and not {_named(missing)}",
                "`pulumi up`: the server was started from another stack file; or the address is another server's",
            )
        return self._line("models", f"serves {_named(served)}", models=served)

    def completion(self) -> Line:
        """One short answer: a chat, or the plain text that follows the prompt where the model has no chat template."""
        model = {"model": self.subject.spec.model.public_name, "max_tokens": MAX_TOKENS, "temperature": 0}
        begun = time.monotonic()
        path = "/v1/chat/completions"
        answer = self._ask_as_client(path, {**model, "messages": [{"role": "user", "content": PROMPT}]})
        plain = answer.status == HTTPStatus.BAD_REQUEST and "chat template" in answer.body.decode(errors="replace")
        if plain:
            begun, path = time.monotonic(), "/v1/completions"
            answer = self._ask_as_client(path, {**model, "prompt": PROMPT})
        found = self._json(path, answer)
        seconds = time.monotonic() - begun
        text, tokens = _text(found, path), _tokens(found, path)
        how = "no chat template: /v1/completions" if plain else "chat"
        shown = f'"{_one_line(self._hidden(text))}"' if text.strip() else "an answer without text"
        return self._line(
            "completion",
            f"{shown} ({tokens} tokens in {seconds:.2f} s; {how})",
            text=self._hidden(text),
            tokens=tokens,
            seconds=round(seconds, 3),
            path=path,
        )

    def _line(self, question: str, said: str, **facts: object) -> Line:
        return Line(
            "ok",
            f"{self.subject.name} {question}",
            said,
            facts={"service": self.subject.name, "server": self.way.name, **facts},
        )

    def _ask_as_client(self, path: str, body: Mapping[str, object] | None = None) -> Answer:
        """An answer that is not a refusal of the key."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key.value}"
        content = None if body is None else json.dumps(body).encode()
        answer = self._ask(Request(path, "GET" if body is None else "POST", content, headers))
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            if self.key is None:
                raise Fault(
                    f"{self.way.name} wants an API key ({answer.status}), and none was found", f"set {VARIABLE}"
                )
            raise Fault(
                f"{self.way.name} refuses the API key of {self.key.source} ({answer.status})",
                f"the key that the server was started with: unset or correct {VARIABLE}, or `pulumi up`",
            )
        return answer

    def _ask(self, request: Request) -> Answer:
        seconds = self.deadline - time.monotonic()
        if seconds > 0:
            try:
                return self.way.ask(request, seconds)
            except Fault as fault:
                if time.monotonic() < self.deadline:
                    raise
                raise Fault(f"{fault} (the time limit)", f"a longer --timeout; {self.subject.diagnosis}") from None
        raise Fault(f"the time limit is over before {request.path} was asked", "a longer --timeout")

    def _json(self, path: str, answer: Answer) -> dict[str, Any]:
        if answer.status != HTTPStatus.OK:
            raise Fault(f"{path} of {self.way.name} answers {answer.status}{self._said(answer)}")
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Fault(f"{path} of {self.way.name} answers no JSON object{self._said(answer)}: is it vLLM's address?")
        return found

    def _said(self, answer: Answer) -> str:
        """The server's own words, for the end of a sentence."""
        words = _one_line(masked(self._hidden(answer.body.decode(errors="replace"))))
        return f": {words}" if words else ""

    def _hidden(self, text: str) -> str:
        return text if self.key is None else text.replace(self.key.value, "***")


def adapters(spec: ServiceSpec) -> list[str]:
    """The LoRA adapters that the stack's arguments name: NAME=PATH, or JSON with a name (vllm, `--lora-modules`)."""
    found: list[str] = []
    taking = False
    for word in spec.engine.extra_args:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        taking = option == LORA if option else taking
        if taking and (equals or not option):
            found.append(_adapter(value))
    return found


def _adapter(word: str) -> str:
    try:
        return str(json.loads(word)["name"])
    except (ValueError, KeyError, TypeError):
        return word.partition("=")[0]


def _text(found: Mapping[str, Any], path: str) -> str:
    """The text of the first choice; what a model thinks first counts where it did not come to its answer."""
    try:
        choice = found["choices"][0]
        message = choice.get("message") or {}
        said = choice.get("text") or message.get("content") or message.get("reasoning_content") or ""
        return str(said or message.get("reasoning") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Fault(f"the answer of {path} has no choices") from None


def _tokens(found: Mapping[str, Any], path: str) -> int:
    try:
        tokens = int(found["usage"]["completion_tokens"])
    except (KeyError, TypeError, ValueError):
        raise Fault(f"the answer of {path} has no usage") from None
    if tokens < 1:
        raise Fault(f"the answer of {path} has no token")
    return tokens


def _one_line(text: str) -> str:
    """For a terminal: a model may write anything, control sequences too."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


def _named(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
