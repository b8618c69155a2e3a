"""A mirror of the Hugging Face hub that holds the models of one cache folder: what ``HF_ENDPOINT`` can name.

It answers what huggingface_hub asks for a download: the description of a revision with sizes and hashes, and
HEAD and GET of its files with ETag and Range. It needs the standard library only:

    python -m sim.vllm_cpu.mirror HF_HOME --port 8900 --megabytes-per-second 0.2
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

_DESCRIPTION = re.compile(r"/api/models/(?P<model>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")
_TREE = re.compile(r"/api/models/(?P<model>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
_FILE = re.compile(r"/(?P<model>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_BLOCKS_PER_SECOND = 20


@dataclass(frozen=True)
class Repository:
    """One model in Hugging Face's cache layout."""

    folder: Path

    def commit(self, revision: str) -> str | None:
        """The commit that a branch, or a commit itself, names; None where there is no such revision."""
        # A revision comes from the network: only a plain name is looked up.
        if re.fullmatch(r"\w[\w.-]*", revision) is None:
            return None
        reference = self.folder / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        return commit if (self.folder / "snapshots" / commit).is_dir() else None

    def files(self, commit: str) -> dict[str, Path]:
        """The files of a commit: name → content, whose own name is the file's ETag."""
        root = self.folder / "snapshots" / commit
        return {str(path.relative_to(root)): path.resolve() for path in sorted(root.rglob("*")) if path.is_file()}

    def description(self, model: str, commit: str) -> dict[str, Any]:
        """What the hub's API says of a revision."""
        siblings = [_sibling(name, blob) for name, blob in self.files(commit).items()]
        return {"id": model, "modelId": model, "sha": commit, "private": False, "gated": False, "siblings": siblings}


def _sibling(name: str, blob: Path) -> dict[str, Any]:
    size = blob.stat().st_size
    sibling: dict[str, Any] = {"rfilename": name, "size": size, "blobId": blob.name}
    if _is_large(blob):
        sibling["lfs"] = {"sha256": blob.name, "size": size, "pointerSize": 135}
    return sibling


def _entry(name: str, blob: Path) -> dict[str, Any]:
    size = blob.stat().st_size
    entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": blob.name}
    if _is_large(blob):
        entry["lfs"] = {"oid": blob.name, "size": size, "pointerSize": 135}
    return entry


def _is_large(blob: Path) -> bool:
    """The hub names a file of its large-file storage by sha256, any other by git's sha1."""
    return len(blob.name) == 64


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    home: Path
    bytes_per_second: float | None
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing: the client says what it fetched."""

    def do_HEAD(self) -> None:
        """Answer as to GET, without the content."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with a description, a file, or the hub's own kind of refusal."""
        path = unquote(urlsplit(self.path).path)
        if path == "/health":
            self._answer(200, b"ok")
        elif found := _DESCRIPTION.fullmatch(path):
            self._describe(found["model"], found["revision"] or "main")
        elif found := _TREE.fullmatch(path):
            self._list(found["model"], found["revision"])
        elif found := _FILE.fullmatch(path):
            self._send_file(found["model"], found["revision"], found["name"])
        else:
            self._refuse("RepoNotFound")

    def _repository(self, model: str, revision: str) -> tuple[Repository, str] | None:
        """The model and the commit; None after a refusal was sent."""
        folder = self.home / "hub" / f"models--{model.replace('/', '--')}"
        if not folder.is_dir():
            self._refuse("RepoNotFound")
            return None
        commit = Repository(folder).commit(revision)
        if commit is None:
            self._refuse("RevisionNotFound")
            return None
        return Repository(folder), commit

    def _describe(self, model: str, revision: str) -> None:
        if found := self._repository(model, revision):
            repository, commit = found
            body = json.dumps(repository.description(model, commit)).encode()
            self._answer(200, body, {"Content-Type": "application/json"})

    def _list(self, model: str, revision: str) -> None:
        """What snapshot_download asks since huggingface_hub 2."""
        if found := self._repository(model, revision):
            repository, commit = found
            body = json.dumps([_entry(name, blob) for name, blob in repository.files(commit).items()]).encode()
            self._answer(200, body, {"Content-Type": "application/json"})

    def _send_file(self, model: str, revision: str, name: str) -> None:
        found = self._repository(model, revision)
        if found is None:
            return
        repository, commit = found
        blob = repository.files(commit).get(name)
        if blob is None:
            self._refuse("EntryNotFound")
            return
        size = blob.stat().st_size
        headers = {"X-Repo-Commit": commit, "ETag": f'"{blob.name}"', "Accept-Ranges": "bytes"}
        if _is_large(blob):
            headers |= {"X-Linked-ETag": f'"{blob.name}"', "X-Linked-Size": str(size)}
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, end = (int(wanted[1]), int(wanted[2] or size - 1)) if wanted else (0, size - 1)
        if wanted and start >= size:
            self._answer(416, b"", headers | {"Content-Range": f"bytes */{size}"})
            return
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{min(end, size - 1)}/{size}"
        self._begin(206 if wanted else 200, min(end, size - 1) + 1 - start, headers)
        if self.command == "GET":
            with blob.open("rb") as stream:
                stream.seek(start)
                self._copy(stream, min(end, size - 1) + 1 - start)

    def _copy(self, stream: BinaryIO, length: int) -> None:
        """Send ``length`` bytes, no faster than the limit."""
        block = int(self.bytes_per_second / _BLOCKS_PER_SECOND) + 1 if self.bytes_per_second else 1 << 20
        while length:
            content = stream.read(min(block, length))
            self.wfile.write(content)
            length -= len(content)
            if self.bytes_per_second:
                time.sleep(len(content) / self.bytes_per_second)

    def _refuse(self, code: str) -> None:
        self._answer(404, b"", {"X-Error-Code": code})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._begin(status, len(body), headers or {})
        if self.command == "GET":
            self.wfile.write(body)

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed half-way is what the limit of speed is for: no traceback."""


def _server(home: Path, address: str, port: int, megabytes_per_second: float | None) -> _Server:
    limit = megabytes_per_second * 1e6 if megabytes_per_second else None
    return _Server((address, port), type("Handler", (_Handler,), {"home": home, "bytes_per_second": limit}))


@contextmanager
def mirror(
    home: Path, port: int = 0, address: str = "127.0.0.1", megabytes_per_second: float | None = None
) -> Iterator[str]:
    """Serve the models under ``home/hub`` while the block runs.

    Args:
        home: a folder as ``HF_HOME`` is.
        port: 0 takes a free one.
        address: where to listen; pods reach an address of the node's bridge, not the loopback one.
        megabytes_per_second: of each file; None sends as fast as it can.

    Yields:
        The URL for ``HF_ENDPOINT``.
    """
    server = _server(home, address, port, megabytes_per_second)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Serve the models of a cache folder as the Hugging Face hub does.")
    parser.add_argument("home", type=Path, help="the folder that HF_HOME would name")
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--megabytes-per-second", type=float, help="of each file; default: no limit")
    options = parser.parse_args()
    server = _server(options.home, options.address, options.port, options.megabytes_per_second)
    print(f"hub: http://{options.address}:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
