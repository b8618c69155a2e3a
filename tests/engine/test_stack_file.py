"""One YAML: the engine is asked what scalars mean, and the command line's reader must agree."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.config.engine_yaml import load
from sim import tools
from sim.cluster import PULUMI_TOOLS
from tests.infra.test_engine_yaml import SCALARS

PLAIN = (
    st.text(alphabet="0123456789.eE+-_xob:aTZ ", min_size=1, max_size=12)
    .map(str.strip)
    .filter(lambda text: (text and text[0] not in "-:") or text[1:2] not in {"", " "})
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A project with a backend of its own and one stack, and the environment that reaches it."""
    folder = tmp_path_factory.mktemp("stack-file")
    (folder / "stacks").mkdir()
    (folder / "backend").mkdir()
    (folder / "Pulumi.yaml").write_text("name: vllm\nruntime: python\nstackConfigDir: stacks\n", encoding="utf-8")
    executables = tools.ensure(PULUMI_TOOLS)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([*(str(path.parent) for path in executables.values()), os.environ["PATH"]]),
        "PULUMI_BACKEND_URL": (folder / "backend").as_uri(),
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_CONFIG_PASSPHRASE": "nothing to hide",
        "PULUMI_SKIP_UPDATE_CHECK": "1",
    }
    subprocess.run(["pulumi", "stack", "init", "scalars"], cwd=folder, env=environment, check=True, capture_output=True)
    return folder, environment


def both(project: tuple[Path, dict[str, str]], scalars: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scalars as the engine reads them, and as we do."""
    folder, environment = project
    path = folder / "stacks" / "Pulumi.scalars.yaml"
    salt = next(line for line in path.read_text("utf-8").splitlines() if line.startswith("encryptionsalt"))
    lines = [f"    k{number}: {text}" for number, text in enumerate(scalars)]
    path.write_text("\n".join([salt, "config:", "  vllm:scalars:", *lines, ""]), encoding="utf-8")
    answer = subprocess.run(
        ["pulumi", "config", "--json", "--stack", "scalars"],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(answer.stdout)["vllm:scalars"]["objectValue"], load(path)["config"]["vllm:scalars"]


def differences(scalars: list[str], engine: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    return [
        f"{text!r}: the engine reads {engine[key]!r}, we read {ours[key]!r}"
        for key, text in ((f"k{number}", text) for number, text in enumerate(scalars))
        if (engine[key], type(engine[key])) != (ours[key], type(ours[key]))
    ]


@pytest.mark.engine
def test_the_recorded_scalars_still_mean_that(project: tuple[Path, dict[str, str]]) -> None:
    scalars = list(SCALARS)
    engine, ours = both(project, scalars)
    assert not differences(scalars, engine, ours)
    assert [engine[f"k{number}"] for number in range(len(scalars))] == list(SCALARS.values()), (
        "the table of the unit test is what the engine says"
    )


@pytest.mark.engine
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(scalars=st.lists(PLAIN, min_size=40, max_size=40))
def test_any_plain_scalar_means_the_same(project: tuple[Path, dict[str, str]], scalars: list[str]) -> None:
    plain = [text for text in scalars if ": " not in text and " #" not in text and not text.endswith(":")]
    engine, ours = both(project, plain)
    assert not differences(plain, engine, ours)
