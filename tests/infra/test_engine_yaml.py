"""A stack file means to `vllm-infra plan` what it means to the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml.error import MarkedYAMLError

from infra.config.engine_yaml import load

# Seen with the engine; tests/engine/test_stack_file.py asks it again, with random scalars beside these.
SCALARS: dict[str, Any] = {
    "yes": "yes",
    "on": "on",
    "True": True,
    "tRue": "tRue",
    "~": None,
    "": None,
    "014": 12,
    "08": 8,
    "0o14": 12,
    "0x1F": 31,
    "0b11": 3,
    "1_000": 1000,
    "_1": "_1",
    "1e3": 1000,
    "1.0": 1,
    "1.50": 1.5,
    ".5e1": 5,
    "0.80": 0.8,
    "+1": 1,
    "-0x1f": -31,
    "12:30:45": "12:30:45",
    "1.2.3": "1.2.3",
    "v0.31.0": "v0.31.0",
    "2001-01-01": "2001-01-01 00:00:00 +0000 UTC",
    "2001-13-01": "2001-13-01",
    "=": "=",
    "1e400": "1e400",
    "1e21": 1e21,
    "9007199254740993": 9007199254740992,
    "123456789012345678901": 123456789012345680000,
    "'014'": "014",
    '"a\\tb"': "a\tb",
    "!!str 5": "5",
    "5 # five": 5,
}


def value(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "stack.yaml"
    path.write_text(f"key: {text}\n", encoding="utf-8")
    return load(path)["key"]


@pytest.mark.parametrize(("text", "meaning"), SCALARS.items(), ids=[repr(text) for text in SCALARS])
def test_a_scalar_means_what_the_engine_takes_it_for(tmp_path: Path, text: str, meaning: Any) -> None:
    found = value(tmp_path, text)
    assert (found, type(found)) == (meaning, type(meaning)), f"{text!r} would be planned as something else than is run"


def test_anchors_and_merges_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: [*a, {}]\n", encoding="utf-8")
    assert load(path) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": [{"x": 1, "y": 2}, {}]}


@pytest.mark.parametrize("text", [".inf", ".nan", "{a: 1, a: 2}", "*nothing", "{1: [}", "- x"])
def test_what_the_engine_refuses_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(MarkedYAMLError) as refused:
        value(tmp_path, text)
    assert refused.value.problem_mark is not None, "a person must find the line"
