"""The page about a run on the real node: what was entered, all of it, in order, and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scripts import make_e2e_report
from tests.e2e.ledger import Proof, enter, entries

PROOFS = [
    Proof("The old server is gone first", "image change", "never two; away 7.1 s"),
    Proof("A start survives", "stand-in, ready after 80 s", ""),
]
VERSIONS = {"vLLM": "0.32.0", "Kubernetes": "1.37.2"}


def _rows(page: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_what_was_entered_is_read_again_in_order(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    for proof in PROOFS:
        enter(ledger, proof)
    assert entries(ledger) == PROOFS, "tests of several processes append to one file"


def test_the_page_has_a_row_for_each_proof() -> None:
    head, *rows = _rows(make_e2e_report.page(PROOFS, VERSIONS, "2026-11-29"))
    assert head == ["rule", "how it was executed", "measured"]
    assert rows == [[one.rule, one.how, one.figure] for one in PROOFS], "each, in the order of the run"


def test_the_page_says_when_and_with_what_it_was_measured() -> None:
    page = make_e2e_report.page(PROOFS, VERSIONS, "2026-11-29")
    assert "2026-11-29, vLLM 0.32.0, Kubernetes 1.37.2." in page, "a figure without its versions says little"


@pytest.mark.parametrize("text", ["queue | wait", "two\nlines"])
def test_no_text_breaks_the_table(text: str) -> None:
    _, row = _rows(make_e2e_report.page([Proof("rule", text, "1 s")], VERSIONS, "2026-11-29"))
    assert len(row) == 3, "a row of three cells"
    assert row[1].replace("\\|", "|") == text.replace("\n", " "), "and the words are all there"


def test_a_run_that_entered_nothing_leaves_the_page_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("the last run")
    monkeypatch.setattr(make_e2e_report, "REPORT", page)
    monkeypatch.setattr(sys, "argv", ["make_e2e_report", str(tmp_path / "ledger")])
    with pytest.raises(SystemExit, match="nothing was entered"):
        make_e2e_report.main()
    assert page.read_text() == "the last run", "an empty page would look like a product without rules"


def test_a_run_replaces_the_page_of_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, ledger = tmp_path / "page.md", tmp_path / "ledger"
    page.write_text("the last run")
    enter(ledger, PROOFS[0])
    monkeypatch.setattr(make_e2e_report, "REPORT", page)
    monkeypatch.setattr(make_e2e_report, "versions", lambda: VERSIONS)
    monkeypatch.setattr(sys, "argv", ["make_e2e_report", str(ledger)])
    make_e2e_report.main()
    assert "the last run" not in page.read_text()
    assert [row[0] for row in _rows(page.read_text())[1:]] == [PROOFS[0].rule]
