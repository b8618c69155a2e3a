"""Write tests/infra/previews/*.json: what `pulumi preview --json` of the real engine says about a few changes.

    python -m sim up --name NAME
    python -m scripts.record_previews NAME

Each change is previewed against the demo stack, deployed into the simulated cluster NAME. Left out is what no reader
of a preview needs, and what names this machine or this moment: configuration, duration, times, source positions.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.cluster import Cluster, state_folder
from tests.engine.driver import Stack

TARGET = Path(__file__).parent.parent / "tests" / "infra" / "previews"
TOKEN = "hf_TheTokenThatNobodyMaySee000000000"  # noqa: S105 - made up: a recording must not hold it
KEPT_OF_STATE = ("id", "type", "inputs", "outputs", "retainOnDelete", "protect")
OURS = "pulumi:pulumi:Stack"
"""The only resource whose outputs a reader needs: those of all others are long and repeat the inputs."""
LONGEST = 200
"""Characters that are kept of a text inside a state."""

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "image": {"services.qwen.image.tag": "v0.33.0"},
    "engine": {"services.qwen.engine.maxModelLen": 1024},
    "claim": {"services.qwen.cache.claimName": "weights"},
    "namespace": {"cluster.namespace": "elsewhere"},
    "refused": {"services.qwen.engine.gpuMemoryUtilization": 0.3},
}
"""Dotted path → value in the stack file, by the name of the recording."""


def main(name: str) -> None:
    """Deploy the stack, preview each change, take the stack away."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Cluster(name, state_folder(name)), Path(folder) / "stack", "recorded")
        stack.prepare()
        try:
            record(stack)
        finally:
            stack.clear()


def record(stack: Stack) -> None:
    """Every recording: before the first `up`, after it each of ``CHANGES``, and a service that goes."""
    stack.set_secret("hfToken", TOKEN)
    write("create", previewed(stack))
    stack.up()
    for name, change in CHANGES.items():
        stack.write(change)
        write(name, previewed(stack, fails=name == "refused"))
    stack.write()
    stack.set_secret("hfToken", TOKEN[::-1])
    write("secret", previewed(stack))
    stack.set_secret("hfToken", TOKEN)
    both = {"nodes.lab.nodes": 1, "nodes.lab.gpusPerNode": 2}
    stack.give_gpus(2)
    stack.write({**both, "services.second": second_service(stack)})
    stack.up()
    stack.write(both)
    write("deletion", previewed(stack))
    stack.destroy()


def second_service(stack: Stack) -> dict[str, Any]:
    """Another service on the same pool, with a claim of a storage class."""
    first = stack.sections()["services"]["qwen"]
    cache = {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi"}
    return {**first, "cache": cache, "exposure": {}}


def previewed(stack: Stack, *, fails: bool = False) -> dict[str, Any]:
    """What `pulumi preview --json` prints; a preview that ``fails`` prints it as well."""
    command = ["pulumi", "preview", "--json", "--stack", stack.name, "--non-interactive"]
    answer = subprocess.run(
        command, cwd=stack.folder, env=stack.environment(), capture_output=True, text=True, check=False
    )
    if fails == (answer.returncode == 0):
        raise SystemExit(f"exit code {answer.returncode}: {answer.stdout[-3000:]}\n{answer.stderr}")
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def write(name: str, document: Mapping[str, Any]) -> None:
    """Write one recording, and refuse one that holds what must not be in it."""
    text = json.dumps(trimmed(document), indent=1, ensure_ascii=False) + "\n"
    text = re.sub(r'"[^"]*/kubeconfig"', '"~/.kube/config"', text)
    temporary = f"{tempfile.gettempdir()}/{tempfile.gettempprefix()}"
    for forbidden in (TOKEN, TOKEN[::-1], str(Path.home()), temporary, "127.0.0.1:"):
        if forbidden in text:
            raise SystemExit(f"{name}: holds {forbidden!r}: …{text[max(0, text.index(forbidden) - 200) :][:400]}…")
    (TARGET / f"{name}.json").write_text(text, encoding="utf-8")
    print(f"{name}: {len(text):,} bytes, {document.get('changeSummary')}", flush=True)


def trimmed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without configuration, duration and the parts of a state that a reader does not use."""
    return {
        "steps": [trimmed_step(step) for step in document.get("steps") or ()],
        "diagnostics": [one for one in document.get("diagnostics") or () if "from $PATH at" not in one["message"]],
        "changeSummary": document.get("changeSummary") or {},
    }


def trimmed_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """One step with its states cut down."""
    states = {key: trimmed_state(step[key]) for key in ("oldState", "newState") if key in step}
    return {**{key: value for key, value in step.items() if key not in {"oldState", "newState", "provider"}}, **states}


def trimmed_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state without times, source positions, stack traces and repeated outputs."""
    kept = {key: shortened(state[key]) for key in KEPT_OF_STATE if key in state}
    if state["type"] != OURS:
        kept.pop("outputs", None)
    return kept


def shortened(value: Any) -> Any:
    """The value with every long text cut: the seed Job carries a whole program."""
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value]
    return f"{value[:LONGEST]}…" if isinstance(value, str) and len(value) > LONGEST else value


if __name__ == "__main__":
    main(sys.argv[1])
