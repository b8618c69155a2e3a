"""The seed program, run as the Job runs it (``python -c TEXT``) against a double of the Hugging Face hub.

The double answers what huggingface_hub asks: the model's description with hashes, and for each file HEAD and
GET of /resolve/, which sends an LFS file on to another host with a signed URL, as the hub does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

PROGRAM = (Path(__file__).parents[2] / "components" / "seed" / "download_model.py").read_text()
MODEL = "Qwen/Qwen2.5-tiny"
COMMIT = "5" * 40
TOKEN = "hf_TheTokenThatNobodyMaySee"
SIGNATURE = "TheSignatureThatNobodyMaySee"
WEIGHTS = "model-00001-of-00001.safetensors"
HUGE = 10**18
LAYERS = {
    "settings": 2,
    "name resolution": 11,
    "connection": 12,
    "TLS": 13,
    "proxy": 14,
    "time-out": 15,
    "token": 16,
    "licence": 17,
    "not found": 18,
    "hub": 19,
    "disk": 20,
    "verification": 21,
}


def model_files() -> dict[str, bytes]:
    """A small model."""
    return {
        "config.json": b'{"architectures": ["Qwen2ForCausalLM"]}',
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "2_Dense/config.json": b"{}",  # the same content as tokenizer.json: one blob, two names
        WEIGHTS: hashlib.shake_256(b"weights").digest(1 << 20),
    }


@dataclass
class Hub:
    """What the double serves, what it does wrong, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=model_files)
    claimed_sizes: dict[str, int] = field(default_factory=dict)
    api_answer: tuple[int, str] = (200, "")
    """Status and X-Error-Code of the model's description."""
    file_answer: tuple[int, str] = (200, "")
    corrupt: str = ""
    stalls: set[str] = field(default_factory=set)
    """Files that stop half-way, or "api"."""
    released: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def description(self) -> dict[str, object]:
        siblings = []
        for name, content in self.files.items():
            size = self.claimed_sizes.get(name, len(content))
            entry = {"rfilename": name, "size": size, "blobId": git_hash(content)}
            if is_lfs(name):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 135}
            siblings.append(entry)
        return {"id": MODEL, "modelId": MODEL, "sha": COMMIT, "siblings": siblings}

    def fetched(self) -> list[str]:
        """Paths of the GET requests for content."""
        return [path for method, path, _ in self.requests if method == "GET" and not path.startswith("/api/")]


def is_lfs(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".gguf", ".pt"))


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One request to the double."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing: the hub's list of requests is what tests look at."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, path, {key.lower(): value for key, value in self.headers.items()}))
        if path.startswith("/api/models/"):
            if "api" in self.hub.stalls:
                self.hub.released.wait(60)
            self.answer(*self.hub.api_answer, json.dumps(self.hub.description()).encode())
        elif path.startswith("/cdn/"):
            self.send_content(path.removeprefix("/cdn/"))
        else:
            self.resolve(path.removeprefix(f"/{MODEL}/resolve/{COMMIT}/"))

    def resolve(self, name: str) -> None:
        content = self.hub.files[name]
        headers = {"X-Repo-Commit": COMMIT}
        if self.hub.file_answer[0] != 200:
            self.answer(*self.hub.file_answer, b"")
        elif is_lfs(name):
            headers["X-Linked-ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(content))
            headers["Location"] = f"http://localhost:{self.hub.port}/cdn/{name}?X-Amz-Signature={SIGNATURE}"
            self.answer(302, "", b"", headers)
        else:
            self.answer(200, "", content, {**headers, "ETag": f'"{git_hash(content)}"'})

    def send_content(self, name: str) -> None:
        content = self.hub.files[name]
        if name == self.hub.corrupt:
            content = bytes(len(content))
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        stop = len(content) // 2 if name in self.hub.stalls else None
        self.answer(206 if start else 200, "", content[start:], headers, stop)

    def answer(
        self, status: int, error: str, body: bytes, headers: dict[str, str] | None = None, stop: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:stop])
        if stop is not None:
            self.wfile.flush()
            self.hub.released.wait(60)
            self.close_connection = True


