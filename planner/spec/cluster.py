"""The section ``vllm:cluster``: which cluster a stack may touch, and where in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.spec.aws import EksReferenceSpec
from planner.spec.base import DnsLabel, Spec

Adoptable = Annotated[
    str, Field(pattern=r"^(Namespace|PersistentVolume|PersistentVolumeClaim|Service)/[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
]


class ClusterSpec(Spec):
    """The cluster that a stack deploys into. It is there already."""

    kind: Literal["existing", "eks"]
    """`existing`: its nodes are there too. `eks`: an EKS cluster for which this stack makes GPU nodes."""

    flavour: Literal["kubeadm", "k3s", "microk8s", "eks"]
    """The distribution: it decides what a GPU pod needs (k3s and microk8s need a runtime class)."""

    eks: EksReferenceSpec | None = None
    """The EKS cluster, with `kind: eks`."""

    kubernetes_version: Annotated[str, Field(pattern=r"^1\.\d+$")]
    """Minor version of the control plane, quoted: "1.37"."""

    context: Annotated[str, Field(min_length=1)]
    """The kubeconfig context that this stack belongs to; a preview against any other cluster stops."""

    kubeconfig: str | None = None
    """Path of the kubeconfig file. Unset: the first file of KUBECONFIG, else ~/.kube/config."""

    namespace: DnsLabel
    """The namespace of everything in this stack. It is created when absent and kept on `destroy`."""

    adopt: tuple[Adoptable, ...] = ()
    """Objects that exist already and that this stack may take over, as KIND/NAME: a Namespace, a
    PersistentVolume, a PersistentVolumeClaim or a Service. Nothing that somebody else made is touched
    without it."""

    enforces_network_policy: bool | None = None
    """Whether the network plugin enforces NetworkPolicy (Calico, Cilium: true; plain flannel: false).
    Unset: the preview says that it is not known."""
