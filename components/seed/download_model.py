"""Download one model of the Hugging Face hub into a claim, verify it, and say so in a marker file.

The seed Job runs this text with ``python3 -c`` in the vLLM image: one file, the standard library and that
image's huggingface_hub (0.35 and newer). Environment: ``SEED_MODEL`` (ORG/NAME), ``SEED_REVISION`` (commit,
branch or empty), ``HF_HOME`` (folder on the claim), ``SEED_MARKER`` (file written last), ``SEED_COMPILE_CACHE``
(folder of compile caches, pruned to the newest three; empty: none), ``SEED_KEEP`` (the one that always stays);
``HF_TOKEN``, ``HF_ENDPOINT`` and the proxy variables as huggingface_hub reads them.

It prints ``seed: {"path": …, "bytes": …, "seconds": …, "megabytesPerSecond": …}`` of the download alone, or
one line on stderr that names the layer that broke; ``EXIT_CODES`` has the exit code of each.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# Distinct, so that a Job's podFailurePolicy can give up on what no retry mends (settings, token, licence).
EXIT_CODES = {"unexpected": 1, "settings": 2, "name resolution": 11, "connection": 12, "TLS": 13, "proxy": 14}
EXIT_CODES |= {"time-out": 15, "token": 16, "licence": 17, "not found": 18, "hub": 19, "disk": 20, "verification": 21}
NOT_WRITABLE = "not writable for this user: set runAsUser and fsGroup, or chown the folder on the node"
DISK_ADVICE = {
    errno.ENOSPC: "the volume is full: enlarge the claim or free space on it",
    errno.EDQUOT: "the volume's quota is used up: raise it or free space on it",
    errno.EROFS: "the volume is read-only: mount the claim writable",
    errno.EACCES: NOT_WRITABLE,
    errno.EPERM: NOT_WRITABLE,
}
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # no socket has these; others only where a file is named
# By a part of a class name: huggingface_hub 0.x raises the errors of requests, 1.x those of httpx, 2.x of httpx2.
NETWORK_ADVICE = (
    ("SSL", "TLS", "no trusted connection: what answers in the hub's place needs its CA in the image"),
    ("ProxyError", "proxy", "the proxy does not lead there: check seed.proxy"),
    ("gaierror", "name resolution", "the name has no address here: check the cluster's DNS, or set seed.proxy"),
    ("NewConnectionError", "connection", "no connection: check egress rules, or set seed.proxy"),  # is a Timeout too
    ("Timeout", "time-out", "no answer in time: check egress rules and seed.proxy"),
    ("Connect", "connection", "no connection: check egress rules, or set seed.proxy"),
    ("Protocol", "connection", "the connection broke: try again, or set seed.proxy"),
    ("JSONDecodeError", "hub", "the answer is not the hub's: check HF_ENDPOINT, or whether a portal answers for it"),
    ("FileMetadataError", "hub", "the answer is not the hub's: check HF_ENDPOINT, or whether a portal answers for it"),
)
STATUS_ADVICE = {
    401: ("token", "the hub wants a valid token (or the name is wrong): set vllm:hfToken, check model.id"),
    403: ("licence", "access is not granted: accept the licence on the model's page with the token's account"),
    404: ("not found", "the hub has no such model, revision or file: check model.id and model.revision"),
    407: ("proxy", "the proxy wants a login: use one that needs none"),
}
COMPILE_CACHES_KEPT = 3
WORKERS = 8  # huggingface_hub's own default for a snapshot
UNUSED_FOLDERS = ("original/", "metal/", "onnx/")
UNUSED_SUFFIXES = (".bin", ".pt", ".pth", ".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack", ".ckpt", ".tflite", ".ot")
SMALL_BYTES = 100_000_000


class SeedError(Exception):
    """What ends the program: the layer that broke (a key of ``EXIT_CODES``) and what to do about it."""

    def __init__(self, layer: str, message: str) -> None:
        super().__init__(message)
        self.layer = layer


@dataclass(frozen=True)
class HubFile:
    """A file of the model's repository; ``blob`` is the sha256 of an LFS file, else git's sha1 of the content."""

    name: str
    size: int
    blob: str

    def is_intact(self, path: Path) -> bool:
        """Whether ``path`` holds this file's content, by size and hash."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        is_sha256 = len(self.blob) == 64
        digest = hashlib.sha256() if is_sha256 else hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return digest.hexdigest() == self.blob