class QuietServer(ThreadingHTTPServer):
    """A server that a killed client does not make print a traceback."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed, or that tried TLS, is what the tests are about."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    double = Hub()
    server = QuietServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": double}))
    double.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield double
    double.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@dataclass
class Job:
    """The claim of one test and how the program is run on it."""

    claim: Path
    hub: Hub

    @property
    def repository(self) -> Path:
        return self.claim / "hub" / "models--Qwen--Qwen2.5-tiny"

    @property
    def snapshot(self) -> Path:
        return self.repository / "snapshots" / COMMIT

    @property
    def marker(self) -> Path:
        return self.claim / "seed.json"

    def environment(self, **changes: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.claim.parent),
            "HF_HOME": str(self.claim),
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_TOKEN": TOKEN,
            "SEED_MODEL": MODEL,
            "SEED_REVISION": COMMIT,
            "SEED_MARKER": str(self.marker),
            "SEED_COMPILE_CACHE": "",
            "SEED_KEEP": "",
            **changes,
        }

    def start(self, **changes: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.Popen(
            command, env=self.environment(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run to the end; whatever the case, no secret and no traceback may be printed."""
        with self.start(**changes) as process:
            stdout, stderr = process.communicate(timeout=120)
        printed = stdout + stderr
        for secret in (TOKEN, SIGNATURE, "passw0rd"):
            assert secret not in printed, f"a log is no place for a secret: {printed}"
        assert "Traceback" not in printed, f"a person reads this, not a programmer: {printed}"
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def assert_complete(self) -> None:
        for name, content in self.hub.files.items():
            assert (self.snapshot / name).read_bytes() == content, f"{name} must be there as the hub has it"
        marker = json.loads(self.marker.read_text())
        expected = {name: len(content) for name, content in self.hub.files.items()}
        assert marker["files"] == expected, "the marker names each file with its size: the server's start relies on it"
        assert (marker["model"], marker["commit"]) == (MODEL, COMMIT), "the marker says what is there"
        assert not list(self.repository.glob("blobs/*.incomplete")), "partial files would fill the claim"


@pytest.fixture
def job(tmp_path: Path, hub: Hub) -> Job:
    return Job(tmp_path / "claim", hub)


