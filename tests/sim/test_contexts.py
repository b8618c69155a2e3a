"""The contexts that the simulated cluster offers are those that the stack files name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.contexts import stack_contexts

STACK = """config:
  vllm:cluster:
    kind: existing
    context: {context}
"""


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def test_every_stack_file_that_names_a_context_is_read(tmp_path: Path) -> None:
    _write(tmp_path, "Pulumi.lab-3060.yaml", STACK.format(context="lab-3060"))
    _write(tmp_path, "Pulumi.demo.yaml", STACK.format(context="simulated"))
    expected = {"demo": "simulated", "lab-3060": "lab-3060"}
    assert stack_contexts(tmp_path) == expected, "stack name and context may differ"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "an empty file is what `pulumi stack init` leaves"),
        ("encryptionsalt: v1:abc\n", "a stack without configuration"),
        ("config:\n  vllm:cluster:\n    kind: eks\n", "an own cluster has no context beforehand"),
        ("config:\n  vllm:eksCluster:\n    name: lab\n", "a stack that makes a cluster runs on none"),
        ("config: 3\n", "the program, not this, says what is wrong with it"),
    ],
)
def test_a_stack_file_without_a_context_is_passed_over(tmp_path: Path, text: str, reason: str) -> None:
    _write(tmp_path, "Pulumi.some.yaml", text)
    assert stack_contexts(tmp_path) == {}, reason


def test_other_files_are_not_stacks(tmp_path: Path) -> None:
    _write(tmp_path, "schema.json", "{}")
    _write(tmp_path, "notes.yaml", STACK.format(context="other"))
    assert stack_contexts(tmp_path) == {}, "only Pulumi.<stack>.yaml is a stack file"


def test_a_broken_stack_file_is_named_with_its_line(tmp_path: Path) -> None:
    _write(tmp_path, "Pulumi.lab.yaml", "config:\n  a: [1\n  b: 2\n")
    with pytest.raises(ValueError, match=r"Pulumi\.lab\.yaml is no valid YAML") as caught:
        stack_contexts(tmp_path)
    assert "line 3" in str(caught.value), "whoever edits the file needs the line"