@dataclass(frozen=True)
class Seed:
    """What is asked for, and where it lies in Hugging Face's cache layout."""

    model: str
    revision: str
    home: Path
    marker: Path
    token: str

    @classmethod
    def from_environment(cls) -> Seed:
        """Read the variables. Raises SeedError (settings) that names the wrong ones."""
        model, home, marker = (os.environ.get(name, "") for name in ("SEED_MODEL", "HF_HOME", "SEED_MARKER"))
        if not (model and home and marker):
            raise SeedError("settings", "SEED_MODEL, HF_HOME and SEED_MARKER must all be set")
        token = os.environ.get("HF_TOKEN", "").strip()
        if not re.fullmatch(r"[!-~]*", token):  # an HTTP client would quote the header that it cannot send
            raise SeedError("settings", "HF_TOKEN has blanks or control characters inside: set vllm:hfToken again")
        return cls(model, os.environ.get("SEED_REVISION", ""), Path(home), Path(marker), token)

    @property
    def repository(self) -> Path:
        """The model's folder in the cache."""
        return self.home / "hub" / f"models--{self.model.replace('/', '--')}"

    @property
    def reference(self) -> Path:
        """The file that names the branch's commit; offline, a model without revision is looked up as main."""
        return self.repository / "refs" / (self.revision or "main")

    def entry(self, commit: str, name: str) -> Path:
        """A file of a commit, as vLLM opens it."""
        return self.repository / "snapshots" / commit / name

    def blob(self, file: HubFile) -> Path:
        """Where the content of a file lies."""
        return self.repository / "blobs" / file.blob

    def partial(self, file: HubFile) -> Path:
        """Where it lies until it is complete; huggingface_hub 0.x uses the same name."""
        return self.repository / "blobs" / f"{file.blob}.incomplete"

    def marked(self) -> dict[str, Any]:
        """What the marker says of this model and revision; empty without one that this program wrote."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            marker: dict[str, Any] = json.loads(self.marker.read_text())
            if (marker["model"], marker["revision"]) == (self.model, self.revision):
                return marker
        return {}

    def is_complete(self) -> bool:
        """Whether each file that the marker names is there with its size, and is found under the revision."""
        with contextlib.suppress(OSError, KeyError, TypeError, AttributeError):
            marker = self.marked()
            commit = marker["commit"]
            return (commit == self.revision or self.reference.read_text() == commit) and all(
                self.entry(commit, name).stat().st_size == size for name, size in marker["files"].items()
            )
        return False

    def is_wrong(self, commit: str, file: HubFile) -> bool:
        """Whether a file is there, as an entry or only as a blob, with wrong content."""
        paths = [path for path in (self.entry(commit, file.name), self.blob(file)) if os.path.lexists(path)]
        return bool(paths) and not file.is_intact(paths[0])


def say(text: str) -> None:
    """Print one line at once: a Job's log is read while it runs."""
    sys.stdout.write(f"seed: {text}\n")
    sys.stdout.flush()


def write_durably(path: Path, text: str) -> None:
    """Write a file in one step, after all that it speaks of has reached the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    os.sync()
    temporary.replace(path)


def is_needed(file: HubFile, has_safetensors: bool) -> bool:
    """Whether vLLM can read this file: where there are safetensors it takes no other weights.

    Source: vllm/model_executor/model_loader/default_loader.py loads the first of *.safetensors, *.bin, *.pt
    that the root folder has; vllm/config/load.py ignores original/. A claim is sized for the weights once.
    Small files stay, since a model may read one beside them (Qwen2.5-Omni's spk_dict.pt), and so does a .bin
    further down: it can be a layer of its own (2_Dense/ of an embedding model).
    """
    unused = file.name.startswith(UNUSED_FOLDERS) or ("/" not in file.name and file.name.endswith(UNUSED_SUFFIXES))
    return not (has_safetensors and unused and file.size >= SMALL_BYTES)


def files_of_hub(seed: Seed) -> tuple[str, list[HubFile]]:
    """Ask the hub for the revision's commit and those of its files that are needed."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 (reads the environment that main prepares)

    timeout = constants.HF_HUB_ETAG_TIMEOUT
    api = HfApi(token=seed.token or False)
    info = api.model_info(seed.model, revision=seed.revision or None, files_metadata=True, timeout=timeout)
    files = [
        HubFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or "")
        for sibling in info.siblings or ()
    ]
    has_safetensors = any(file.name.endswith(".safetensors") and "/" not in file.name for file in files)
    if not info.sha or not files or not all(file.blob for file in files):
        raise SeedError("hub", "the answer lists no files with hashes: HF_ENDPOINT must be a full mirror of the hub")
    return info.sha, [file for file in files if is_needed(file, has_safetensors)]


