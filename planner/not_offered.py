"""What people look for in a stack file and what this version has no component behind, with what to do instead.

A key of this table is refused like any unknown key; the refusal then says why, not which key is spelt nearly alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class NotOffered(NamedTuple):
    """``what`` is not there; ``instead``: how the need is met today."""

    what: str
    instead: str


_AUTOSCALING = NotOffered(
    "autoscaling: a start takes minutes, and the number of replicas is the stack's",
    "replicas in the stack file; whoever scales by a metric of vLLM needs the names in planner/data/metrics",
)
_SPLIT = NotOffered(
    "splitting prefill and decode: it needs two Deployments, a router and a way for KV blocks between them",
    "one server that does both; engine.maxNumBatchedTokens trades one latency against the other",
)
_ADAPTERS = NotOffered(
    "LoRA adapters: their rank and memory would be part of the plan",
    "a service for each merged model; --enable-lora and --max-lora-rank in engine.extraArgs start, unplanned",
)
_ROLLOUT = NotOffered(
    "a choice of roll-out: two servers at once would both need the card, so it is always Recreate",
    "replicas: 2 or more are updated one after the other",
)
_EXISTING_SECRET = NotOffered(
    "a Secret that somebody else made: its rotation would not reach a running server",
    "`pulumi config set --secret vllm:apiKey` or vllm:hfToken: a change of content rolls the server",
)
_TOLERATIONS = NotOffered(
    "tolerations of your own: one that names a value misses nodes with another",
    "nodes.POOL.taints: everything placed there tolerates each of them, whatever its value",
)
_DELAY = NotOffered(
    "a probe's initial delay: any delay is a guess", "overrides.startupSeconds: the startup probe waits"
)

NOT_OFFERED: Mapping[str, NotOffered] = MappingProxyType(
    {
        "autoscale": _AUTOSCALING,
        "autoscaling": _AUTOSCALING,
        "hpa": _AUTOSCALING,
        "keda": _AUTOSCALING,
        "pd": _SPLIT,
        "prefill": _SPLIT,
        "decode": _SPLIT,
        "disaggregation": _SPLIT,
        "lora": _ADAPTERS,
        "loras": _ADAPTERS,
        "adapters": _ADAPTERS,
        "loraAdapters": _ADAPTERS,
        "loraModules": _ADAPTERS,
        "maxLoraRank": _ADAPTERS,
        "rollout": _ROLLOUT,
        "strategy": _ROLLOUT,
        "maxSurge": _ROLLOUT,
        "maxUnavailable": _ROLLOUT,
        "existingSecret": _EXISTING_SECRET,
        "tolerations": _TOLERATIONS,
        "initialDelaySeconds": _DELAY,
    }
)
