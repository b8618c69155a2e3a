"""The mirror of the hub, asked by the real huggingface_hub and by the seed Job's own program."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.vllm_cpu.mirror import mirror
from sim.vllm_cpu.model import MODEL_ID, WEIGHTS, ModelFiles, model_contents, tiny_model

SEED_PROGRAM = (Path(__file__).parents[2] / "components" / "seed" / "download_model.py").read_text()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return tiny_model(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def endpoint(model: ModelFiles) -> Iterator[str]:
    with mirror(model.home) as url:
        yield url


def ask(endpoint: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=60)
    connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def file_path(model: ModelFiles, name: str, revision: str | None = None) -> str:
    return f"/{MODEL_ID}/resolve/{revision or model.revision}/{name}"


def start(command: list[str], endpoint: str, home: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_HOME": str(home), "HF_ENDPOINT": endpoint}
    return subprocess.Popen(
        [sys.executable, *command],
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def seed(endpoint: str, model: ModelFiles, home: Path) -> subprocess.Popen[str]:
    variables = {"SEED_MODEL": MODEL_ID, "SEED_REVISION": model.revision, "SEED_MARKER": str(home / "seed.json")}
    return start(["-c", SEED_PROGRAM], endpoint, home, **variables)


def layout(folder: Path) -> dict[str, bytes]:
    """Every file and what it holds, without what only the library itself keeps."""
    paths = (path for path in folder.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("revision", ["main", None])
def test_the_hubs_own_library_downloads_the_same_layout(
    endpoint: str, model: ModelFiles, tmp_path: Path, revision: str | None
) -> None:
    program = (
        f"from huggingface_hub import snapshot_download; print(snapshot_download({MODEL_ID!r}, revision={revision!r}))"
    )
    with start(["-c", program], endpoint, tmp_path) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, f"nothing but the endpoint differs from the hub: {output}"
    repository = tmp_path / "hub" / model.repository.name
    assert layout(repository / "blobs") == layout(model.repository / "blobs"), "names are the ETags"
    assert layout(repository / "snapshots") == layout(model.repository / "snapshots"), "the same commit"


def test_the_seed_jobs_program_takes_it_for_the_hub(endpoint: str, model: ModelFiles, tmp_path: Path) -> None:
    with seed(endpoint, model, tmp_path) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, f"sizes and hashes are those of the files: {output}"
    assert (tmp_path / "seed.json").is_file(), "the marker is written last"
    downloaded = tmp_path / "hub" / model.repository.name / "snapshots" / model.revision
    assert {path.name for path in downloaded.iterdir()} == set(model_contents()), "every file is there"


def test_a_slow_download_can_be_killed_half_way_and_resumed(model: ModelFiles, tmp_path: Path) -> None:
    partial = (
        tmp_path / "hub" / model.repository.name / "blobs" / f"{(model.snapshot / WEIGHTS).resolve().name}.incomplete"
    )
    with mirror(model.home, megabytes_per_second=2) as slow, seed(slow, model, tmp_path) as process:
        # The library writes 10 MB at a time, every 5 s at this speed.
        while not (partial.exists() and partial.stat().st_size) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"it was still downloading: {output}"
    assert 0 < partial.stat().st_size < model.weight_bytes, "half of the file is there"
    assert not (tmp_path / "seed.json").exists(), "a server must not start on this"
    with mirror(model.home) as fast, seed(fast, model, tmp_path) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, f"the next run completes what is there: {output}"
    weights = tmp_path / "hub" / model.repository.name / "snapshots" / model.revision / WEIGHTS
    assert weights.read_bytes() == model_contents()[WEIGHTS], "both halves make the file"


def test_a_range_is_that_part_of_the_file(endpoint: str, model: ModelFiles) -> None:
    content = model_contents()[WEIGHTS]
    status, headers, body = ask(endpoint, file_path(model, WEIGHTS), Range="bytes=1000-1999")
    assert (status, body) == (206, content[1000:2000]), "both ends are part of it"
    assert headers["Content-Range"] == f"bytes 1000-1999/{len(content)}", "a client checks what it gets"
    status, _, body = ask(endpoint, file_path(model, WEIGHTS), Range=f"bytes={len(content) - 5}-")
    assert (status, body) == (206, content[-5:]), "without an end, up to the last byte"
    status, headers, _ = ask(endpoint, file_path(model, WEIGHTS), Range=f"bytes={len(content)}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(content)}"), "nothing is left to send"


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_head_names_size_hash_and_commit(endpoint: str, model: ModelFiles, name: str) -> None:
    status, headers, body = ask(endpoint, file_path(model, name), "HEAD")
    assert (status, body) == (200, b""), "HEAD has no content"
    assert headers["Content-Length"] == str(len(model_contents()[name])), "the size of the file"
    assert headers["ETag"] == f'"{(model.snapshot / name).resolve().name}"', "the name of the blob in a cache"
    assert headers["X-Repo-Commit"] == model.revision, "a branch is turned into a commit with this"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/models/nobody/nothing", "RepoNotFound"),
        (f"/api/models/{MODEL_ID}/revision/v9", "RevisionNotFound"),
        (f"/api/models/{MODEL_ID}/revision/..", "RevisionNotFound"),
        (f"/{MODEL_ID}/resolve/main/absent.bin", "EntryNotFound"),
        (f"/{MODEL_ID}/resolve/main/../../refs/main", "EntryNotFound"),
        (f"/{MODEL_ID}/resolve/%2e%2e/config.json", "RevisionNotFound"),
        ("/", "RepoNotFound"),
    ],
)
def test_what_is_not_there_is_refused_as_the_hub_does(endpoint: str, path: str, code: str) -> None:
    status, headers, _ = ask(endpoint, path)
    assert (status, headers["X-Error-Code"]) == (404, code), "huggingface_hub chooses its error by this header"


def test_it_runs_as_a_program(model: ModelFiles) -> None:
    command = ["-m", "sim.vllm_cpu.mirror", str(model.home), "--port", "0"]
    process = start(command, "", model.home, PYTHONPATH=str(Path(__file__).parents[2]))
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("hub: http://127.0.0.1:"), f"the first line says where it listens: {line}"
        status, _, body = ask(line.split()[1], "/health")
        process.terminate()
    assert (status, body) == (200, b"ok"), "a probe can ask whether it is there"
