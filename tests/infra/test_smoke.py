"""`vllm-infra smoke`: a deployed service answers, or the first thing that does not is named with what to do next."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kubernetes.client.exceptions import ApiException
from typer.testing import CliRunner, Result

from infra import live, port_forward
from infra.cli import app
from infra.config import stack_file
from infra.smoke import Subject, through_cluster
from infra.smoke.trial import adapters
from planner.spec import ServiceSpec
from tests.infra.api_server import api_server, client_of
from tests.infra.vllm_server import VllmServer
from tests.stack_files import STACKS, config

KEY = "the-key-that-nobody-may-see"
NAMESPACE, SERVICE = "ai-infra", "vllm-service"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's stack with an API key."""
    text = (STACKS / "Pulumi.lab-3060.yaml").read_text("utf-8")
    secret = "config:\n  vllm:apiKey:\n    secure: v1:abc:def\n"
    (tmp_path / "Pulumi.lab-3060.yaml").write_text(text.replace("config:\n", secret, 1), encoding="utf-8")
    monkeypatch.setattr(stack_file, "STACKS", tmp_path)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["smoke", "--stack", "lab-3060", *arguments])
    assert KEY not in result.output, f"an API key is never printed:\n{result.output}"
    assert "Traceback" not in result.output, "a server that does not answer is no crash"
    return result


def at(server: VllmServer, *arguments: str) -> Result:
    with server.serving() as url:
        return run("--url", url, *arguments)


# An address


def test_a_server_that_answers_is_shown_with_its_answer() -> None:
    server = VllmServer()
    result = at(server)
    assert result.exit_code == 0, result.output
    assert [line.split()[:3] for line in result.output.splitlines()] == [
        ["ok", "qwen", "health"],
        ["ok", "qwen", "models"],
        ["ok", "qwen", "completion"],
    ], "one line for each question, in this order"
    assert '"Hello there!" (3 tokens in ' in result.output, "the answer is the proof"
    (body,) = [body for _, _, body in server.asked if body]
    assert body["model"] == "qwen2.5-7b-awq", "the name that clients send"
    assert body["temperature"] == 0, "the same every time"
    assert 0 < body["max_tokens"] <= 64, "a proof must not occupy the card"


def test_a_program_reads_the_same() -> None:
    result = at(VllmServer(), "--json")
    lines = {line["question"]: line for line in json.loads(result.stdout)["lines"]}
    assert {line["status"] for line in lines.values()} == {"ok"}
    assert lines["qwen models"]["models"] == ["qwen2.5-7b-awq"]
    completion = lines["qwen completion"]
    assert (completion["text"], completion["tokens"], completion["path"]) == (
        "Hello there!",
        3,
        "/v1/chat/completions",
    )


def test_a_model_without_a_chat_template_goes_on_with_the_prompt_and_says_so() -> None:
    result = at(VllmServer(chat=False))
    assert result.exit_code == 0, "it serves what such a model can"
    assert '"and goodbye."' in result.output, result.output
    assert "no chat template: /v1/completions" in result.output, "it is another kind of proof"


THOUGHT = {"choices": [{"message": {"content": None, "reasoning_content": "Hm."}}], "usage": {"completion_tokens": 24}}
USAGE = {"completion_tokens": 2}
CONTROL = {"choices": [{"message": {"content": "a\x1b[2J\nb"}}], "usage": USAGE}
SILENT = {"choices": [{"message": {"content": ""}}], "usage": USAGE}


@pytest.mark.parametrize(
    ("reply", "words"),
    [(THOUGHT, '"Hm." (24 tokens'), (CONTROL, '"a [2J b" (2 tokens'), (SILENT, "an answer without text (2 tokens")],
    ids=["it was still thinking", "control sequences", "tokens without text"],
)
def test_an_answer_is_shown_whatever_it_is(reply: Any, words: str) -> None:
    result = at(VllmServer(replies={"/v1/chat/completions": (200, reply)}))
    assert result.exit_code == 0, result.output
    assert words in result.output, result.output


DIAGNOSE = "vllm-infra diagnose --stack lab-3060 --service qwen"


