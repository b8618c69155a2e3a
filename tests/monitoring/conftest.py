"""promtool, and rules to run it on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sim import tools

Run = Callable[..., None]


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The real promtool; `make tools` has built it, otherwise it is built now."""
    return tools.ensure(["promtool"], report=False)["promtool"]


@pytest.fixture
def check(promtool: Path, tmp_path: Path) -> Run:
    """Run promtool's unit tests: rule groups, input series, and what must hold."""

    def run(
        groups: Sequence[dict[str, Any]],
        series: Sequence[dict[str, str]],
        expressions: Sequence[dict[str, Any]] = (),
        alerts: Sequence[dict[str, Any]] = (),
    ) -> None:
        (tmp_path / "rules.yaml").write_text(json.dumps({"groups": list(groups)}), encoding="utf-8")
        test = {
            "interval": "30s",
            "input_series": list(series),
            "promql_expr_test": list(expressions),
            "alert_rule_test": list(alerts),
        }
        document = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [test]}
        (tmp_path / "test.yaml").write_text(json.dumps(document), encoding="utf-8")
        command = [promtool, "test", "rules", "test.yaml"]
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, f"{answer.stdout}{answer.stderr}"

    return run
