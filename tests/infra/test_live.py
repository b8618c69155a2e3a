"""The one way in which the API server is asked: any answer is handed on, silence is an error."""

from __future__ import annotations

import json
import socket
from threading import Event

import pytest
from urllib3.exceptions import HTTPError

from infra import live
from infra.live import SERVERS, Answer, LiveError, get, look
from tests.infra.api_server import api_server, client_of
from tests.stack_files import config


@pytest.mark.parametrize(
    ("status", "body"), [(200, '{"kind": "Pod"}'), (200, "a line of a log"), (403, "{}"), (404, ""), (500, "<html>")]
)
def test_an_answer_is_handed_on_whatever_it_is(status: int, body: str) -> None:
    with api_server(lambda _: (status, body)) as address, client_of(address) as api:
        assert get(api, "/api/v1/pods") == Answer(status, body.encode()), "what it means is the asker's to say"


def test_the_path_is_asked_as_it_is() -> None:
    asked: list[str] = []

    def answer(path: str) -> tuple[int, str]:
        asked.append(path)
        return 200, ""

    path = "/api/v1/namespaces/ai-infra/pods?labelSelector=app%3Dchat"
    with api_server(answer) as address, client_of(address) as api:
        get(api, path)
    assert asked == [path], "a selector is part of it"


def test_an_unreachable_cluster_is_named_with_the_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with client_of(address) as api, pytest.raises(LiveError, match="context 'lab' cannot be reached") as raised:
            get(api, "/version", "the cluster of context 'lab'")
    assert isinstance(raised.value.__cause__, HTTPError), "others say the client's own error in their words"
    assert raised.value.finding.rule == "LIVE-CONTEXT", "a preview shows it as a finding"


def test_a_silent_cluster_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TIMEOUT_SECONDS", 0.1)
    over = Event()

    def silent(_: str) -> tuple[int, str]:
        over.wait(timeout=10)
        return 200, ""

    with api_server(silent) as address, client_of(address) as api:
        try:
            with pytest.raises(LiveError, match="the cluster cannot be reached"):
                get(api, "/version")
        finally:
            over.set()


@pytest.mark.parametrize(("status", "seen"), [(200, ["there"]), (403, [])])
def test_servers_of_other_namespaces_are_seen_where_one_may_look(status: int, seen: list[str]) -> None:
    def answer(path: str) -> tuple[int, str]:
        if path == SERVERS:
            return status, json.dumps({"items": [{"metadata": {"name": "there", "namespace": "before"}}]})
        return 200, json.dumps({"gitVersion": "v1.37.2", "items": []})

    with api_server(answer) as address, client_of(address) as api:
        found = look(config().cluster, api)
    assert [one["metadata"]["name"] for one in found.servers] == seen, "who may see one namespace only can deploy in it"


def test_servers_that_cannot_be_listed_for_another_reason_are_no_empty_cluster() -> None:
    def answer(path: str) -> tuple[int, str]:
        return (500, "") if path == SERVERS else (200, json.dumps({"gitVersion": "v1.37.2", "items": []}))

    with api_server(answer) as address, client_of(address) as api, pytest.raises(LiveError, match="answers 500"):
        look(config().cluster, api)
