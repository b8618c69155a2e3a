"""ModelCache: the claim that weights and compile caches live on, and the Job that fills it once.

What it holds outlives everything: `destroy` keeps volume and claim, the next `up` adopts them. The
options that promise this are set on each of them, because a component hands down none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import pulumi
import pulumi_kubernetes as k8s

from components import naming, placement, pod
from planner import caches
from planner.spec import (
    CacheSpec,
    ExistingClaimCache,
    HostPathCache,
    OwnStorageClassCache,
    PoolSpec,
    ServiceSpec,
    StorageClassCache,
)

COMPONENT = "seed"
KEPT_ANNOTATIONS = {
    # A claim of a WaitForFirstConsumer class is bound by its first pod: waiting for it would never end
    # (pulumi-kubernetes#895, and for updates of a bound claim #4179).
    "pulumi.com/skipAwait": "true",
    # One field manager for life, so that the next `up` after a `destroy` owns what the last one wrote.
    "pulumi.com/patchFieldManager": "pulumi-vllm",
}
ALWAYS_DIRECT = ("localhost", "127.0.0.1", ".svc", ".cluster.local")


@dataclass(frozen=True)
class ModelCacheArgs:
    """``gpu`` is the catalogue's name of the card. ``seed_after``: what must be there before the
    download starts, such as the image. ``seed_deadline_seconds`` ends a Job that hangs,
    ``seed_timeout_seconds`` is how long Pulumi waits for it. ``first``: the cache of replica 0, which
    owns what the caches of all replicas share. ``hooks``: what to do when the download fails."""

    stack: str
    namespace: pulumi.Input[str]
    namespace_name: str
    name: str
    service: ServiceSpec
    pool: PoolSpec
    gpu: str
    replica: int
    seed_deadline_seconds: int
    seed_timeout_seconds: int
    hf_token: k8s.core.v1.Secret | None = None
    seed_after: Sequence[pulumi.Resource] = field(default_factory=tuple)
    first: ModelCache | None = None
    hooks: pulumi.ResourceHookBinding | None = None


def persistent_volume_spec(args: ModelCacheArgs, cache_spec: HostPathCache) -> k8s.core.v1.PersistentVolumeSpecArgs:
    """A folder of one node as a volume that is reserved for our claim and kept when the claim goes."""
    return k8s.core.v1.PersistentVolumeSpecArgs(
        capacity={"storage": cache_spec.size},
        access_modes=["ReadWriteOnce"],
        persistent_volume_reclaim_policy="Retain",
        storage_class_name="",
        # https://kubernetes.io/docs/concepts/storage/persistent-volumes/#reserving-a-persistentvolume
        claim_ref=k8s.core.v1.ObjectReferenceArgs(
            namespace=args.namespace_name, name=naming.claim_name(args.name, args.service, args.replica)
        ),
        host_path=k8s.core.v1.HostPathVolumeSourceArgs(path=cache_spec.path, type="Directory"),
        node_affinity=k8s.core.v1.VolumeNodeAffinityArgs(required=_nodes_with_the_folder(args)),
    )


def _nodes_with_the_folder(args: ModelCacheArgs) -> k8s.core.v1.NodeSelectorArgs:
    labels = placement.pinned_labels(args.pool, args.service, args.replica) or args.pool.selector
    return k8s.core.v1.NodeSelectorArgs(
        node_selector_terms=[
            k8s.core.v1.NodeSelectorTermArgs(
                match_expressions=[
                    k8s.core.v1.NodeSelectorRequirementArgs(key=key, operator="In", values=[labels[key]])
                    for key in sorted(labels)
                ]
            )
        ]
    )


def claim_spec(
    args: ModelCacheArgs, cache_spec: HostPathCache | StorageClassCache | OwnStorageClassCache
) -> k8s.core.v1.PersistentVolumeClaimSpecArgs:
    """A claim bound by name to our static volume, or one that a storage class serves."""
    claim = naming.claim_name(args.name, args.service, args.replica)
    static = isinstance(cache_spec, HostPathCache)
    return k8s.core.v1.PersistentVolumeClaimSpecArgs(
        access_modes=["ReadWriteOnce" if isinstance(cache_spec, HostPathCache) else cache_spec.access_mode],
        resources=k8s.core.v1.VolumeResourceRequirementsArgs(requests={"storage": cache_spec.size}),
        # The empty class is not "none given": it keeps the cluster's default class away.
        storage_class_name=storage_class_of(args.namespace_name, args.name, args.service) or "",
        volume_name=naming.volume_name(args.namespace_name, claim) if static else None,
    )


def storage_class_of(namespace: str, name: str, service: ServiceSpec) -> str | None:
    """The storage class of a service's claims; "" for a static volume, ``None`` for an existing claim."""
    match service.cache:
        case HostPathCache():
            return ""
        case StorageClassCache():
            return service.cache.storage_class
        case OwnStorageClassCache():
            return naming.storage_class_name(namespace, name)
    return None