def download(seed: Seed, commit: str, file: HubFile) -> None:
    """Fetch the content of one file, from where a killed run stopped.

    The library itself would start from zero: since 1.x it gives a partial file a random name and never reads
    it again (huggingface_hub#4228), and Xet never did. So its ``http_get`` writes into a file that outlives
    the process. What is above 50 GB the hub serves through Xet alone: ``hf_hub_download`` fetches that.
    """
    from huggingface_hub import constants, hf_hub_url  # noqa: PLC0415
    from huggingface_hub.file_download import http_get  # noqa: PLC0415

    partial = seed.partial(file)
    if seed.blob(file).exists() or file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        return
    if partial.exists() and partial.stat().st_size > file.size:
        partial.unlink()
    with partial.open("ab") as stream:
        url = hf_hub_url(seed.model, file.name, revision=commit)
        headers = {"authorization": f"Bearer {seed.token}"} if seed.token else {}
        http_get(url, stream, resume_size=stream.tell(), headers=headers, expected_size=file.size)
    partial.replace(seed.blob(file))
    say(f"{file.name}: {file.size:,} bytes are there")


def download_all(seed: Seed, commit: str, files: list[HubFile]) -> tuple[int, float]:
    """Bring files into the snapshot; returns the bytes that this took from the hub, and the seconds."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    contents = {file.blob: file for file in files if not seed.blob(file).exists()}.values()
    partial = {file: path.stat().st_size for file in contents if (path := seed.partial(file)).exists()}
    size = sum(max(0, file.size - partial.get(file, 0)) for file in contents)
    free = shutil.disk_usage(seed.repository).free
    if size > free:
        raise SeedError("disk", f"{size:,} bytes are needed, {free:,} are free in {seed.home}: enlarge the claim")
    say(f"{size:,} bytes of {seed.model} are to be downloaded")
    start = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda file: download(seed, commit, file), contents))
    for file in files:
        hf_hub_download(seed.model, file.name, revision=commit, cache_dir=seed.home / "hub", token=seed.token or False)
    return size, max(0.001, round(time.monotonic() - start, 3))


def deleted(seed: Seed, commit: str, files: list[HubFile]) -> list[str]:
    """Names of the files that were there with wrong content; entry and blob of each are deleted now."""
    with ThreadPoolExecutor(WORKERS) as pool:
        verdicts = list(pool.map(lambda file: seed.is_wrong(commit, file), files))
    wrong = [file for file, is_wrong in zip(files, verdicts, strict=True) if is_wrong]
    for file in wrong:
        seed.entry(commit, file.name).unlink(missing_ok=True)
        seed.blob(file).unlink(missing_ok=True)
    return [file.name for file in wrong]


def fill(seed: Seed) -> None:
    """Bring the claim to the state that the marker then describes."""
    blobs = seed.repository / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=blobs):
        pass  # a claim that cannot be written fails before anything is asked for
    if seed.marked():
        seed.marker.unlink()  # it does not hold, and the server's start would believe it
    commit, files = files_of_hub(seed)
    for name in deleted(seed, commit, files):
        say(f"{name} was on the volume with wrong content: deleted, to be downloaded again")
    absent = [file for file in files if not seed.entry(commit, file.name).exists()]
    for leftover in set(blobs.glob("*.incomplete")) - {seed.partial(file) for file in absent}:
        leftover.unlink()  # of a killed run of the library, which would never read it again
    size, seconds = download_all(seed, commit, absent)
    if wrong := deleted(seed, commit, absent):
        raise SeedError("verification", f"wrong content, deleted; a retry downloads it again: {', '.join(wrong)}")
    if commit != seed.revision:
        write_durably(seed.reference, commit)
    marker = {"model": seed.model, "revision": seed.revision, "commit": commit, "bytes": size, "seconds": seconds}
    write_durably(seed.marker, json.dumps({**marker, "files": {file.name: file.size for file in files}}, indent=1))
    figures = {"bytes": size, "seconds": seconds, "megabytesPerSecond": round(size / 1e6 / seconds, 1)}
    say(json.dumps({"path": str(seed.entry(commit, "")), **figures}))


def prune(root: str, keep: str) -> None:
    """Delete all compile caches in ``root`` but the newest three and the one named ``keep``."""
    if not root or not Path(root).is_dir():
        return
    caches = [path for path in Path(root).iterdir() if path.is_dir() and not path.is_symlink()]
    caches.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for cache in caches[COMPILE_CACHES_KEPT:]:
        if cache.name != keep:
            shutil.rmtree(cache)
            say(f"compile cache {cache.name} deleted: not in use and not among the newest {COMPILE_CACHES_KEPT}")


def failed_request(links: list[BaseException]) -> tuple[str, str]:
    """Host of the request that failed, and the proxy that stood before it (empty: none)."""
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    for link in links:
        with contextlib.suppress(AttributeError, RuntimeError):  # not an error of the HTTP client, or without request
            url = str(link.request.url)  # type: ignore[attr-defined]
    host, scheme = urlsplit(url).hostname or "", urlsplit(url).scheme
    proxies = {} if urllib.request.proxy_bypass(host) else urllib.request.getproxies()
    return host, proxies.get(scheme) or proxies.get("all") or ""


def explain(error: BaseException) -> tuple[str, str]:
    """The layer that broke, and what to do, of any error on the way: the clients wrap the cause several times."""
    links = [error]
    while cause := links[-1].__cause__ or links[-1].__context__:
        links.append(cause)
    for link in links:
        status = getattr(getattr(link, "response", None), "status_code", None)
        if isinstance(link, SeedError):
            return link.layer, str(link)
        if isinstance(link, OSError) and (link.filename or link.errno in DISK_ERRORS):
            return "disk", f"{DISK_ADVICE.get(link.errno or 0, 'check what the claim is mounted on')} ({link})"
        if status is not None:
            layer, advice = STATUS_ADVICE.get(status, ("hub", "the hub, or a proxy before it, fails: try again later"))
            token = "with" if os.environ.get("HF_TOKEN", "").strip() else "without"
            return layer, f"{advice} (HTTP {status}, {token} HF_TOKEN)"
    names = " ".join(kind.__name__ for link in links for kind in type(link).__mro__)
    layer, advice = next((found for part, *found in NETWORK_ADVICE if part in names), ("unexpected", "not foreseen"))
    host, proxy = failed_request(links)
    if proxy and layer in ("name resolution", "connection", "proxy"):
        layer, advice = "proxy", f"{proxy} does not lead there: check seed.proxy"
    return layer, f"{advice} ({host}: {type(links[-1]).__name__}: {links[-1]})"


def without_secrets(text: str) -> str:
    """One line without the token, the credentials of URLs, and their queries (a signed URL is a credential)."""
    token = os.environ.get("HF_TOKEN", "").strip()
    text = text.replace(token, "***") if token else text
    return " ".join(re.sub(r"(?<=//)[^/\s]*@|\?[^\s'\")]+", "", text).split())[:600]


def main() -> int:
    """Prune, then fill the claim unless it is complete; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # process 1 of a container ignores it otherwise
    # An image may carry the server's offline switch; hf_transfer leaves holes that cannot be resumed; and
    # the library's warnings quote signed URLs.
    os.environ |= {"HF_HUB_OFFLINE": "0", "HF_HUB_ENABLE_HF_TRANSFER": "0", "HF_HUB_VERBOSITY": "error"}
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        seed = Seed.from_environment()
        prune(os.environ.get("SEED_COMPILE_CACHE", ""), os.environ.get("SEED_KEEP", ""))
        if seed.is_complete():
            say(f"{seed.model} is complete and verified: nothing to do")
        else:
            fill(seed)
    except Exception as error:
        layer, message = explain(error)
        sys.stderr.write(f"seed: failed ({layer}): {without_secrets(message)}\n")
        return EXIT_CODES[layer]
    return 0


if __name__ == "__main__":
    sys.exit(main())
