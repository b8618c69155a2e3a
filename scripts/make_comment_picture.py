"""Draws docs/comment.svg: the comment about a new image of the demo, from the recording of that preview.

The recording is tests/infra/previews/image.json (scripts/record_previews.py); both plans are made here.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.theme import Theme

from infra.answers import answers
from infra.preflight import check_plan
from infra.preview import read_preview
from infra.preview_report import report
from planner.plan import plan_services
from tests.stack_files import config

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "comment.svg"
RECORDING = ROOT / "tests" / "infra" / "previews" / "image.json"
COLUMNS = 150
LOOK = Theme(
    {
        "markdown.code": "#1f2328 on #eaeef2",
        "markdown.h3": "bold #1f2328",
        "markdown.h4": "bold #1f2328",
        "markdown.table.header": "bold #1f2328",
        "markdown.table.border": "#d1d9e0",
    }
)
TAG = {"services.qwen.image.tag": "v0.33.0"}


def plan(changes: dict[str, Any]) -> dict[str, Any]:
    """What `vllm-infra plan --json` prints for the demo with ``changes``."""
    found = config("demo", changes)
    plans, findings = plan_services(found.nodes, found.services)
    return answers(plans, [*findings, *check_plan(found, frozenset(), plans)])


def main() -> None:
    """Write the comment, and draw it as a reader sees it."""
    preview = read_preview(RECORDING.read_text(encoding="utf-8"))
    text = report(preview, plan({}), plan(TAG), stack="demo").text
    console = Console(record=True, width=COLUMNS, file=StringIO(), theme=LOOK)
    # GitHub breaks a line of a table at <br>, and so does a terminal at nothing that it knows.
    console.print(Markdown(text.replace("<br>", ", ")))
    PICTURE.write_text(console.export_svg(title="pull request", theme=DEFAULT_TERMINAL_THEME), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
