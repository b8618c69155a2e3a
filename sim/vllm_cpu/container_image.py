"""The container image of the real vLLM for processors, made from the distribution's packages and the environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sim.images import Folder, read_digest, write_archive
from sim.tools import ToolError, cache_folder, only_one
from sim.vllm_cpu.installation import VERSION, environment, system_python

REFERENCE = f"docker.io/vllm/vllm-openai-cpu:v{VERSION}"
ENVIRONMENT = "/opt/venv"
"""Where the official image has its environment too (vLLM's docker/Dockerfile.cpu, VIRTUAL_ENV)."""
SUITES = {"python3.11": "bookworm", "python3.12": "noble", "python3.13": "trixie"}
"""Which release of Debian or Ubuntu has this Python as its own: the image must have the interpreter's twin."""
GIGABYTES = 4.5
MINUTES = 4
"""What making it took on two cores; only shown."""

# Never read by a server: what a minimal system carries for people and for installing more.
_UNUSED = ("var/cache", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")
# The container runtime mounts its own.
_MOUNTED = ("dev", "proc", "sys", "tmp", "run")

CONFIG = {
    "Entrypoint": ["vllm", "serve"],
    "WorkingDir": "/workspace",
    "Env": [
        f"PATH={ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        f"VIRTUAL_ENV={ENVIRONMENT}",
        "LANG=C.UTF-8",
    ],
}
"""As the official image: started as root, `vllm serve` unless the pod names a command."""


@dataclass(frozen=True)
class Image:
    """An image in a file as `docker save` writes it."""

    archive: Path
    reference: str
    """The name that a pod asks for."""
    digest: str
    """Of its manifest, `sha256:…`."""
    size_bytes: int


def image(report: bool = True) -> Image:
    """The image, made when it is not in the cache yet.

    Raises:
        ToolError: not root, no debootstrap, or one of its downloads failed; the message says what to do.
    """
    virtual_environment = environment(report)
    python = system_python().name
    folder = cache_folder().parent / f"vllm-cpu-image-{_key(virtual_environment, python)}"
    archive = folder / "image.tar"
    with only_one(cache_folder().parent / "vllm-cpu-image.lock"):
        if not archive.is_file():
            _require_debootstrap()
            started = time.monotonic()
            if report:
                print(f"{REFERENCE}: {GIGABYTES} GB, about {MINUTES} min …", flush=True)
            folder.mkdir(exist_ok=True)
            _write(archive, virtual_environment, python)
            if report:
                print(f"{REFERENCE}: {time.monotonic() - started:.0f} s", flush=True)
    return Image(archive, REFERENCE, read_digest(archive), archive.stat().st_size)


def packages(python: str) -> tuple[str, ...]:
    """The distribution's packages: the interpreter, vLLM's libraries, and what torch.compile builds kernels with.

    It names a precompiled header by `openssl sha512` (torch/_inductor/codecache.py, _get_file_checksum).
    """
    return (python, "libnuma1", "g++", f"lib{python}-dev", "openssl")


def _key(virtual_environment: Path, python: str) -> str:
    recipe = (virtual_environment.name, SUITES[python], *packages(python), *_UNUSED, str(CONFIG))
    return hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:16]


def _require_debootstrap() -> None:
    if os.geteuid() != 0:
        raise ToolError("making the image needs root: debootstrap unpacks packages as their owners")
    if shutil.which("debootstrap") is None:
        raise ToolError("debootstrap is needed to make the image: apt-get install debootstrap")


def _write(archive: Path, virtual_environment: Path, python: str) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="system-") as name:
        system = Path(name)
        try:
            _debootstrap(system, python)
        finally:
            # Of a debootstrap that was killed: deleting the folder must not reach what is mounted in it.
            for mounted in filter(os.path.ismount, (system / "proc", system / "sys")):
                subprocess.run(["umount", "--lazy", str(mounted)], check=True)
        # Two layers, because a node unpacks layers side by side.
        layers = [[Folder(system, exclude=_is_left_out)], [Folder(virtual_environment, ENVIRONMENT)]]
        write_archive(archive, REFERENCE, layers, CONFIG)


def _debootstrap(system: Path, python: str) -> None:
    """Unpack a minimal Debian or Ubuntu and the image's packages into ``system``."""
    options = ["--variant=minbase", f"--include={','.join(packages(python))}"]
    answer = subprocess.run(
        ["debootstrap", *options, SUITES[python], str(system)], capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        end = "\n".join((answer.stdout + answer.stderr).strip().splitlines()[-15:])
        raise ToolError(f"debootstrap {SUITES[python]} failed; run the same command again.\n{end}")
    (system / "workspace").mkdir()
    # The archive's root is the image's: world-readable, whatever the umask of this process is.
    system.chmod(0o755)


def _is_left_out(path: PurePosixPath) -> bool:
    """What lies below these folders; the folders themselves stay."""
    return any(str(parent) in (*_UNUSED, *_MOUNTED) for parent in path.parents)
