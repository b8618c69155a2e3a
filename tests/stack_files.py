"""Stack files for tests: a shipped one with changes. An environment unless it says otherwise."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.config import StackConfig, stack_config
from infra.config.stack import EKS_CLUSTER
from infra.config.stack_file import load_yaml, project_values

STACKS = Path(__file__).parents[1] / "stacks"
STACK_FILES = {path.name.removeprefix("Pulumi.").removesuffix(".yaml"): path for path in STACKS.glob("Pulumi.*.yaml")}
CLUSTER_STACKS = sorted(
    stack for stack, path in STACK_FILES.items() if EKS_CLUSTER in project_values(load_yaml(path), path)
)
"""The shipped stacks that are an EKS cluster of their own."""
SHIPPED = sorted(STACK_FILES.keys() - CLUSTER_STACKS)
"""The shipped environments."""

CPUS: Mapping[str, Any] = {
    "nodes.lab.gpu": "cpu",
    "nodes.lab.selector": {"kubernetes.io/hostname": "lab"},
    "services.qwen.model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"},
    "services.qwen.image": {"repository": "vllm/vllm-openai-cpu", "tag": "v0.32.0"},
    "services.qwen.engine": {"cpuKvCacheSpace": 2, "maxModelLen": 4096, "maxNumSeqs": 16},
    "services.qwen.resources": {"memoryLimit": "8Gi"},
}
"""Changes that put the lab on the CPUs of its node."""


def values(stack: str = "lab-3060", changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The sections of a shipped stack with ``changes``: dotted path → value; ``None`` removes the key."""
    path = STACKS / f"Pulumi.{stack}.yaml"
    result = copy.deepcopy(project_values(load_yaml(path), path))
    for dotted, value in (changes or {}).items():
        *parents, last = dotted.split(".")
        place = result
        for key in parents:
            place = place.setdefault(key, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    return json.loads(json.dumps(result))


def config(stack: str = "lab-3060", changes: Mapping[str, Any] | None = None) -> StackConfig:
    """The same, validated."""
    return stack_config(values(stack, changes))


def pulumi_config(stack: str = "lab-3060", changes: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The same, as the engine hands it to a program."""
    return {f"vllm:{key}": json.dumps(value) for key, value in values(stack, changes).items()}
