"""Images made from files: streamed, reproducible, and loadable by whatever reads OCI layouts."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from sim import images

REFERENCE = "docker.io/library/example:v1"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a file, a link, a hard link, and something that does not belong into an image."""
    source = tmp_path / "tree"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "program").write_text("#!/bin/sh\n")
    (source / "bin" / "program").chmod(0o755)
    (source / "bin" / "alias").symlink_to("program")
    os.link(source / "bin" / "program", source / "bin" / "same")
    (source / "cache" / "deep").mkdir(parents=True)
    (source / "cache" / "deep" / "old").write_text("old")
    return source


def _members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive, "r:") as tar:
        return {one.name: file.read() for one in tar.getmembers() if (file := tar.extractfile(one))}


def _layer(archive: Path, position: int = 0) -> tarfile.TarFile:
    members = _members(archive)
    name = json.loads(members["manifest.json"])[0]["Layers"][position]
    return tarfile.open(fileobj=io.BytesIO(members[name]))


def test_every_blob_is_what_its_digest_says(tmp_path: Path, tree: Path) -> None:
    archive = tmp_path / "image.tar"
    digest = images.write_archive(archive, REFERENCE, [[images.Folder(tree)]], {"Cmd": ["/bin/program"]})
    members = _members(archive)
    for name, content in members.items():
        if name.startswith("blobs/sha256/"):
            assert name.removeprefix("blobs/sha256/") == hashlib.sha256(content).hexdigest(), f"{name} is corrupt"
    (named,) = json.loads(members["index.json"])["manifests"]
    assert named["digest"] == digest == images.read_digest(archive), "the digest identifies the image"
    assert images.read_name(archive) == images.Name(REFERENCE, digest), "what the archive says of itself"
    assert named["annotations"] == {"io.containerd.image.name": REFERENCE}, "containerd takes the name from there"
    manifest = json.loads(members["blobs/" + digest.replace(":", "/")])
    config = json.loads(members["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert config["config"] == {"Cmd": ["/bin/program"]}, "what the container runs"
    assert config["rootfs"]["diff_ids"] == [one["digest"] for one in manifest["layers"]], (
        "an uncompressed layer has one digest, before and after unpacking"
    )
    (docker,) = json.loads(members["manifest.json"])
    assert docker["RepoTags"] == [REFERENCE], "Docker takes the name from there"


def test_the_same_files_give_the_same_bytes(tmp_path: Path, tree: Path) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    images.write_archive(first, REFERENCE, [[images.Folder(tree)]], {})
    os.utime(tree / "bin" / "program", (1, 1))
    images.write_archive(second, REFERENCE, [[images.Folder(tree)]], {})
    assert first.read_bytes() == second.read_bytes(), "when a file was written says nothing about the image"
    (tree / "bin" / "program").write_text("other")
    assert images.write_archive(second, REFERENCE, [[images.Folder(tree)]], {}) != images.read_digest(first), (
        "another content is another image"
    )


def test_times_are_kept_where_asked_for(tmp_path: Path, tree: Path) -> None:
    os.utime(tree / "bin" / "program", (7, 7))
    archive = tmp_path / "image.tar"
    images.write_archive(archive, REFERENCE, [[images.Folder(tree, modified=None)]], {})
    with _layer(archive) as layer:
        assert layer.getmember("bin/program").mtime == 7, "a .pyc beside it records this time"


def test_a_folder_keeps_modes_and_links_and_leaves_out_what_is_excluded(tmp_path: Path, tree: Path) -> None:
    archive = tmp_path / "image.tar"
    folder = images.Folder(tree, "/opt", exclude=lambda path: path == PurePosixPath("cache"))
    images.write_archive(archive, REFERENCE, [[folder]], {})
    with _layer(archive) as layer:
        assert layer.getnames() == ["opt/bin", "opt/bin/alias", "opt/bin/program", "opt/bin/same"], (
            "an excluded folder is not descended into"
        )
        assert layer.getmember("opt/bin/program").mode & 0o777 == 0o755, "it must stay executable"
        assert layer.getmember("opt/bin/alias").linkname == "program", "a link stays one"
        assert layer.getmember("opt/bin/same").islnk(), "the same content is stored once"
        assert {(one.uid, one.gid, one.uname) for one in layer} == {(0, 0, "")}, "whoever made the image"


def test_single_files_come_from_bytes_or_from_a_path(tmp_path: Path, tree: Path) -> None:
    archive = tmp_path / "image.tar"
    files = [images.File(b"hello", "/etc/greeting"), images.File(tree / "bin" / "program", "/init", 0o755)]
    images.write_archive(archive, REFERENCE, [[files[0]], [files[1]]], {})
    with _layer(archive) as lower, _layer(archive, 1) as upper:
        greeting, program = lower.extractfile("etc/greeting"), upper.extractfile("init")
        assert greeting is not None, "the first layer holds the first file"
        assert program is not None, "the second layer holds the second"
        assert (greeting.read(), program.read()) == (b"hello", b"#!/bin/sh\n"), "content is taken as it is"
        assert upper.getmember("init").mode == 0o755, "a program must be executable"


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "other.tar"
    with tarfile.open(archive, "w"):
        pass
    with pytest.raises(ValueError, match=r"index\.json is missing"):
        images.read_digest(archive)


def test_an_interrupted_archive_does_not_replace_the_old_one(tmp_path: Path, tree: Path) -> None:
    archive = tmp_path / "image.tar"
    images.write_archive(archive, REFERENCE, [[images.Folder(tree)]], {})
    before = archive.read_bytes()
    with pytest.raises(FileNotFoundError):
        images.write_archive(archive, REFERENCE, [[images.Folder(tmp_path / "missing")]], {})
    assert archive.read_bytes() == before, "half an image must not be imported"
