"""Stages of kwok that a test adds to the simulated cluster: slow starts, crashes, pulls that fail.

What the annotations do is written in ``objects/stages.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "pulumi-vllm.test/"
READY_AFTER = f"{PREFIX}ready-after"
NEVER_READY = f"{PREFIX}never-ready"
CRASH = f"{PREFIX}crash"
IMAGE_PULL_ERROR = f"{PREFIX}image-pull-error"
NODE_NOT_READY = f"{PREFIX}not-ready"


def annotate_pods(
    name: str, namespace: str, annotations: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A Stage object that puts ``annotations`` on the new pods of ``namespace`` before they start.

    The program under test says nothing about its pods' fate; a test does, with
    ``cluster.apply(annotate_pods("slow", "ai-infra", {READY_AFTER: "5s"}))``. Deleting the Stage ends it
    for pods created later. ``labels`` narrows it to the pods that carry all of them.
    """
    first = next(iter(annotations))
    lines = [f"  {key}: {{{{ {_go_string(value)} | Quote }}}}" for key, value in annotations.items()]
    template = "\n".join(["annotations:", *lines])
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            # Of several stages that match, kwok takes one with a weight: those of objects/stages.yaml have none.
            "weight": 1,
            "selector": {
                "matchLabels": dict(labels or {}),
                "matchExpressions": [
                    {"key": ".metadata.namespace", "operator": "In", "values": [namespace]},
                    {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
                    {"key": ".status.phase", "operator": "In", "values": ["Pending"]},
                    {"key": f'.metadata.annotations["{first}"]', "operator": "DoesNotExist"},
                ],
            },
            "steps": [{"patch": {"type": "merge", "root": "metadata", "template": template}}],
        },
    }


def _go_string(text: str) -> str:
    """``text`` as a constant of a Go template: a raw string, which knows no escapes."""
    if "`" in text:
        raise ValueError(f"{text!r}: an annotation's value must not contain a backquote here")
    return f"`{text}`"
