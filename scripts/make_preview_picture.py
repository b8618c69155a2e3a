"""Draws docs/preview.svg: a real preview of one changed line, as a terminal shows it.

Needs the running demo (`make up`). Lines that only name where this machine keeps its tools are left out.
"""

from __future__ import annotations

import os
import pty
import re
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from sim.cluster import Cluster, state_folder

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "preview.svg"
COLUMNS = 132
CHANGE = ("maxModelLen: 2048", "maxModelLen: 8192")
ABOUT_THE_MACHINE = ("from $PATH at", "resource plugin kubernetes is expected")


def preview(stack_file: Path) -> str:
    """What `pulumi preview` writes to a terminal of COLUMNS columns."""
    os.environ.update(Cluster("demo", state_folder("demo")).environment())
    os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES="60")
    os.chdir(ROOT)
    shown: list[bytes] = []

    def keep(descriptor: int) -> bytes:
        shown.append(os.read(descriptor, 65536))
        return shown[-1]

    command = f"stty cols {COLUMNS} rows 60 && pulumi preview -s demo --color always --config-file {stack_file}"
    pty.spawn(["/bin/sh", "-c", command], keep)
    return b"".join(shown).decode(errors="replace").replace("\r", "")


def last_frame(shown: str) -> str:
    """The terminal redraws its table while the preview runs; the last drawing is what stays on it."""
    frames = re.split(r"\x1b\[\d+A", shown)
    last = max(index for index, frame in enumerate(frames) if "Type" in frame)
    text = re.sub(r"\x1b\[(?:K|\?\d+[lh])", "", "".join([frames[last].split("Resources:")[0], *frames[last + 1 :]]))
    lines = [line for line in text.splitlines() if not any(words in line for words in ABOUT_THE_MACHINE)]
    return "\n".join(lines).strip("\n")


def main() -> None:
    """Preview the changed demo and draw what was shown."""
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "Pulumi.demo.yaml"
        text = (ROOT / "stacks" / "Pulumi.demo.yaml").read_text("utf-8")
        changed.write_text(text.replace(*CHANGE), encoding="utf-8")
        frame = last_frame(preview(changed))
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text("$ pulumi preview      # after maxModelLen: 2048 became 8192\n", style="bold"))
    console.print(Text.from_ansi(frame))
    svg = console.export_svg(title="preview of a change", theme=MONOKAI)
    # The viewer's own monospace font: a picture fetches nothing.
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg.replace("Fira Code, monospace", "monospace"), encoding="utf-8")


if __name__ == "__main__":
    main()
