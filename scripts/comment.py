"""Keeps one comment of a pull request up to date: makes it, edits it in place, or takes it away when it is empty.

    python -m scripts.comment STACK FILE

GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_API_URL and PULL_REQUEST are what a GitHub Actions job has
(https://docs.github.com/rest/issues/comments). The comment is known by its first line, and only one of our own is
touched: whoever copies that line into a comment of theirs keeps it.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.preview_report import MARKER

AUTHOR = "github-actions[bot]"
PAGE = 100


def main(stack: str, file: Path) -> None:
    """Make the comment about ``stack`` say what is in ``file``."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    repository = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    thread = f"{repository}/{int(os.environ['PULL_REQUEST'])}/comments"
    ours = [one for one in comments(thread) if is_ours(one, stack)]
    if not text:
        for one in ours:
            ask("DELETE", f"{repository}/comments/{one['id']}")
        return
    if not ours:
        ask("POST", thread, {"body": text})
    elif ours[0]["body"] != text:
        ask("PATCH", f"{repository}/comments/{ours[0]['id']}", {"body": text})


def is_ours(comment: dict[str, Any], stack: str) -> bool:
    """Whether a comment is the one that this script made about ``stack``."""
    marker = MARKER.format(stack=stack)
    return bool(comment["user"]["login"] == AUTHOR and comment["body"].splitlines()[:1] == [marker])


def comments(thread: str) -> Iterator[dict[str, Any]]:
    """Every comment of a pull request, oldest first."""
    page = 1
    while True:
        found = ask("GET", f"{thread}?per_page={PAGE}&page={page}")
        yield from found
        if len(found) < PAGE:
            return
        page += 1


def ask(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One request to GitHub; what it answers."""
    request = urllib.request.Request(  # noqa: S310 - the address is the runner's
        f"{os.environ['GITHUB_API_URL']}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}", "Accept": "application/vnd.github+json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        content = answer.read()
    return json.loads(content) if content else None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
