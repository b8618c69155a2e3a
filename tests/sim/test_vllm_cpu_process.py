"""Starting and stopping ``vllm serve``: with a stand-in for what goes wrong, and once for real."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from sim.vllm_cpu import process
from sim.vllm_cpu.model import MODEL_ID, tiny_model
from sim.vllm_cpu.process import ServerError, server

# Like vLLM it has a child, which outlives it when nobody ends it.
STAND_IN = """#!/usr/bin/env python3
import http.server, json, os, signal, subprocess, sys
if "--broken" in sys.argv:
    sys.exit("ValueError: no such option")
child = subprocess.Popen(["sleep", "3600"])
print(json.dumps({"child": child.pid, "arguments": sys.argv[1:], "variables": dict(os.environ)}), flush=True)
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if "--never-healthy" in sys.argv else 200)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose vLLM is a small server."""
    program = tmp_path / "environment" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setattr(process, "installed", lambda: tmp_path / "environment")
    monkeypatch.setattr(process, "STOP_SECONDS", 1.0)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def assert_ends(pid: int) -> None:
    """A killed process may take a moment to leave the table."""
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid), "nothing may be left that holds memory or a port"


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("options", [[], ["--deaf"]])
def test_no_process_is_left_after_the_block(tmp_path: Path, options: list[str]) -> None:
    log = tmp_path / "vllm.log"
    with server(["model", *options], log) as running:
        child = json.loads(log.read_text().splitlines()[0])["child"]
        assert is_running(running.pid), "it runs while the block does"
        assert is_running(child), "and so does its child"
    assert_ends(running.pid)
    assert_ends(child)


@pytest.mark.usefixtures("stand_in")
def test_a_server_that_was_killed_in_the_block_is_no_error(tmp_path: Path) -> None:
    with server(["model"], tmp_path / "vllm.log") as running:
        os.killpg(running.pid, signal.SIGKILL)
    assert_ends(running.pid)


@pytest.mark.usefixtures("stand_in")
def test_it_gets_its_arguments_and_nothing_of_this_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    log = tmp_path / "vllm.log"
    with server(["model", "--enforce-eager"], log, environment={"HF_HOME": "/models"}) as running:
        said = json.loads(log.read_text().splitlines()[0])
        expected = ["serve", "model", "--enforce-eager", "--host", "127.0.0.1", "--port", str(running.port)]
    assert said["arguments"] == expected, "the model and its options come first, as vLLM wants them"
    assert said["variables"]["HF_HOME"] == "/models", "what the caller adds"
    assert said["variables"]["HF_HUB_OFFLINE"] == "1", "a test must not depend on the hub"
    assert not {"VLLM_LOGGING_LEVEL", "HF_TOKEN"} & set(said["variables"]), "a test must not depend on this shell"


@pytest.mark.usefixtures("stand_in")
def test_a_server_that_ends_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="exit code 1:\nValueError: no such option"):
        server(["model", "--broken"], tmp_path / "vllm.log").__enter__()


@pytest.mark.usefixtures("stand_in")
def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with pytest.raises(ServerError, match="did not answer /health within 3 s"):
        server(["model", "--never-healthy"], log, patience=3).__enter__()
    assert_ends(json.loads(log.read_text().splitlines()[0])["child"])


def ask(url: str, question: dict[str, object]) -> dict[str, object]:
    body = json.dumps(question).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        parsed: dict[str, object] = json.load(answer)
        return parsed


@pytest.mark.metrics
def test_the_real_server_answers_a_chat_from_the_files_of_the_model(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "home")
    arguments = [MODEL_ID, "--revision", model.revision, "--enforce-eager", "--kv-cache-memory-bytes", "67108864"]
    log = tmp_path / "vllm.log"
    with server(arguments, log, environment={"HF_HOME": str(model.home)}, patience=3600) as running:
        message = {"role": "user", "content": "What is the capital of France?"}
        question = {"model": MODEL_ID, "messages": [message], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        first, second = (ask(f"{running.url}/v1/chat/completions", question) for _ in range(2))
    assert first["usage"]["completion_tokens"] == 8, "it answered as long as it was asked to"  # type: ignore[index]
    assert first["choices"] == second["choices"], "the weights are those of the files, not random ones of this start"
    assert "Loading weights took" in log.read_text(), "read from the safetensors file"
    assert_ends(running.pid)