@cache
def download_program() -> str:
    """The program that the Job runs, as text: it is part of the Job and needs no image of its own."""
    return resources.files("components.seed").joinpath("download_model.py").read_text(encoding="utf-8")


def seed_environment(pool: PoolSpec, service: ServiceSpec, keep: str) -> dict[str, str]:
    """What the download program is told; the proxy in both spellings, since libraries differ.

    Where replicas share a folder no compile cache is pruned: one of them cannot know which the others use.
    """
    model, proxy = service.model, service.cache.seed.proxy
    values = {
        "HF_HOME": caches.WEIGHTS,
        "HOME": f"{caches.SCRATCH}/home",
        "SEED_MODEL": model.id,
        "SEED_REVISION": model.revision or "",
        "SEED_MARKER": caches.seed_marker(model),
        "SEED_COMPILE_CACHE": "" if placement.share_one_folder(pool, service) else caches.COMPILE,
        "SEED_KEEP": keep,
    }
    endpoint = service.cache.seed.endpoint
    values |= {"HF_ENDPOINT": endpoint} if endpoint else {}
    proxies = {"HTTP_PROXY": proxy.http, "HTTPS_PROXY": proxy.https}
    if any(proxies.values()):
        proxies["NO_PROXY"] = ",".join(dict.fromkeys((*ALWAYS_DIRECT, *proxy.no_proxy)))
    for name, value in proxies.items():
        if value:
            values |= {name: value, name.lower(): value}
    return values


def seed_container(args: ModelCacheArgs) -> k8s.core.v1.ContainerArgs:
    """The download, in the server's own image, which is on the node already."""
    service = args.service
    keep = caches.compile_cache_key(service.image, args.gpu, args.replica)
    token = [] if args.hf_token is None else [pod.secret_env("HF_TOKEN", args.hf_token, "token")]
    return k8s.core.v1.ContainerArgs(
        name="download",
        image=service.image.reference,
        image_pull_policy="IfNotPresent",
        command=["python3", "-c", download_program()],
        env=[*pod.env_vars(seed_environment(args.pool, service, keep)), *pod.no_gpu(args.pool), *token],
        resources=k8s.core.v1.ResourceRequirementsArgs(
            requests={"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "256Mi"},
            limits={"memory": "4Gi", "ephemeral-storage": "2Gi"},
        ),
        security_context=pod.container_security(),
        volume_mounts=[
            k8s.core.v1.VolumeMountArgs(name="cache", mount_path="/models"),
            k8s.core.v1.VolumeMountArgs(name="scratch", mount_path=caches.SCRATCH),
            k8s.core.v1.VolumeMountArgs(name="tmp", mount_path="/tmp"),  # noqa: S108 - a mount of its own
        ],
    )


def seed_job_spec(args: ModelCacheArgs) -> k8s.batch.v1.JobSpecArgs:
    """A Job on the replica's node: the first pod of a claim decides its zone, so it must be the right one."""
    service = args.service
    seed = service.cache.seed
    pinned = placement.pinned_labels(args.pool, service, args.replica)
    claim = naming.claim_name(args.name, service, args.replica)
    return k8s.batch.v1.JobSpecArgs(
        backoff_limit=seed.retries,
        active_deadline_seconds=args.seed_deadline_seconds,
        template=k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=naming.component_labels(args.stack, args.name, COMPONENT)),
            spec=k8s.core.v1.PodSpecArgs(
                restart_policy="Never",
                automount_service_account_token=False,
                enable_service_links=False,
                host_network=True if seed.host_network else None,
                dns_policy="ClusterFirstWithHostNet" if seed.host_network else None,
                node_selector=pod.node_selector(args.pool, pinned),
                tolerations=pod.tolerations(args.pool),
                security_context=pod.pod_security(service.security, fs_group=can_change_group(service)),
                containers=[seed_container(args)],
                volumes=[
                    claim_volume(claim),
                    pod.scratch_volume("scratch", "512Mi"),
                    pod.scratch_volume("tmp", "512Mi"),
                ],
            ),
        ),
    )


def claim_volume(claim: str) -> k8s.core.v1.VolumeArgs:
    """The claim as a volume of a pod."""
    source = k8s.core.v1.PersistentVolumeClaimVolumeSourceArgs(claim_name=claim)
    return k8s.core.v1.VolumeArgs(name="cache", persistent_volume_claim=source)


def can_change_group(service: ServiceSpec) -> bool:
    """Whether the kubelet can hand the volume to the pod's group: a CSI volume yes, a hostPath never."""
    return not isinstance(service.cache, HostPathCache)