@pytest.mark.parametrize(
    ("path", "reply", "question", "words"),
    [
        ("/health", (503, ""), "health", "answers 503"),
        ("/v1/models", (500, "Internal Server Error"), "models", "answers 500: Internal Server Error"),
        ("/v1/models", (200, "<html>"), "models", "no JSON object: <html>"),
        ("/v1/models", (200, []), "models", "no JSON object"),
        ("/v1/chat/completions", (400, {"message": "too long"}), "completion", "too long"),
        ("/v1/chat/completions", (200, {"usage": USAGE}), "completion", "no choices"),
        ("/v1/chat/completions", (200, {"choices": [], "usage": USAGE}), "completion", "no choices"),
        ("/v1/chat/completions", (200, {"choices": CONTROL["choices"]}), "completion", "no usage"),
        ("/v1/chat/completions", (200, {**CONTROL, "usage": {"completion_tokens": 0}}), "completion", "no token"),
        ("/health", (302, ""), "health", "answers 302"),
    ],
)
def test_the_first_question_without_an_answer_ends_it(path: str, reply: Any, question: str, words: str) -> None:
    server = VllmServer(replies={path: reply})
    result = at(server)
    assert result.exit_code == 1, "a script must see it"
    last = result.output.splitlines()[-2]
    assert last.split()[:3] == ["fail", "qwen", question], result.output
    assert words in last, result.output
    assert DIAGNOSE in result.output.splitlines()[-1], "the next command to run"
    assert server.asked[-1][0] == path, "what builds on it is not asked, and no redirect is followed"


def test_another_model_is_named_with_the_one_that_was_wanted() -> None:
    result = at(VllmServer(models=("llama", "llama-sql")))
    assert result.exit_code == 1, "clients that send the stack's name get 404"
    assert "serves llama, llama-sql, and not qwen2.5-7b-awq" in result.output, result.output


def test_nobody_at_the_address_is_said() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = run("--url", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert result.exit_code == 1, "nothing answered"
    assert "refused" in result.output, result.output


def test_a_silent_server_is_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = run("--url", f"http://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2")
    assert result.exit_code == 1, "it did not answer in time"
    assert "(the time limit)" in result.output, result.output
    assert "a longer --timeout" in result.output, "it may be slow and well"


@pytest.mark.parametrize(
    ("suffix", "asked"), [("", "/health"), ("/v1", "/health"), ("/v1/", "/health"), ("/a", "/a/health")]
)
def test_an_address_may_have_a_path_in_front_and_the_clients_v1_behind(suffix: str, asked: str) -> None:
    server = VllmServer()
    with server.serving() as url:
        run("--url", f"{url}{suffix}")
    assert server.asked[0][0] == asked, "OpenAI's clients want /v1 at the end, /health is beside it"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--url", "localhost:8000"), "http://HOST:PORT"),
        (("--url", f"http://user:{KEY}@localhost"), "no user and password"),
        (("--service", "qwenn"), "services of lab-3060: qwen"),
    ],
)
def test_a_wrong_call_says_what_is_right(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, "it is a wrong call"
    assert words in " ".join(result.output.replace("│", "").split()), result.output


# The API key


@pytest.mark.usefixtures("keyed")
def test_the_key_of_the_environment_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    server = VllmServer(key=KEY)
    result = at(server)
    assert result.exit_code == 0, result.output
    assert "refuses a request without the API key" in result.output, "that it is asked for is part of the proof"
    assert {path: key for path, key, _ in server.asked}["/health"] is None, "health is open: no key for it"


@pytest.mark.usefixtures("keyed")
def test_a_wrong_key_is_named_by_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "another")
    result = at(VllmServer(key=KEY))
    assert result.exit_code == 1, "clients with this key are refused"
    assert "refuses the API key of the variable VLLM_API_KEY (401)" in result.output, result.output


@pytest.mark.usefixtures("keyed")
def test_a_server_that_asks_for_no_key_fails_a_stack_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    result = at(VllmServer())
    assert result.exit_code == 1, "whoever reaches it may use it"
    assert "answers 200 to /v1/models without one" in result.output, result.output


def test_a_server_with_a_key_that_the_stack_does_not_have_says_what_to_set() -> None:
    result = at(VllmServer(key=KEY))
    assert result.exit_code == 1, "nothing below /v1 can be asked"
    assert "wants an API key (401), and none was found" in result.output, result.output


