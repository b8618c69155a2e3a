"""Container images made from local files, for a node that can reach no registry.

The archive is what `docker save` writes since Docker 25: an OCI image layout
(https://github.com/opencontainers/image-spec, image-layout.md) with Docker's own `manifest.json` beside
it, so containerd, Docker and Podman all load it. The same files give the same bytes. Layers are not
compressed: nothing is sent over a network, and unpacking takes most of an import's time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

_BUFFER = 4 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What Linux and what image-spec (Go) call a processor."""
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_NAME = "io.containerd.image.name"
"""Where containerd looks for an image's full name (containerd, core/images/annotations.go)."""


def _nothing(_: PurePosixPath) -> bool:
    return False


@dataclass(frozen=True)
class Folder:
    """A folder with all it holds (links as links), put at ``target`` in the image.

    ``exclude`` is asked with each path relative to ``source``; what it excludes is not descended into.
    ``owner`` (user id, group id) and ``modified`` (seconds since 1970) replace those of the files; ``None``
    keeps them. A Python `.pyc` records its source's time: replace times only if there is none, or if it was
    compiled with `--invalidation-mode unchecked-hash`.
    """

    source: Path
    target: str = "/"
    exclude: Callable[[PurePosixPath], bool] = _nothing
    owner: tuple[int, int] | None = (0, 0)
    modified: int | None = 0


@dataclass(frozen=True)
class File:
    """One file at ``target`` in the image, made of the bytes ``content`` or copied from that path."""

    content: bytes | Path
    target: str
    mode: int = 0o644


Layer = Sequence["Folder | File"]


def write_archive(archive: Path, reference: str, layers: Sequence[Layer], config: Mapping[str, Any]) -> str:
    """Write the image called ``reference`` (a full name, `docker.io/…:tag`) to ``archive``.

    Args:
        archive: replaced only when the new one is complete.
        reference: the name that a pod asks for, with registry and tag.
        layers: bottom first; a layer is a sequence of folders and files. They are streamed.
        config: the `config` of image-spec's config.md: Entrypoint, Cmd, Env, WorkingDir, User, …

    Returns:
        The digest of the image's manifest, `sha256:…`.
    """
    partial = archive.with_name(f".{archive.name}.partial")
    with partial.open("wb") as file:
        writer = _ArchiveWriter(file)
        written = [writer.layer(layer) for layer in layers]
        image = {
            "created": "1970-01-01T00:00:00Z",
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in written]},
        }
        described = writer.blob(_CONFIG, image)
        manifest = writer.blob(
            _MANIFEST, {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": written}
        )
        named = {**manifest, "annotations": {_NAME: reference}}
        writer.document("index.json", {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [named]})
        writer.document("oci-layout", {"imageLayoutVersion": "1.0.0"})
        docker = {"Config": _path(described), "RepoTags": [reference], "Layers": [_path(one) for one in written]}
        writer.document("manifest.json", [docker])
        writer.end()
    partial.replace(archive)
    return str(manifest["digest"])


@dataclass(frozen=True)
class Name:
    """What an image is called, and the digest of its manifest."""

    reference: str
    digest: str


def read_name(archive: Path) -> Name:
    """The name and digest of the image in ``archive``, without reading its layers.

    Raises:
        ValueError: it is no archive that :func:`write_archive` wrote.
    """
    with tarfile.open(archive, "r:") as tar:
        try:
            index = tar.extractfile("index.json")
        except KeyError:
            index = None
        if index is None:
            raise ValueError(f"{archive} holds no image: index.json is missing")
        (named,) = json.load(index)["manifests"]
        return Name(named["annotations"][_NAME], named["digest"])


def read_digest(archive: Path) -> str:
    """The digest of the manifest in ``archive``, without reading its layers."""
    return read_name(archive).digest


def _path(descriptor: Mapping[str, Any]) -> str:
    return "blobs/" + str(descriptor["digest"]).replace(":", "/")


class _ArchiveWriter:
    """Members of a tar file, written one after the other into a file that can be sought."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def layer(self, layer: Layer) -> dict[str, Any]:
        """Stream a layer: its name and size are known at its end, so its header is written last."""
        start = self._file.tell()
        self._file.write(bytes(tarfile.BLOCKSIZE))
        hashing = _Hashing(self._file)
        _write_layer(hashing, layer)
        descriptor = {"mediaType": _LAYER, "digest": f"sha256:{hashing.hexdigest()}", "size": hashing.size}
        self._pad(hashing.size)
        end = self._file.tell()
        self._file.seek(start)
        self._header(_path(descriptor), hashing.size)
        self._file.seek(end)
        return descriptor

    def blob(self, media_type: str, document: Any) -> dict[str, Any]:
        content = _json(document)
        digest = hashlib.sha256(content).hexdigest()
        descriptor = {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}
        self._member(_path(descriptor), content)
        return descriptor

    def document(self, name: str, document: Any) -> None:
        self._member(name, _json(document))

    def end(self) -> None:
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))

    def _member(self, name: str, content: bytes) -> None:
        self._header(name, len(content))
        self._file.write(content)
        self._pad(len(content))

    def _header(self, name: str, size: int) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = size
        # GNU's format keeps a size above 8 GiB within the one block that is reserved for the header.
        self._file.write(entry.tobuf(tarfile.GNU_FORMAT))

    def _pad(self, size: int) -> None:
        self._file.write(bytes(-size % tarfile.BLOCKSIZE))


class _Hashing(io.RawIOBase):
    """Passes on what is written to it, and knows its size and digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._digest.update(data)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _write_layer(file: IO[bytes] | _Hashing, layer: Layer) -> None:
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_BUFFER, copybufsize=_BUFFER) as tar:  # type: ignore[call-overload]
        for part in layer:
            if isinstance(part, Folder):
                _add_folder(tar, part)
            else:
                _add_file(tar, part)


def _add_file(tar: tarfile.TarFile, file: File) -> None:
    entry = tarfile.TarInfo(file.target.strip("/"))
    entry.mode = file.mode
    with file.content.open("rb") if isinstance(file.content, Path) else io.BytesIO(file.content) as content:
        entry.size = content.seek(0, io.SEEK_END)
        content.seek(0)
        tar.addfile(entry, content)


def _add_folder(tar: tarfile.TarFile, folder: Folder) -> None:
    target = PurePosixPath(folder.target.strip("/"))
    for relative in _walk(folder, PurePosixPath()):
        entry = tar.gettarinfo(folder.source / relative, str(target / relative))
        # A socket is no part of an image, and tar knows none.
        if entry is None:
            continue
        if folder.owner is not None:
            entry.uid, entry.gid = folder.owner
        # Names of this machine's users mean nothing in the image.
        entry.uname = entry.gname = ""
        entry.mtime = int(entry.mtime) if folder.modified is None else folder.modified
        if entry.isreg():
            with (folder.source / relative).open("rb") as content:
                tar.addfile(entry, content)
        else:
            tar.addfile(entry)


def _walk(folder: Folder, relative: PurePosixPath) -> Iterator[PurePosixPath]:
    """Every path below ``relative`` in the order of names, folders before what they hold."""
    for entry in sorted(os.scandir(folder.source / relative), key=lambda entry: entry.name):
        path = relative / entry.name
        if folder.exclude(path):
            continue
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, path)