def seed_network_policy_spec(args: ModelCacheArgs) -> k8s.networking.v1.NetworkPolicySpecArgs:
    """The download may reach out; nobody may reach it."""
    return k8s.networking.v1.NetworkPolicySpecArgs(
        pod_selector=k8s.meta.v1.LabelSelectorArgs(match_labels=naming.selector_labels(args.name, COMPONENT)),
        policy_types=["Ingress", "Egress"],
        egress=[k8s.networking.v1.NetworkPolicyEgressRuleArgs()],
    )


class ModelCache(pulumi.ComponentResource):
    """The claim of one replica, filled with the model."""

    claim_name: str
    ready: list[pulumi.Resource]
    """What a server must wait for: the claim, and the Job that fills it."""
    seed_policy: pulumi.Resource | None
    """Which network the downloads of all replicas may use."""
    storage_class: pulumi.Resource | None
    """The class of the claims of all replicas, where it is ours."""

    def __init__(self, name: str, args: ModelCacheArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:ModelCache", name, None, opts)
        self._name, self._args = name, args
        self.claim_name = naming.claim_name(args.name, args.service, args.replica)
        self.ready = []
        first, cache_spec = args.first, args.service.cache
        self.storage_class = first.storage_class if first else self._storage_class(cache_spec)
        self.seed_policy = first.seed_policy if first else self._seed_policy()
        if not isinstance(cache_spec, ExistingClaimCache):
            self.ready.append(self._claim(cache_spec))
        if self.seed_policy is not None:
            self.ready.append(self._seed(self.seed_policy))
        self.register_outputs({"claimName": self.claim_name})

    def _persistent_volume(self, cache_spec: HostPathCache) -> pulumi.Resource:
        volume = naming.volume_name(self._args.namespace_name, self.claim_name)
        return k8s.core.v1.PersistentVolume(
            volume,
            metadata=self._metadata(volume, namespaced=False, annotations=KEPT_ANNOTATIONS),
            spec=persistent_volume_spec(self._args, cache_spec),
            opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),
        )

    def _storage_class(self, cache_spec: CacheSpec) -> pulumi.Resource | None:
        if not isinstance(cache_spec, OwnStorageClassCache):
            return None
        class_name = storage_class_of(self._args.namespace_name, self._args.name, self._args.service)
        return k8s.storage.v1.StorageClass(
            f"{self._name}-storage-class",
            metadata=self._metadata(str(class_name), namespaced=False),
            provisioner=cache_spec.provisioner,
            parameters=cache_spec.parameters or None,
            reclaim_policy="Retain",
            volume_binding_mode="WaitForFirstConsumer",
            allow_volume_expansion=True,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _claim(self, cache_spec: HostPathCache | StorageClassCache | OwnStorageClassCache) -> pulumi.Resource:
        volume = self._persistent_volume(cache_spec) if isinstance(cache_spec, HostPathCache) else None
        return k8s.core.v1.PersistentVolumeClaim(
            # A function of where the claim is and how it is called: a renamed YAML key is the same claim.
            f"{self._args.namespace_name}/{self.claim_name}",
            metadata=self._metadata(self.claim_name, annotations=KEPT_ANNOTATIONS),
            spec=claim_spec(self._args, cache_spec),
            opts=pulumi.ResourceOptions(
                parent=self,
                retain_on_delete=True,
                depends_on=[source for source in (volume, self.storage_class) if source is not None],
            ),
        )

    def _seed_policy(self) -> pulumi.Resource | None:
        if not self._args.service.cache.seed.enabled:
            return None
        return k8s.networking.v1.NetworkPolicy(
            f"{self._name}-seed-network-policy",
            metadata=self._metadata(f"{self._args.name}-{COMPONENT}"),
            spec=seed_network_policy_spec(self._args),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _seed(self, policy: pulumi.Resource) -> pulumi.Resource:
        args = self._args
        timeout = f"{args.seed_timeout_seconds}s"
        return k8s.batch.v1.Job(
            f"{self._name}-seed",
            # A Job that failed is made again by the next `up` instead of staying in the way.
            metadata=self._metadata(
                naming.seed_name(args.name, args.service, args.replica),
                annotations={"pulumi.com/replaceUnready": "true"},
            ),
            spec=seed_job_spec(args),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[*self.ready, policy, *args.seed_after],
                custom_timeouts=pulumi.CustomTimeouts(create=timeout, update=timeout),
                hooks=args.hooks,
            ),
        )

    def _metadata(
        self, name: str, *, namespaced: bool = True, annotations: dict[str, str] | None = None
    ) -> k8s.meta.v1.ObjectMetaArgs:
        return k8s.meta.v1.ObjectMetaArgs(
            name=name,
            namespace=self._args.namespace if namespaced else None,
            labels=naming.component_labels(self._args.stack, self._args.name, "cache"),
            annotations=annotations,
        )
