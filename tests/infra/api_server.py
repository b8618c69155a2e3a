"""An API server on this machine that gives the answers of a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from kubernetes import client

Review = Callable[[str, Any], tuple[int, str]]


def nobody_asks(path: str, question: Any) -> tuple[int, str]:
    """The answer to an object that is sent where none is expected."""
    raise AssertionError(f"{question} was sent to {path}")


@contextmanager
def api_server(answer: Callable[[str], tuple[int, str]], review: Review = nobody_asks) -> Iterator[str]:
    """The address of a server whose status and body for a path are those of ``answer``, for an object that is sent
    those of ``review``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(*answer(self.path))

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            self._say(*review(self.path, json.loads(sent)))

        def _say(self, status: int, body: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def client_of(address: str) -> client.ApiClient:
    """A client of that server which asks once."""
    configuration = client.Configuration(host=address)
    configuration.retries = False
    return client.ApiClient(configuration)
