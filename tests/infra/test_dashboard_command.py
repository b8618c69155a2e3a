"""`vllm-infra dashboard` prints what the ConfigMap holds, and says why where there is nothing to show."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner, Result

from components.monitoring_names import dashboard_name
from infra.cli import app
from tests.stack_files import config

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the library that makes dashboards needs Python 3.11"
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dashboard", *arguments], env={"COLUMNS": "200"})


def test_the_file_is_a_dashboard_of_the_stacks_service() -> None:
    demo = config("demo")
    for name in demo.services:
        result = run("--stack", "demo", "--service", name)
        assert result.exit_code == 0, result.output
        document = json.loads(result.output)
        assert document["title"].startswith(f"vLLM {demo.cluster.namespace}/"), "says whose it is"
        assert all(f'namespace="{demo.cluster.namespace}"' in query for query in queries(document)), (
            "and shows no other"
        )
        assert dashboard_name(name) == f"{name}-dashboard", "the ConfigMap that holds the same"


def queries(document: dict[str, list[dict[str, list[dict[str, str]]]]]) -> list[str]:
    return [query["expr"] for panel in document["panels"] for query in panel.get("targets", [])]


def test_a_stack_without_monitoring_has_no_dashboard() -> None:
    result = run("--stack", "l40s-pair")
    assert result.exit_code != 0, "nothing records what it would show"
    assert "vllm:monitoring.mode" in result.output, "the field that is to be set"
    assert "Traceback" not in result.output


def test_a_service_that_is_not_there_is_named() -> None:
    result = run("--stack", "demo", "--service", "qwne")
    assert result.exit_code != 0
    assert all(name in result.output for name in config("demo").services), "the services that there are"
