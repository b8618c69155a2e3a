"""The container image: what goes into it, what it is named, and when it is made. The distribution is a stand-in."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from sim.tools import ToolError
from sim.vllm_cpu import container_image
from sim.vllm_cpu.container_image import REFERENCE, image


def system(folder: Path, python: str) -> None:
    """What debootstrap leaves, in small."""
    for name in ("usr/bin", "proc/1", "var/cache/apt", "usr/share/doc/bash", "workspace"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").mkdir(mode=0o1777)
    (folder / "tmp").chmod(0o1777)
    for name in (f"usr/bin/{python}", "proc/1/status", "var/cache/apt/pkgcache.bin", "usr/share/doc/bash/README"):
        (folder / name).write_text("")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An environment and a distribution that cost nothing; the names of the Pythons for which one was unpacked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "pulumi-vllm").mkdir(parents=True)
    programs = tmp_path / "vllm-cpu-1" / "bin"
    programs.mkdir(parents=True)
    (programs / "vllm").write_text("#!/bin/sh\n")
    (programs / "vllm").chmod(0o755)
    (programs / "python").symlink_to("/usr/bin/python3.11")
    unpacked: list[str] = []

    def debootstrap(folder: Path, python: str) -> None:
        unpacked.append(python)
        system(folder, python)

    monkeypatch.setattr(container_image, "environment", lambda _report: tmp_path / "vllm-cpu-1")
    monkeypatch.setattr(container_image, "system_python", lambda: Path("/usr/bin/python3.11"))
    monkeypatch.setattr(container_image, "_require_debootstrap", lambda: None)
    monkeypatch.setattr(container_image, "_debootstrap", debootstrap)
    return unpacked


def members(archive: Path) -> dict[str, tarfile.TarInfo]:
    """Every path of the image: its layers, one above the other."""
    found: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(archive) as tar:
        for name in manifest(archive)["Layers"]:
            layer = tar.extractfile(name)
            assert layer is not None
            with tarfile.open(fileobj=io.BytesIO(layer.read())) as content:
                found |= {entry.name: entry for entry in content}
    return found


def manifest(archive: Path) -> dict[str, list[str]]:
    with tarfile.open(archive) as tar:
        document = tar.extractfile("manifest.json")
        assert document is not None
        parsed: dict[str, list[str]] = json.load(document)[0]
        return parsed


@pytest.mark.usefixtures("made")
def test_the_image_has_the_official_name_and_layout() -> None:
    built = image(report=False)
    assert manifest(built.archive)["RepoTags"] == [REFERENCE], "a pod asks for the image that a user would name"
    assert built.size_bytes == built.archive.stat().st_size, "a plan of the disk needs the size"
    found = members(built.archive)
    assert found["opt/venv/bin/vllm"].mode & 0o111, "the Deployment's command is vllm"
    assert found["opt/venv/bin/python"].linkname == "/usr/bin/python3.11", "the interpreter of the image"
    assert "usr/bin/python3.11" in found, "which is there"
    assert container_image.CONFIG["Entrypoint"] == ["vllm", "serve"], "as the official image's"


@pytest.mark.usefixtures("made")
def test_what_the_runtime_mounts_and_nobody_reads_is_left_out() -> None:
    found = members(image(report=False).archive)
    for name in ("proc/1", "proc/1/status", "var/cache/apt", "usr/share/doc/bash/README"):
        assert name not in found, f"{name} would only make the image larger"
    assert found["proc"].isdir(), "the runtime mounts there, and cannot make the folder in a read-only image"
    assert found["tmp"].mode & 0o1777 == 0o1777, "any user may write to /tmp"


def test_the_image_is_made_once(made: list[str]) -> None:
    first = image(report=False)
    assert image(report=False) == first, "nothing that decides what is in it has changed"
    assert made == ["python3.11"], "the distribution is unpacked once"
    assert not list(first.archive.parent.glob("system-*")), "the unpacked distribution would fill the disk"


def test_another_environment_is_another_image(made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = image(report=False)
    (tmp_path / "vllm-cpu-1").rename(tmp_path / "vllm-cpu-2")
    monkeypatch.setattr(container_image, "environment", lambda _report: tmp_path / "vllm-cpu-2")
    assert image(report=False).archive != first.archive, "the environment's name has its lock file's digest"
    assert len(made) == 2, "it was made"


def test_a_half_made_image_is_not_used(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, python: str) -> None:
        system(folder, python)
        raise ToolError("debootstrap bookworm failed")

    works = container_image._debootstrap
    monkeypatch.setattr(container_image, "_debootstrap", broken)
    with pytest.raises(ToolError, match="debootstrap bookworm failed"):
        image(report=False)
    monkeypatch.setattr(container_image, "_debootstrap", works)
    assert image(report=False).archive.is_file(), "the same command again succeeds"
    assert made == ["python3.11"], "it was made then"


@pytest.mark.parametrize(
    ("user", "program", "message"),
    [
        (1000, "/usr/sbin/debootstrap", "needs root"),
        (0, None, "apt-get install debootstrap"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, user: int, program: str | None, message: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda _name: program)
    with pytest.raises(ToolError, match=message):
        container_image._require_debootstrap()


def test_as_root_with_debootstrap_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/sbin/debootstrap")
    container_image._require_debootstrap()


@pytest.mark.parametrize("python", sorted(container_image.SUITES))
def test_the_compiler_and_its_headers_are_packages_of_the_image(python: str) -> None:
    packages = container_image.packages(python)
    assert {python, "g++", f"lib{python}-dev"} <= set(packages), "without --enforce-eager kernels are compiled"
    assert "libnuma1" in packages, "vLLM's kernels for processors are linked with it"
