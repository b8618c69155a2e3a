"""Component arguments made from the shipped lab with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.image_pre_pull import ImagePrePullArgs
from components.model_cache import ModelCacheArgs
from components.vllm_server import ReplicaArgs, VllmServerArgs
from planner.plan import ServicePlan, plan_services
from tests.stack_files import config

NAMESPACE = "ai-infra"


def plan(changes: Mapping[str, Any] | None = None) -> ServicePlan:
    """The plan of the lab's service."""
    stack = config(changes=changes)
    plans, findings = plan_services(stack.nodes, stack.services)
    assert not findings, f"the lab cannot be planned: {findings}"
    return plans["qwen"]


def pre_pull_args(changes: Mapping[str, Any] | None = None) -> ImagePrePullArgs:
    """Arguments of ImagePrePull."""
    planned = plan(changes)
    return ImagePrePullArgs(
        stack="test",
        namespace=NAMESPACE,
        service="qwen",
        pool=planned.pool,
        image=planned.service.image,
        security=planned.service.security,
        timeout_seconds=planned.clocks.pre_pull_timeout_seconds,
    )


def cache_args(changes: Mapping[str, Any] | None = None, **more: Any) -> ModelCacheArgs:
    """Arguments of ModelCache."""
    planned = plan(changes)
    return ModelCacheArgs(
        stack="test",
        namespace=NAMESPACE,
        namespace_name=NAMESPACE,
        name="qwen",
        service=planned.service,
        pool=planned.pool,
        gpu=planned.gpu.name,
        seed_deadline_seconds=planned.clocks.seed_deadline_seconds,
        seed_timeout_seconds=planned.clocks.seed_timeout_seconds,
        **{"replica": 0, **more},
    )


def server_args(changes: Mapping[str, Any] | None = None, **more: Any) -> VllmServerArgs:
    """Arguments of VllmServer."""
    planned = plan(changes)
    replicas = [ReplicaArgs(f"vllm-model-{replica}") for replica in range(planned.service.replicas)]
    defaults = {"flavour": "kubeadm", "kubernetes_minor": 37, "replicas": replicas}
    return VllmServerArgs(
        stack="test",
        namespace=NAMESPACE,
        name="qwen",
        service=planned.service,
        pool=planned.pool,
        gpu=planned.gpu.name,
        command=planned.argv,
        environment=planned.environment,
        clocks=planned.clocks,
        shared_memory=planned.shared_memory,
        cpu=planned.cpu,
        **{**defaults, **more},
    )
