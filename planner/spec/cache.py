"""Where weights and compile caches live: the claim of each replica and how it is filled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.spec.base import DnsLabel, PositiveInt, Quantity, Spec

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
"""ReadWriteOnce: mounted by one node at a time (not: by one pod). ReadWriteMany: by many nodes."""


class ProxySpec(Spec):
    """The proxy that the download goes through. Values are plain: put no password in them."""

    http: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")] | None = None
    """HTTP_PROXY, for example http://10.0.0.5:3128."""

    https: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")] | None = None
    """HTTPS_PROXY."""

    no_proxy: tuple[str, ...] = ()
    """Hosts that are reached directly; localhost, 127.0.0.1, .svc and .cluster.local always are."""


class SeedSpec(Spec):
    """The Job that downloads the model into the claim once, before the server starts."""

    enabled: bool = True
    """Set false when the claim already holds the model in Hugging Face's cache layout."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")] | None = None
    """Address of a mirror of the Hugging Face hub (HF_ENDPOINT), for example https://hub.example.com. The token
    vllm:hfToken is sent to it. Unset: the hub itself."""

    proxy: ProxySpec = ProxySpec()
    """Proxy of the download."""

    host_network: bool = False
    """Use the node's network, for a proxy that only the node can reach."""

    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often a failed download is tried again."""

    deadline_seconds: PositiveInt | None = None
    """When the Job is given up. Unset: three times the planned download and ten minutes."""


class _Claim(Spec):
    claim_name: DnsLabel | None = None
    """Name of the claim, with the replica's number appended. Unset: the service's name and `-cache`."""

    seed: SeedSpec = SeedSpec()
    """How the claim is filled."""


class HostPathCache(_Claim):
    """A folder of one node, as a static volume. For a pool of one node."""

    kind: Literal["hostPath"]
    """A folder of the node as a PersistentVolume with reclaim policy Retain."""

    path: Annotated[str, Field(pattern=r"^/[^\s]+$")]
    """The folder on the node. It must exist: `sudo mkdir -p PATH` on the node."""

    size: Quantity
    """What the volume and the claim say, for example 20Gi. It only makes the two match: a folder has
    no quota, so it can neither be filled at this size nor be grown."""

    node: DnsLabel | None = None
    """Name of the node that has the folder. Required when the pool has more than one node."""

    owner: PositiveInt | None = None
    """User id that owns the folder: `sudo chown -R UID:UID PATH` on the node. Needed with
    security.runAsUser, since Kubernetes cannot change the owner of a node's folder."""


class StorageClassCache(_Claim):
    """A volume that an existing storage class provides."""

    kind: Literal["storageClass"]
    """A claim of a storage class that is in the cluster."""

    storage_class: Annotated[str, Field(min_length=1)]
    """Name of the storage class. It cannot be changed later: a claim keeps its class for life."""

    size: Quantity
    """Size of the claim, for example 80Gi. It can grow where the class allows it, and never shrinks."""

    access_mode: AccessMode = "ReadWriteOnce"
    """ReadWriteOnce: one node at a time (not one pod). ReadWriteMany: many nodes."""


class OwnStorageClassCache(_Claim):
    """A volume of a storage class that this stack creates."""

    kind: Literal["ownStorageClass"]
    """A claim of a class that we create: WaitForFirstConsumer, expandable, Retain."""

    provisioner: Annotated[str, Field(min_length=1)]
    """Provisioner of the class, for example ebs.csi.aws.com."""

    parameters: dict[str, str] = {}
    """Parameters of the provisioner. Like the provisioner, they cannot be changed later."""

    size: Quantity
    """Size of the claim, for example 80Gi. It can grow and never shrinks."""

    access_mode: AccessMode = "ReadWriteOnce"
    """ReadWriteOnce: one node at a time (not one pod). ReadWriteMany: many nodes."""


class ExistingClaimCache(Spec):
    """A claim that is there already. It is used and never changed."""

    kind: Literal["existingClaim"]
    """A claim that somebody else made."""

    claim_name: DnsLabel
    """Name of the claim in the stack's namespace."""

    access_mode: AccessMode = "ReadWriteOnce"
    """What the claim is. ReadWriteMany is needed when replicas on several nodes share it."""

    seed: SeedSpec = SeedSpec()
    """How the claim is filled."""


CacheSpec = Annotated[
    HostPathCache | StorageClassCache | OwnStorageClassCache | ExistingClaimCache, Field(discriminator="kind")
]
