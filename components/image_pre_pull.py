"""ImagePrePull: the image is on every node of the pool before a server is touched.

A Recreate update stops the old server first. Whatever the image takes to arrive would then be
downtime, so it arrives before: the workload depends on this DaemonSet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_kubernetes as k8s

from components import naming, pod
from planner.spec import ImageSpec, PoolSpec, SecuritySpec

COMPONENT = "pre-pull"


@dataclass(frozen=True)
class ImagePrePullArgs:
    """``timeout_seconds``: how long Pulumi waits until every node of the pool has the image. ``after``: what must be
    there first, such as nodes that the stack makes."""

    stack: str
    namespace: pulumi.Input[str]
    service: str
    pool: PoolSpec
    image: ImageSpec
    security: SecuritySpec
    timeout_seconds: int
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)


def container(image: ImageSpec, pool: PoolSpec) -> k8s.core.v1.ContainerArgs:
    """The image itself, asleep: Ready means pulled, and in use means safe from image collection."""
    return k8s.core.v1.ContainerArgs(
        name="image",
        image=image.reference,
        image_pull_policy="IfNotPresent",
        # A shell that waits ends at once on TERM; `sleep` alone as process 1 would ignore it.
        command=["/bin/sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"],
        env=pod.no_gpu(pool),
        resources=k8s.core.v1.ResourceRequirementsArgs(
            requests={"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "16Mi"},
            limits={"memory": "64Mi", "ephemeral-storage": "64Mi"},
        ),
        security_context=pod.container_security(),
    )


def daemon_set_spec(args: ImagePrePullArgs) -> k8s.apps.v1.DaemonSetSpecArgs:
    """A pod on each node of the pool, all nodes at the same time."""
    selector = naming.selector_labels(args.service, COMPONENT)
    return k8s.apps.v1.DaemonSetSpecArgs(
        selector=k8s.meta.v1.LabelSelectorArgs(match_labels=selector),
        update_strategy=k8s.apps.v1.DaemonSetUpdateStrategyArgs(
            type="RollingUpdate",
            rolling_update=k8s.apps.v1.RollingUpdateDaemonSetArgs(max_unavailable="100%"),
        ),
        template=k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=naming.component_labels(args.stack, args.service, COMPONENT)),
            spec=k8s.core.v1.PodSpecArgs(
                automount_service_account_token=False,
                enable_service_links=False,
                node_selector=pod.node_selector(args.pool),
                tolerations=pod.tolerations(args.pool),
                termination_grace_period_seconds=1,
                security_context=pod.pod_security(args.security, fs_group=False),
                containers=[container(args.image, args.pool)],
            ),
        ),
    )


class ImagePrePull(pulumi.ComponentResource):
    """Pulls one image onto every node of a pool and keeps it there."""

    daemon_set: k8s.apps.v1.DaemonSet

    def __init__(self, name: str, args: ImagePrePullArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:ImagePrePull", name, None, opts)
        timeout = f"{args.timeout_seconds}s"
        await_ready = args.pool.pre_pull.await_ready
        self.daemon_set = k8s.apps.v1.DaemonSet(
            f"{name}-daemon-set",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=naming.pre_pull_name(args.service),
                namespace=args.namespace,
                labels=naming.component_labels(args.stack, args.service, COMPONENT),
                annotations={} if await_ready else {"pulumi.com/skipAwait": "true"},
            ),
            spec=daemon_set_spec(args),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[*args.after],
                custom_timeouts=pulumi.CustomTimeouts(create=timeout, update=timeout),
            ),
        )
        self.register_outputs({"image": args.image.reference})
