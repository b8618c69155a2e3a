"""What is sent to a server, and what is made of its answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sim.traffic import Answer, Client, TrafficError, at_once, steady

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


class Server(ThreadingHTTPServer):
    """Answers as vLLM does, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.together = 0
        self.most = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Chat and completions, as one document or as a stream."""

    server: Server

    def do_GET(self) -> None:
        self._say("text/plain", b"vllm:num_requests_running 0\n")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append({"path": self.path, **body})
            self.server.together += 1
            self.server.most = max(self.server.most, self.server.together)
        if body["model"] != "tiny":
            self.send_error(404, "no such model")
        elif body.get("stream"):
            token = {"choices": [{"text": "a"}]}
            end = {"choices": [{"text": "b", "finish_reason": "length"}]}
            events = [*(json.dumps(each) for each in (token, end, {"choices": [], "usage": USAGE})), "[DONE]"]
            self._say("text/event-stream", "".join(f"data: {event}\n\n" for event in events).encode())
        else:
            document = {"choices": [{"finish_reason": "length"}], "usage": USAGE}
            self._say("application/json", json.dumps(document).encode())
        with self.server.lock:
            self.server.together -= 1

    def _say(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing: a test's output is its own."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server.server_address[1], "tiny")


def test_an_answer_is_what_the_server_counted(server: Server, client: Client) -> None:
    assert client.complete("one two", 3) == Answer(7, 3, "length"), "the usage of the document"
    assert client.chat([{"role": "user", "content": "one"}], 3) == Answer(7, 3, "length")
    assert [each["path"] for each in server.asked] == ["/v1/completions", "/v1/chat/completions"]
    for body in server.asked:
        assert (body["max_tokens"], body["ignore_eos"]) == (3, True), "the number of tokens is known beforehand"


def test_a_stream_has_a_first_token(client: Client) -> None:
    answer = client.stream("one two", 3)
    assert (answer.prompt_tokens, answer.generated_tokens, answer.finish_reason) == (7, 3, "length")
    assert answer.first_token_seconds is not None, "when the first of its events came"
    assert answer.first_token_seconds > 0


def test_a_refusal_is_an_error_with_the_servers_words(server: Server) -> None:
    with pytest.raises(TrafficError, match=r"(?s)404.*no such model"):
        Client(server.server_address[1], "another").complete("one", 1)


def test_a_stream_may_be_abandoned(server: Server, client: Client) -> None:
    client.abandon("one", 100)
    assert server.asked[0]["stream"] is True, "after its first token"
    assert client.page() == "vllm:num_requests_running 0\n", "the server goes on"


def test_requests_are_sent_at_once(server: Server, client: Client) -> None:
    gate = threading.Barrier(4)

    def ask(number: int) -> Answer:
        gate.wait(timeout=30)
        return client.complete(str(number), 1)

    assert len(at_once(4, ask)) == 4, "the barrier opens only when all four are under way"
    assert {each["prompt"] for each in server.asked} == {"0", "1", "2", "3"}, "each knows its number"


def test_a_steady_load_lasts_as_long_as_its_block(server: Server, client: Client) -> None:
    enough = threading.Event()

    def ask(number: int) -> Answer:
        if number >= 10:
            enough.set()
        return client.complete(str(number), 1)

    with steady(2, ask):
        assert enough.wait(timeout=60), "each client asks again when it has its answer"
    count = len(server.asked)
    assert len({each["prompt"] for each in server.asked}) == count, "no number is used twice"
    client.complete("later", 1)
    assert len(server.asked) == count + 1, "nothing is sent after the block"


def test_a_server_that_goes_away_ends_a_load_quietly(server: Server) -> None:
    with steady(2, lambda number: Client(server.server_address[1], "another").complete(str(number), 1)):
        pass
    assert len(server.asked) <= 2, "a client that was refused does not ask again"
