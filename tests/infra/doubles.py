"""Doubles of the Hugging Face hub and of a container registry, on 127.0.0.1."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

COMMIT = "c" * 40
DIGEST = f"sha256:{'d' * 64}"
TOKEN = "TheTokenThatNobodyMaySee"


@dataclass
class Hub:
    """What the hub serves of one model, and what it does wrong."""

    model: str = "acme/tiny-1b"
    files: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of files whose content nobody asks for."""
    gated: str | bool = False
    refuses_files: bool = False
    """A gated model's description is public, its files are not."""
    answer: tuple[int, str] = (200, "")
    """Status and X-Error-Code of the description."""
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def respond(self, handler: _Handler) -> None:
        """One request."""
        path = urlsplit(handler.path).path
        self.asked.append(path)
        if path.startswith("/api/models/"):
            self._describe(handler, path)
        elif self.refuses_files:
            handler.say(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "access is restricted"})
        else:
            name = path.removeprefix(f"/{self.model}/resolve/{COMMIT}/")
            content = self.files[name]
            etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
            handler.say(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

    def _describe(self, handler: _Handler, path: str) -> None:
        status, error = self.answer
        name = path.removeprefix("/api/models/").partition("/revision/")[0]
        if status == 200 and name != self.model:
            status, error = 404, "RepoNotFound"
        if status != 200:
            handler.say(status, b"{}", {"X-Error-Code": error} if error else {})
            return
        sizes = {**{name: len(content) for name, content in self.files.items()}, **self.sizes}
        siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
        document = {"id": self.model, "modelId": self.model, "sha": COMMIT, "gated": self.gated, "siblings": siblings}
        handler.say(200, json.dumps(document).encode(), {})


@dataclass
class Registry:
    """What the registry knows: repository:tag → digest."""

    tags: dict[str, str] = field(default_factory=lambda: {"vllm/vllm-openai:v0.31.0": DIGEST})
    wants_token: bool = True
    names_digest: bool = True
    private: bool = False
    status: int | None = None
    """An answer to everything."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    endpoint: str = ""

    manifest = b'{"schemaVersion": 2}'

    def respond(self, handler: _Handler) -> None:
        """One request."""
        url = urlsplit(handler.path)
        self.asked.append((handler.command, url.path))
        if url.path == "/token":
            scope = parse_qs(url.query)["scope"][0]
            body = {"token": f"{TOKEN}-{scope}"} if not self.private else {}
            handler.say(401 if self.private else 200, json.dumps(body).encode(), {})
            return
        self.accepted.append(handler.headers.get("Accept", ""))
        repository, _, tag = url.path.removeprefix("/v2/").partition("/manifests/")
        scope = f"repository:{repository}:pull"
        if self.status is not None:
            handler.say(self.status, b"", {})
        elif self.wants_token and handler.headers.get("Authorization") != f"Bearer {TOKEN}-{scope}":
            challenge = f'Bearer realm="{self.endpoint}/token",service="registry",scope="{scope}"'
            handler.say(401, b"", {"WWW-Authenticate": challenge})
        elif f"{repository}:{tag}" not in self.tags:
            handler.say(404, b"", {})
        else:
            digest = {"Docker-Content-Digest": self.tags[f"{repository}:{tag}"]} if self.names_digest else {}
            handler.say(200, self.manifest, digest)


class _Handler(BaseHTTPRequestHandler):
    double: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing: what was asked is in the double."""

    def do_HEAD(self) -> None:
        self.double.respond(self)

    def do_GET(self) -> None:
        self.double.respond(self)

    def say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Answer; without the body to HEAD."""
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that keeps its connection and goes is no error."""


@contextmanager
def serving(double: Hub | Registry) -> Iterator[None]:
    """Serve a double on a free port; its address is in ``endpoint``."""
    server = _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"double": double}))
    double.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
