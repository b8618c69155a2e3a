"""What every pod of a stack has in common: where it may run, and how little it may do."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi_kubernetes as k8s

from planner.spec import PoolSpec, SecuritySpec

MINOR_WITH_SLEEP_ACTION = 30
"""Kubernetes minor from which `lifecycle.preStop.sleep` is on by default (KEP-3960)."""

NO_GPU = k8s.core.v1.EnvVarArgs(name="NVIDIA_VISIBLE_DEVICES", value="void")
"""Keeps a runtime that injects GPUs by environment from giving one to a pod that asked for none."""


def no_gpu(pool: PoolSpec) -> list[k8s.core.v1.EnvVarArgs]:
    """What a container needs that shall see no card; nothing on nodes that have none."""
    return [] if pool.kind == "cpu" else [NO_GPU]


def node_selector(pool: PoolSpec, pinned: Mapping[str, str] | None = None) -> dict[str, str]:
    """The labels of the pool's nodes, their architecture, and those of the one node that is pinned."""
    return {**pool.selector, "kubernetes.io/arch": pool.architecture, **(pinned or {})}


def tolerations(pool: PoolSpec) -> list[k8s.core.v1.TolerationArgs]:
    """One toleration for each taint of the pool, whatever the taint's value is.

    A toleration of one value misses nodes that were tainted with another (NVIDIA/k8s-device-plugin#1934).
    """
    return [k8s.core.v1.TolerationArgs(key=taint.key, operator="Exists", effect=taint.effect) for taint in pool.taints]


def pod_security(security: SecuritySpec, fs_group: bool) -> k8s.core.v1.PodSecurityContextArgs:
    """The pod's identity. ``fs_group``: the volume can change its group (a hostPath cannot)."""
    user = security.run_as_user
    grouped = user is not None and fs_group
    return k8s.core.v1.PodSecurityContextArgs(
        seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
        run_as_user=user,
        run_as_group=user,
        run_as_non_root=True if user is not None else None,
        fs_group=user if grouped else None,
        fs_group_change_policy="OnRootMismatch" if grouped else None,
    )


def container_security() -> k8s.core.v1.SecurityContextArgs:
    """No privilege, no capability, no write outside the mounts."""
    return k8s.core.v1.SecurityContextArgs(
        allow_privilege_escalation=False,
        capabilities=k8s.core.v1.CapabilitiesArgs(drop=["ALL"]),
        read_only_root_filesystem=True,
    )


def env_vars(values: Mapping[str, str]) -> list[k8s.core.v1.EnvVarArgs]:
    """Plain environment variables, in the order of their names so that a diff shows only changes."""
    return [k8s.core.v1.EnvVarArgs(name=name, value=values[name]) for name in sorted(values)]


def secret_env(variable: str, secret: k8s.core.v1.Secret, key: str) -> k8s.core.v1.EnvVarArgs:
    """A variable that the kubelet reads from a Secret: its value is in no manifest."""
    return k8s.core.v1.EnvVarArgs(
        name=variable,
        value_from=k8s.core.v1.EnvVarSourceArgs(
            secret_key_ref=k8s.core.v1.SecretKeySelectorArgs(name=secret.metadata.name, key=key)
        ),
    )


def scratch_volume(name: str, size: str) -> k8s.core.v1.VolumeArgs:
    """Writable space that goes with the pod, never without a limit."""
    return k8s.core.v1.VolumeArgs(name=name, empty_dir=k8s.core.v1.EmptyDirVolumeSourceArgs(size_limit=size))
