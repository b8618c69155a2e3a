"""The kubeconfig contexts that the shipped stacks expect."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

STACKS = Path(__file__).parent.parent / "stacks"


def stack_contexts(stacks: Path) -> dict[str, str]:
    """Stack name → ``vllm:cluster.context`` of every stack file in ``stacks`` that names one; a stack that is an
    EKS cluster of its own (``vllm:eksCluster``) has none.

    A stack refuses any other context; with aliases of these names in the simulated cluster's own
    kubeconfig each of them can be previewed without a real cluster.

    Raises:
        ValueError: a file is no YAML; the message names it and the line.
    """
    contexts = {}
    for file in sorted(stacks.glob("Pulumi.*.yaml")):
        context = context_of(file)
        if context is not None:
            contexts[file.name.removeprefix("Pulumi.").removesuffix(".yaml")] = context
    return contexts


def context_of(file: Path) -> str | None:
    """``vllm:cluster.context`` of a stack file; ``None`` where it names none.

    Raises:
        ValueError: the file is no YAML; the message names it and the line.
    """
    try:
        content = YAML(typ="safe", pure=True).load(file)
    except YAMLError as error:
        raise ValueError(f"{file} is no valid YAML: {error}") from error
    context = _get(_get(_get(content, "config"), "vllm:cluster"), "context")
    return context if isinstance(context, str) else None


def _get(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None