@pytest.mark.usefixtures("keyed")
def test_a_key_that_cannot_be_had_names_both_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    with api_server(lambda _: (403, "{}")) as cluster, client_of(cluster) as api:
        monkeypatch.setattr(live, "connect", lambda _: api)
        result = at(VllmServer(key=KEY))
    assert result.exit_code == 1, "it cannot be proved"
    for words in ("VLLM_API_KEY is not set", "answers 403 to a read of Deployment ai-infra/qwen-0"):
        assert words in result.output, result.output


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("key", ["key\n", " key", "schlüssel", "a\tb"])
def test_a_key_that_no_request_can_carry_is_said(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", key)
    result = at(VllmServer(key=KEY))
    assert result.exit_code == 1, "no client can ever be let in"
    assert "holds a character that no request can carry" in result.output, result.output


@pytest.mark.usefixtures("keyed")
def test_a_server_that_repeats_the_key_does_not_make_it_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    echo = {"choices": [{"message": {"content": f"your key is {KEY}"}}], "usage": USAGE}
    for reply in ((500, f"bad key {KEY}"), (200, echo)):
        result = at(VllmServer(key=KEY, replies={"/v1/chat/completions": reply}), "--json")
        assert "***" in result.output, result.output


# The cluster


def answer_of(answers: dict[str, Any], path: str) -> tuple[int, str]:
    found = answers.get(path.split("?", maxsplit=1)[0])
    return (404, "{}") if found is None else (200, json.dumps(found))


class Forward:
    """A port-forward: a connection to the server of a test."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))

    def socket(self, _: int) -> socket.socket:
        return self._socket

    def error(self, _: int) -> str | None:
        return None

    def close(self) -> None:
        self._socket.close()


def endpoint(pod: str, *, ready: bool | None = True) -> dict[str, Any]:
    conditions = {} if ready is None else {"ready": ready}
    return {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod}}


def cluster_of(*endpoints: dict[str, Any], variables: Any = (), secret: str | None = None) -> dict[str, Any]:
    """Path → what the API server answers."""
    apps, core = f"/apis/apps/v1/namespaces/{NAMESPACE}", f"/api/v1/namespaces/{NAMESPACE}"
    slices = [{"ports": [{"name": "http", "port": 8000}], "endpoints": list(endpoints)}]
    pod = {"containers": [{"name": "vllm", "env": list(variables)}]}
    return {
        f"{core}/services/{SERVICE}": {"kind": "Service"},
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices": {"items": slices},
        f"{apps}/deployments/qwen-0": {"spec": {"template": {"spec": pod}}},
        **({f"{core}/secrets/api-key-1": {"data": {"key": b64encode(secret.encode()).decode()}}} if secret else {}),
    }


REFERENCE = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "api-key-1", "key": "key"}}}
Prove = Callable[..., tuple[Result, list[tuple[str, str]]]]


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch) -> Prove:
    """Runs smoke against a cluster of recorded answers; also returns the pods and ports that were forwarded to."""

    def run_it(answers: dict[str, Any], server: VllmServer, *arguments: str) -> tuple[Result, list[tuple[str, str]]]:
        forwarded: list[tuple[str, str]] = []

        def answer(path: str) -> tuple[int, str]:
            found = answers.get(path.split("?", maxsplit=1)[0])
            return (404, "{}") if found is None else (200, json.dumps(found))

        def forward(_: object, name: str, __: str, *, ports: str) -> Forward:
            forwarded.append((name, ports))
            return Forward(server.url)

        monkeypatch.setattr(port_forward, "portforward", forward)
        with api_server(partial(answer_of, answers)) as address, client_of(address) as api, server.serving():
            monkeypatch.setattr(live, "connect", lambda _: api)
            return run(*arguments), forwarded

    return run_it


def test_the_pod_behind_the_service_is_asked_through_a_port_forward(prove: Prove) -> None:
    server = VllmServer()
    result, forwarded = prove(cluster_of(endpoint("qwen-0-abc")), server)
    assert result.exit_code == 0, result.output
    assert "1 of 1 replicas ready behind Service ai-infra/vllm-service" in result.output, result.output
    assert set(forwarded) == {("qwen-0-abc", "8000")}, "the pod and the port that the EndpointSlice names"


def test_every_ready_replica_must_answer(prove: Prove) -> None:
    found = cluster_of(endpoint("a"), endpoint("b", ready=False), endpoint("c", ready=None))
    result, forwarded = prove(found, VllmServer())
    assert {pod for pod, _ in forwarded} == {"a", "c"}, "without a word about readiness it counts as ready"
    assert result.output.count('"Hello there!"') == 2, "each replica is a server of its own"


@pytest.mark.parametrize(("ready", "status"), [(1, "warn"), (2, "ok")])
def test_a_replica_that_is_missing_is_a_warning(ready: int, status: str) -> None:
    spec = config(changes={"services.qwen.replicas": 2, "nodes.lab.nodes": 2}).services["qwen"]
    subject = Subject("lab-3060", "qwen", spec, NAMESPACE, SERVICE, keyed=False)
    answers = cluster_of(endpoint("a"), endpoint("b", ready=ready > 1))
    with api_server(partial(answer_of, answers)) as address, client_of(address) as api:
        line = next(through_cluster(api, subject, lambda: None, 1.0))
    assert (line.status, line.facts["ready"], line.facts["replicas"]) == (status, ready, 2), "the other one serves"
    assert f"{ready} of 2 replicas" in line.found, line


@pytest.mark.parametrize(
    ("answers", "words", "remedy"),
    [
        ({}, "there is no Service ai-infra/vllm-service", "pulumi up"),
        (cluster_of(endpoint("a", ready=False)), "holds a ready address (1 that are not ready)", DIAGNOSE),
        (cluster_of(), "holds a ready address (0 that are not ready)", DIAGNOSE),
    ],
    ids=["not deployed", "not ready", "no pod"],
)
def test_a_service_without_a_ready_address_is_not_asked(
    prove: Prove, answers: dict[str, Any], words: str, remedy: str
) -> None:
    result, forwarded = prove(answers, VllmServer())
    assert result.exit_code == 1, "nobody can use it"
    assert words in result.output, result.output
    assert remedy in result.output, "what to do next"
    assert not forwarded, "there is nobody to ask"


@pytest.mark.usefixtures("keyed")
def test_the_key_of_the_secret_is_used_where_the_environment_has_none(prove: Prove) -> None:
    server = VllmServer(key=KEY)
    result, _ = prove(cluster_of(endpoint("a"), variables=[REFERENCE], secret=KEY), server)
    assert result.exit_code == 0, result.output
    assert ("/v1/models", f"Bearer {KEY}", None) in server.asked, "as a client sends it"


@pytest.mark.usefixtures("keyed")
def test_a_stale_key_in_the_environment_does_not_look_like_a_broken_server(
    prove: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "yesterday's")
    result, _ = prove(cluster_of(endpoint("a"), variables=[REFERENCE], secret=KEY), VllmServer(key=KEY))
    assert result.exit_code == 1, "this key is refused"
    assert "unset or correct VLLM_API_KEY" in result.output, result.output


def test_a_stack_without_a_key_needs_no_right_to_look_for_one(prove: Prove) -> None:
    answers = cluster_of(endpoint("a"))
    del answers[f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/qwen-0"]
    result, _ = prove(answers, VllmServer())
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("keyed")
def test_a_secret_that_is_gone_is_named(prove: Prove) -> None:
    result, _ = prove(cluster_of(endpoint("a"), variables=[REFERENCE]), VllmServer(key=KEY))
    assert result.exit_code == 1, "the key cannot be read"
    assert "VLLM_API_KEY is not set, and there is no Secret ai-infra/api-key-1" in result.output, result.output


def test_a_port_forward_that_is_refused_names_the_right_and_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Forward:
        raise ApiException(status=0, reason="Handshake status 403 Forbidden -+-+- {} -+-+- {}")

    answers = cluster_of(endpoint("a"))
    with api_server(partial(answer_of, answers)) as address, client_of(address) as api:
        monkeypatch.setattr(port_forward, "portforward", refuse)
        monkeypatch.setattr(live, "connect", lambda _: api)
        result = run()
    assert result.exit_code == 1, "it was not asked"
    assert "get and create of pods/portforward in namespace ai-infra" in result.output, result.output
    assert "--url" in result.output, "an address needs no such right"


# LoRA


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], []),
        (["--enable-lora"], []),
        (["--enable-lora", "--lora-modules", "sql=/m/sql", "chat=/m/chat", "--seed", "1"], ["sql", "chat"]),
        (["--lora-modules=sql=/m/sql", "--enable-lora"], ["sql"]),
        (["--lora-modules", '{"name": "sql", "path": "/m/sql"}'], ["sql"]),
    ],
)
def test_adapters_are_names_that_the_server_must_serve(arguments: list[str], names: list[str]) -> None:
    service: ServiceSpec = config(changes={"services.qwen.engine.extraArgs": arguments}).services["qwen"]
    assert adapters(service) == names, "NAME=PATH or JSON, as vLLM reads them"
