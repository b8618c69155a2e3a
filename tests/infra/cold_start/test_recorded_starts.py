"""Starts of a real vLLM without a GPU (scripts/record_exposition.py): what a log has that nobody wrote for a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.cold_start import Evidence, Start, starts_of
from infra.cold_start.arguments import read_arguments
from planner.releases import version_number

FOLDER = Path(__file__).parent / "recorded"
RECORDED = {path.stem.removeprefix("vllm-").removesuffix("-cpu"): path for path in sorted(FOLDER.glob("*.log"))}
each_recording = pytest.mark.parametrize("version", RECORDED)
KV_TOKENS = 2_097_152
"""1 GiB at 512 bytes a token: 2 layers, 1 KV head of 64 numbers, keys and values, 2 bytes each."""


def start(version: str) -> Start:
    text = RECORDED[version].read_text(encoding="utf-8")
    (found,) = starts_of(Evidence("qwen", 0, "", log=text))
    return found


def test_there_is_a_recording() -> None:
    assert "0.32.0" in RECORDED, "scripts/record_exposition.py writes it"


@each_recording
def test_every_phase_in_the_container_is_found(version: str) -> None:
    found = start(version)
    assert found.outcome == "ready", found.ended
    for phase in ("import", "download", "read", "compile", "profile", "graphs", "answer"):
        assert found.seconds(phase) is not None, f"{phase}: {found.phases}"  # type: ignore[arg-type]
    assert found.seconds("graphs") == 0, "a processor has no CUDA graphs"
    assert found.unexplained_seconds is not None
    assert found.unexplained_seconds >= 0, "no phase is counted twice"


@each_recording
def test_no_line_is_missed_that_this_device_does_not_print(version: str) -> None:
    found = start(version)
    assert found.log.text("device") == "cpu", "the engine's banner says it"
    assert found.log.absent(version_number(version)) == (), "a GPU prints more"


@each_recording
def test_caches_and_settings_are_read(version: str) -> None:
    found = start(version)
    assert found.kv_tokens == KV_TOKENS, "as the arithmetic has it"
    assert found.cache == "miss", "the first start on an empty cache"
    assert found.downloaded is False, "the model was there"
    assert found.arguments is not None
    assert read_arguments(found.arguments)["max_num_seqs"] == 4, "as it was started"


@each_recording
def test_a_recording_names_no_machine(version: str) -> None:
    text = RECORDED[version].read_text(encoding="utf-8")
    paths = set(re.findall(r"(?<![\w.])/(?:root|home|work|Users)/\S*", text))
    assert not paths, "where it was recorded is nobody's business"
    addresses = set(re.findall(r"\b(?!127\.|0\.)\d{1,3}(?:\.\d{1,3}){3}\b", text))
    assert addresses <= {"192.0.2.1"}, "an address of RFC 5737 stands for the machine's"


@each_recording
def test_a_compile_without_a_line_of_its_own_is_measured_by_its_stamps(version: str) -> None:
    """The same log as a start would write it that finds what this one has saved."""
    text = RECORDED[version].read_text(encoding="utf-8")
    if "saved AOT compiled function to" not in text:
        pytest.skip(f"vLLM {version} does not compile ahead of time")
    found = text.replace("saved AOT compiled function to", "Directly load AOT compilation from path")
    (second,) = starts_of(Evidence("qwen", 0, "", log=found))
    assert second.cache == "hit", "the line decides"
    assert second.seconds("compile") == start(version).seconds("compile"), "from the warm-up to the line that ends it"
    (without,) = starts_of(Evidence("qwen", 0, "", log=text.replace("Warming up model", "Something else")))
    assert without.seconds("compile") is None, "without its beginning it is unknown, never zero"
