"""Credentials as Kubernetes Secrets whose name changes with their content."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_kubernetes as k8s


def credential(
    name: str,
    namespace: pulumi.Input[str],
    labels: Mapping[str, str],
    values: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> k8s.core.v1.Secret:
    """An immutable Secret with a generated name.

    Another content is another Secret, made before the old one goes; the pods that refer to it by name
    are then rolled, and a pod that is still running keeps the one that it was started with. No hash
    of the content is written anywhere.
    """
    return k8s.core.v1.Secret(
        name,
        metadata=k8s.meta.v1.ObjectMetaArgs(namespace=namespace, labels=dict(labels)),
        immutable=True,
        string_data={key: pulumi.Output.secret(value) for key, value in values.items()},
        opts=opts,
    )
