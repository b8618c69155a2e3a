"""Write what a dump of several vLLM releases says as data files of this repository, one for each release."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "planner" / "data"


def write_releases(
    dump: Path, folder: str, entries: str, release: Callable[[dict[str, Any], str], dict[str, Any]]
) -> None:
    """Write ``planner/data/FOLDER/VERSION.json`` for each release in ``dump``, and print how much it holds.

    ``release`` makes one document of the dump's content and a version; ``entries`` is the key under which it holds
    the entries that are written one in a line.
    """
    facts = json.loads(dump.read_text(encoding="utf-8"))
    target = DATA / folder
    target.mkdir(parents=True, exist_ok=True)
    for version in facts["versions"]:
        document = release(facts, version)
        (target / f"{version}.json").write_text(text(document, entries), encoding="utf-8")
        print(f"{version}: {len(document[entries])} {entries}")


def text(document: dict[str, Any], entries: str) -> str:
    """JSON with one entry in a line, so that a change of one entry is a change of one line."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in document[entries].items())
    head = {key: value for key, value in document.items() if key != entries}
    return f"{json.dumps(head, indent=2)[:-2]},\n  {json.dumps(entries)}: {{\n{lines}\n  }}\n}}\n"
