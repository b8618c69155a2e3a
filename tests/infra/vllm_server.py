"""A double of vLLM's OpenAI-compatible server on this machine: what `vllm-infra smoke` asks of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)
"""vllm, entrypoints/chat_utils.py, with status 400."""
Reply = tuple[int, Any]


@dataclass
class VllmServer:
    """What it serves. ``replies`` replaces the answer of a path; ``asked`` is what came: path, key, body."""

    models: tuple[str, ...] = ("qwen2.5-7b-awq",)
    key: str | None = None
    chat: bool = True
    replies: dict[str, Reply] = field(default_factory=dict)
    asked: list[tuple[str, str | None, Any]] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, authorization: str | None, body: Any) -> Reply:
        self.asked.append((path, authorization, body))
        if path in self.replies:
            return self.replies[path]
        if path != "/health" and self.key is not None and authorization != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        return self._answers().get(path, (404, {"detail": "Not Found"}))

    def _answers(self) -> dict[str, Reply]:
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        said = {"index": 0, "message": {"role": "assistant", "content": "Hello there!"}}
        refused = {"error": {"message": NO_TEMPLATE, "type": "BadRequestError", "code": 400}}
        return {
            "/health": (200, ""),
            "/v1/models": (200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}),
            "/v1/chat/completions": (200, {"choices": [said], "usage": usage}) if self.chat else (400, refused),
            "/v1/completions": (200, {"choices": [{"index": 0, "text": " and goodbye."}], "usage": usage}),
        }

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Its address, while it serves."""
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                status, reply = double.answer(self.path, self.headers.get("Authorization"), body)
                content = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if status == 302:
                    self.send_header("Location", f"{double.url}/elsewhere")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Keep the test's output clean."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
            self.url = f"http://127.0.0.1:{server.server_port}"
            try:
                yield self.url
            finally:
                server.shutdown()
