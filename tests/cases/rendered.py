"""The objects of a whole program with a mocked engine, as the cluster would get them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.infra.test_program import run
from tests.recorder import Recording

__all__ = ["Recording", "one", "pods", "render", "server"]


def render(
    monkeypatch: pytest.MonkeyPatch,
    changes: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Recording:
    """Everything that the lab with ``changes`` registers."""
    return run(monkeypatch, changes=changes, secrets=secrets)


def pods(recording: Recording) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod that the stack makes: (kind, pod spec)."""
    for item in recording.registrations:
        template = (item.inputs.get("spec") or {}).get("template") if item.type.startswith("kubernetes:") else None
        if template is not None and "spec" in template:
            yield item.type.split(":")[-1], template["spec"]


def one(recording: Recording, kind: str) -> dict[str, Any]:
    """The inputs of the only object of a kind."""
    found = [item.inputs for item in recording.registrations if item.type.split(":")[-1] == kind]
    assert len(found) == 1, f"expected one {kind}, found {len(found)}"
    return found[0]


def server(recording: Recording) -> dict[str, Any]:
    """The engine's container of the only server."""
    (container,) = one(recording, "Deployment")["spec"]["template"]["spec"]["containers"]
    return container
