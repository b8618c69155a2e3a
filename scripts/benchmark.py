"""Measures what a person waits for: plan, preview, and how much of a preview is our own program.

Needs the simulated cluster (`make up`). Prints a table; no test asserts on time.

    .venv/bin/python scripts/benchmark.py [--services 1 10 100] [--repeat 3]
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from sim.cluster import Cluster, state_folder

ROOT = Path(__file__).parent.parent
PROJECT = "name: {name}\nruntime: python\nmain: {main}\nstackConfigDir: stacks\n"


def seconds(command: Sequence[str], folder: Path, environment: Mapping[str, str], repeat: int) -> float:
    """Median wall time of a command that must succeed."""
    taken = []
    for _ in range(repeat):
        begin = time.perf_counter()
        answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        taken.append(time.perf_counter() - begin)
        if answer.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{answer.stdout[-3000:]}{answer.stderr[-3000:]}")
    return statistics.median(taken)


def many(count: int) -> dict[str, Any]:
    """The demo with ``count`` services, each with a node and a folder of its own."""
    content: dict[str, Any] = YAML(typ="safe").load(ROOT / "stacks" / "Pulumi.demo.yaml")
    content.pop("encryptionsalt", None)
    sections = content["config"]
    service = sections["vllm:services"].pop("qwen")
    sections["vllm:nodes"]["lab"]["nodes"] = count
    sections["vllm:cluster"]["namespace"] = "benchmark"
    for number in range(count):
        one = copy.deepcopy(service)
        one["cache"] |= {"claimName": f"models-{number}", "node": f"lab-{number}"}
        one["exposure"]["serviceName"] = f"chat-{number}"
        sections["vllm:services"][f"qwen-{number}"] = one
    return content


def project(folder: Path, name: str, main: str, stack: Mapping[str, Any]) -> Path:
    """A Pulumi project in ``folder`` with one stack, `benchmark`."""
    (folder / "stacks").mkdir(parents=True)
    (folder / "Pulumi.yaml").write_text(PROJECT.format(name=name, main=main), encoding="utf-8")
    YAML().dump(dict(stack), folder / "stacks" / "Pulumi.benchmark.yaml")
    return folder


def preview(folder: Path, environment: Mapping[str, str], repeat: int) -> float:
    """Seconds of `pulumi preview` of the project in ``folder``."""
    seconds(["pulumi", "stack", "select", "--create", "--stack", "benchmark"], folder, environment, 1)
    return seconds(["pulumi", "preview", "--stack", "benchmark", "--non-interactive"], folder, environment, repeat)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    environment = {**os.environ, **Cluster("demo", state_folder("demo")).environment()}
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        environment["PULUMI_BACKEND_URL"] = (base / "backend").as_uri()
        (base / "backend").mkdir()
        (base / "empty-program").mkdir()
        (base / "empty-program" / "__main__.py").write_text("", encoding="utf-8")
        empty = preview(
            project(base / "empty", "empty", str(base / "empty-program"), {"config": {}}), environment, chosen.repeat
        )
        print(f"{'services':>9} {'plan s':>8} {'preview s':>10} {'of it ours s':>13}")
        print(f"{'none':>9} {'':>8} {empty:10.2f}        (an empty program)")
        for count in chosen.services:
            folder = project(base / f"services-{count}", "vllm", str(ROOT / "infra"), many(count))
            stack_file = str(folder / "stacks" / "Pulumi.benchmark.yaml")
            command = [str(Path(sys.executable).parent / "vllm-infra"), "plan", stack_file, "--json"]
            planned = seconds(command, ROOT, environment, chosen.repeat)
            previewed = preview(folder, environment, chosen.repeat)
            print(f"{count:9d} {planned:8.2f} {previewed:10.2f} {previewed - empty:13.2f}", flush=True)


if __name__ == "__main__":
    main()
