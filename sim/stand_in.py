"""An image whose server plays the phases of a vLLM start, small enough to be made for each test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sim import images, tools


def write_image(archive: Path, reference: str, environment: Mapping[str, str] | None = None) -> str:
    """Write to ``archive`` the image ``reference`` of `stand-in` (tools/stand-in/main.go says what it does).

    It is called `vllm` there, so that the command of a vLLM container starts it. ``environment`` is in the
    image, for a deployment that sets no variables of its own; those of the container win.

    Returns:
        The image's digest.
    """
    program = images.File(tools.ensure(["stand-in"], report=False)["stand-in"], "/usr/local/bin/vllm", 0o755)
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(environment or {})}
    config = {"Entrypoint": ["vllm"], "Env": [f"{key}={value}" for key, value in variables.items()]}
    return images.write_archive(archive, reference, [[program]], config)