def measured(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The machine-readable line."""
    line = next(line for line in result.stdout.splitlines() if line.startswith("seed: {"))
    parsed: dict[str, Any] = json.loads(line.removeprefix("seed: "))
    return parsed


def assert_failed(result: subprocess.CompletedProcess[str], layer: str) -> None:
    assert result.returncode == LAYERS[layer], f"the exit code is the layer's: {result.stdout}{result.stderr}"
    lines = result.stderr.splitlines()
    assert len(lines) == 1, f"one line says what broke: {lines}"
    assert lines[0].startswith(f"seed: failed ({layer}): "), f"the line names the layer: {lines}"


def test_a_fresh_download_is_complete_and_measured(job: Job) -> None:
    result = job.run()
    assert result.returncode == 0, result.stderr
    job.assert_complete()
    line = measured(result)
    distinct = {hashlib.sha256(content).digest(): len(content) for content in job.hub.files.values()}
    assert line["bytes"] == sum(distinct.values()), (
        "bytes that came from the hub; one content under two names came once"
    )
    assert line["path"] == str(job.snapshot), "the folder that vLLM reads"
    assert line["megabytesPerSecond"] == pytest.approx(line["bytes"] / 1e6 / line["seconds"], rel=0.05, abs=0.1), (
        "MB/s of the download alone, in powers of ten"
    )
    assert (job.snapshot / WEIGHTS).is_symlink(), "the cache layout keeps content in blobs, and links to it"


def test_the_token_goes_to_the_hub_and_nowhere_else(job: Job) -> None:
    job.run()
    sent = {path.split("/")[1]: headers.get("authorization") for _, path, headers in job.hub.requests}
    assert sent == {"api": f"Bearer {TOKEN}", "Qwen": f"Bearer {TOKEN}", "cdn": None}, (
        "the signed URL of another host must not get the token"
    )


@pytest.mark.parametrize("revision", [COMMIT, "", "v1.0"])
def test_vllm_finds_the_model_offline_by_name(job: Job, revision: str) -> None:
    job.hub.files["pytorch_model.bin"] = b"other weights"
    job.hub.claimed_sizes["pytorch_model.bin"] = HUGE  # skipped, which the look-up below must not mind
    assert job.run(SEED_REVISION=revision).returncode == 0, "every kind of revision can be seeded"
    # What vllm/transformers_utils/repo_utils.py (get_model_path) does when HF_HUB_OFFLINE is set.
    look_up = (
        "import sys, huggingface_hub as h; "
        "print(h.snapshot_download(sys.argv[1], revision=sys.argv[2] or None, local_files_only=True))"
    )
    found = subprocess.run(
        [sys.executable, "-c", look_up, MODEL, revision],
        env=job.environment(HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == str(job.snapshot), f"the server has no network: {found.stderr}"


def test_a_second_run_does_nothing_and_asks_for_nothing(job: Job) -> None:
    job.run(SEED_REVISION="")
    job.hub.requests.clear()
    result = job.run(SEED_REVISION="")
    assert result.returncode == 0, result.stderr
    assert "nothing to do" in result.stdout, "the log says why it was quick"
    assert job.hub.requests == [], "a restart must not depend on the hub"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)])
def test_a_killed_run_is_resumed_where_it_stopped(job: Job, number: signal.Signals, code: int) -> None:
    # More than two of the library's chunks (10 MiB), so that some of the first half is written.
    job.hub.files[WEIGHTS] = hashlib.shake_256(b"long").digest(24 << 20)
    job.hub.stalls = {WEIGHTS}
    partial = job.repository / "blobs" / f"{hashlib.sha256(job.hub.files[WEIGHTS]).hexdigest()}.incomplete"
    with job.start() as process:
        deadline = time.monotonic() + 60
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code, "as process 1 of a container it must heed SIGTERM itself"
    assert not job.marker.exists(), "the marker is written last"
    job.hub.stalls = set()
    there = partial.stat().st_size
    assert there > 0, "half of the weights were on the volume"
    job.hub.requests.clear()
    result = job.run()
    job.assert_complete()
    ranges = {headers.get("range") for method, path, headers in job.hub.requests if WEIGHTS in path and method == "GET"}
    assert ranges == {f"bytes={there}-"}, "a slow line must not carry the same bytes twice"
    assert measured(result)["bytes"] < len(job.hub.files[WEIGHTS]), "only what this run fetched counts for the rate"


def test_what_a_killed_run_of_the_library_left_is_deleted(job: Job) -> None:
    blobs = job.repository / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(job.hub.files[WEIGHTS]).hexdigest()}.0badcafe.incomplete").write_bytes(b"half")
    job.run()
    job.assert_complete()


def truncate(job: Job) -> None:
    with (job.snapshot / WEIGHTS).open("r+b") as stream:
        stream.truncate(1000)


def flip_without_marker(job: Job) -> None:
    with (job.snapshot / WEIGHTS).open("r+b") as stream:
        stream.write(b"wrong, and of the right size")
    job.marker.unlink()


def corrupt_partial(job: Job) -> None:
    blob = (job.snapshot / WEIGHTS).resolve()
    (job.snapshot / WEIGHTS).unlink()
    blob.rename(blob.with_name(f"{blob.name}.incomplete"))
    with blob.with_name(f"{blob.name}.incomplete").open("ab") as stream:
        stream.write(b"more than the hub has")


def wrong_size_in_marker(job: Job) -> None:
    marker = json.loads(job.marker.read_text())
    marker["files"][WEIGHTS] += 1
    job.marker.write_text(json.dumps(marker))


@pytest.mark.parametrize(
    ("damage", "fetched"),
    [
        (truncate, 1),
        (flip_without_marker, 1),
        (corrupt_partial, 1),
        (lambda job: (job.snapshot / WEIGHTS).resolve().unlink(), 1),
        (lambda job: (job.snapshot / WEIGHTS).unlink(), 0),
        (wrong_size_in_marker, 0),
        (lambda job: job.marker.write_text("[]"), 0),
        (lambda job: job.marker.write_text(json.dumps({**json.loads(job.marker.read_text()), "files": None})), 0),
        (lambda job: job.marker.write_text('{"model": '), 0),
        (lambda job: (job.repository / "refs" / "main").unlink(), 0),
    ],
    ids=[
        "shorter file",
        "other content",
        "too long partial file",
        "no content",
        "no entry",
        "size in the marker",
        "marker of another form",
        "marker without files",
        "half a marker",
        "no refs/main",
    ],
)
def test_damage_is_found_and_only_that_is_repaired(job: Job, damage: Callable[[Job], object], fetched: int) -> None:
    job.run(SEED_REVISION="")
    damage(job)
    job.hub.requests.clear()
    result = job.run(SEED_REVISION="")
    assert result.returncode == 0, result.stderr
    job.assert_complete()
    assert (job.repository / "refs" / "main").read_text() == COMMIT, "offline, a model without revision is main"
    content = [path for path in job.hub.fetched() if path.startswith("/cdn/")]
    assert len(content) == fetched, f"what is intact is not downloaded again: {content}"


@pytest.mark.parametrize(("revision", "is_kept"), [(COMMIT, False), ("v2.0", True)])
def test_a_marker_that_does_not_hold_is_gone_even_without_a_hub(job: Job, revision: str, is_kept: bool) -> None:
    job.run()
    truncate(job)
    job.hub.api_answer = (500, "")
    assert_failed(job.run(SEED_REVISION=revision), "hub")
    assert job.marker.exists() is is_kept, "no server may start on it; one of another revision is not concerned"


@pytest.mark.parametrize(("first", "then"), [(COMMIT, "v2.0"), ("", COMMIT), (COMMIT, "")])
def test_another_revision_is_not_taken_for_this_one(job: Job, first: str, then: str) -> None:
    job.run(SEED_REVISION=first)
    job.hub.requests.clear()
    job.run(SEED_REVISION=then)
    assert job.hub.requests, "the marker is of one revision"
    assert job.hub.fetched() == [], "the content is the same, and there"
    assert json.loads(job.marker.read_text())["revision"] == then, "the marker says what was asked for"


def test_wrong_content_from_the_hub_is_deleted_and_a_retry_mends_it(job: Job) -> None:
    job.hub.corrupt = WEIGHTS
    result = job.run()
    assert_failed(result, "verification")
    assert WEIGHTS in result.stderr, "the file is named"
    assert not job.marker.exists(), "the server must not start on this"
    assert not (job.snapshot / WEIGHTS).exists(), "a wrong file must not be found by the retry"
    job.hub.corrupt = ""
    assert job.run().returncode == 0, "the Job's retry downloads it again"
    job.assert_complete()


@pytest.mark.parametrize(
    ("name", "is_skipped"),
    [
        ("pytorch_model.bin", True),
        ("optimizer.pt", True),
        ("model-q4.gguf", True),
        ("original/model.safetensors", True),
        ("model-00002-of-00002.safetensors", False),
        ("2_Dense/pytorch_model.bin", False),
    ],
)
def test_weights_that_vllm_does_not_read_are_skipped(job: Job, name: str, is_skipped: bool) -> None:
    job.hub.files[name] = b"weights"
    job.hub.claimed_sizes[name] = HUGE
    result = job.run()
    if is_skipped:
        assert result.returncode == 0, f"vLLM reads the safetensors: {result.stderr}"
    else:
        assert_failed(result, "disk")


def test_small_files_and_models_without_safetensors_are_kept(job: Job) -> None:
    job.hub.files["spk_dict.pt"] = b"read at run time"
    assert job.run().returncode == 0, "a small file costs nothing"
    job.assert_complete()
    job.hub.files = {"config.json": b"{}", "pytorch_model.bin": b"the only weights"}
    job.hub.claimed_sizes["pytorch_model.bin"] = HUGE
    job.marker.unlink()
    assert_failed(job.run(), "disk")


def test_a_full_disk_is_noticed_before_the_download(job: Job) -> None:
    job.hub.claimed_sizes[WEIGHTS] = HUGE
    result = job.run()
    assert_failed(result, "disk")
    assert f"{HUGE:,}"[:5] in result.stderr, "needed bytes and free bytes are both named"
    assert "are free in" in result.stderr, "needed bytes and free bytes are both named"
    assert job.hub.fetched() == [], "nothing was downloaded for nothing"


@pytest.mark.parametrize(
    ("where", "answer", "layer", "advice"),
    [
        ("api", (401, "RepoNotFound"), "token", "vllm:hfToken"),
        ("api", (401, ""), "token", "vllm:hfToken"),
        ("file", (401, "GatedRepo"), "token", "vllm:hfToken"),
        ("api", (403, "GatedRepo"), "licence", "accept the licence"),
        ("file", (403, "GatedRepo"), "licence", "accept the licence"),
        ("api", (404, "RepoNotFound"), "not found", "model.id"),
        ("api", (404, "RevisionNotFound"), "not found", "model.revision"),
        ("api", (407, ""), "proxy", "login"),
        ("api", (500, ""), "hub", "try again later"),
    ],
)
def test_a_refusal_names_its_layer(job: Job, where: str, answer: tuple[int, str], layer: str, advice: str) -> None:
    if where == "api":
        job.hub.api_answer = answer
    else:
        job.hub.file_answer = answer
    result = job.run()
    assert_failed(result, layer)
    assert advice in result.stderr, f"the line says what to do: {result.stderr}"
    assert not job.marker.exists(), "nothing is complete"


@pytest.mark.parametrize(
    ("changes", "layer", "advice"),
    [
        ({"HF_ENDPOINT": "http://user:passw0rd@127.0.0.1:CLOSED"}, "connection", "egress"),
        ({"HF_ENDPOINT": "http://hub.invalid"}, "name resolution", "hub.invalid"),
        ({"HF_ENDPOINT": "https://127.0.0.1:OPEN"}, "TLS", "CA"),
        ({"HTTP_PROXY": "http://user:passw0rd@127.0.0.1:CLOSED"}, "proxy", "seed.proxy"),
        ({"http_proxy": "http://127.0.0.1:CLOSED"}, "proxy", "127.0.0.1:CLOSED"),
        ({"https_proxy": "http://127.0.0.1:OPEN", "HF_ENDPOINT": "https://hub.invalid"}, "proxy", "127.0.0.1:OPEN"),
        ({"https_proxy": "http://127.0.0.1:CLOSED", "HF_ENDPOINT": "https://hub.invalid"}, "proxy", "hub.invalid"),
        ({"https_proxy": "http://proxy.invalid:3128", "HF_ENDPOINT": "https://hub.invalid"}, "proxy", "proxy.invalid"),
        ({"SEED_MODEL": ""}, "settings", "SEED_MODEL"),
        ({"HF_TOKEN": f"{TOKEN}\n{TOKEN}"}, "settings", "HF_TOKEN"),
    ],
)
def test_a_broken_way_to_the_hub_names_its_layer(
    job: Job, closed_port: int, changes: dict[str, str], layer: str, advice: str
) -> None:
    ports = {"CLOSED": str(closed_port), "OPEN": str(job.hub.port)}
    for word, port in ports.items():
        changes = {key: value.replace(word, port) for key, value in changes.items()}
        advice = advice.replace(word, port)
    result = job.run(**changes)
    assert_failed(result, layer)
    assert advice in result.stderr, f"the line says where to look: {result.stderr}"


@pytest.mark.parametrize(("token", "said"), [("", "without HF_TOKEN"), (TOKEN, "with HF_TOKEN")])
def test_a_refusal_says_whether_there_was_a_token(job: Job, token: str, said: str) -> None:
    job.hub.api_answer = (401, "")
    assert said in job.run(HF_TOKEN=token).stderr, "a token that is absent and one that is wrong have two remedies"


def test_a_blob_with_two_names_is_repaired_under_both(job: Job) -> None:
    job.run()
    (job.snapshot / "tokenizer.json").resolve().write_bytes(b"wrong")
    assert job.run().returncode == 0, "both names lead to the same wrong blob"
    job.assert_complete()


def test_no_proxy_is_heeded(job: Job, closed_port: int) -> None:
    result = job.run(http_proxy=f"http://127.0.0.1:{closed_port}", no_proxy="localhost,127.0.0.1")
    assert result.returncode == 0, f"the hub is reached directly: {result.stderr}"
    job.assert_complete()


def test_a_hub_that_does_not_answer_is_a_time_out(job: Job) -> None:
    job.hub.stalls = {"api"}
    assert_failed(job.run(HF_HUB_ETAG_TIMEOUT="1"), "time-out")


def test_the_servers_offline_switch_does_not_reach_the_download(job: Job) -> None:
    assert job.run(HF_HUB_OFFLINE="1").returncode == 0, "an image may carry the switch"
    job.assert_complete()


def test_a_line_break_after_the_token_does_no_harm(job: Job) -> None:
    assert job.run(HF_TOKEN=f"{TOKEN}\n").returncode == 0, "`echo TOKEN | kubectl create secret` adds one"


def test_a_claim_that_is_no_folder_is_a_disk_failure(job: Job) -> None:
    job.claim.write_text("a file where the claim should be")
    assert_failed(job.run(SEED_MARKER=str(job.claim.parent / "seed.json")), "disk")
    assert job.hub.requests == [], "nothing is asked for that cannot be stored"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into a read-only folder too")
def test_a_folder_that_cannot_be_written_is_a_disk_failure(job: Job) -> None:
    job.claim.mkdir(mode=0o555)
    result = job.run()
    assert_failed(result, "disk")
    assert "fsGroup" in result.stderr, "the line says how it becomes writable"


@pytest.mark.parametrize("is_downloaded", [False, True])
def test_pruning_keeps_the_newest_three_and_the_named_one(job: Job, is_downloaded: bool) -> None:
    if is_downloaded:
        job.run()
    root = job.claim / "compile"
    for age, name in enumerate(["first", "second", "third", "fourth", "in-use"]):
        (root / name / "torch_compile_cache").mkdir(parents=True)
        os.utime(root / name, (1_000_000 - age, 1_000_000 - age))
    (root / "note.txt").write_text("not a cache")
    result = job.run(SEED_COMPILE_CACHE=str(root), SEED_KEEP="in-use")
    assert result.returncode == 0, result.stderr
    left = sorted(path.name for path in root.iterdir())
    assert left == ["first", "in-use", "note.txt", "second", "third"], "old caches fill the claim; the live one stays"
    assert "fourth" in result.stdout, "what is deleted is named"


def test_without_a_root_nothing_is_pruned(job: Job) -> None:
    assert job.run(SEED_COMPILE_CACHE="", SEED_KEEP="").returncode == 0, "pruning is optional"
    missing = str(job.claim / "compile")
    assert job.run(SEED_COMPILE_CACHE=missing, SEED_KEEP="new").returncode == 0, "there is none before the first start"
