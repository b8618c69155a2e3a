"""VllmServer: the vLLM engines of one service behind one address, with probes that fit their real start.

Each replica is a Deployment of its own with its own claim, node and compile cache. A replica's
Deployment depends on that of the one before, so that a change reaches them one after the other and
stops where one fails: there is no moment in which two of them are away on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_kubernetes as k8s

from components import device_claims, naming, placement, pod
from components.model_cache import can_change_group, claim_volume
from planner import caches
from planner.clocks import Clocks
from planner.spec import PoolSpec, ServiceSpec

COMPONENT = "server"
HEALTH = "/health"
"""Open without an API key and free of GPU work, unlike anything below /v1."""
ROLLED_OUT = {"pulumi.com/waitFor": "jsonpath={[?@.updatedReplicas == 1 && @.availableReplicas == 1]}"}
"""When a Deployment counts as updated: its one pod is of the new template, and serves.

The provider's own test believes a Recreate update to be over in the moment in which the old pod is
stopped and the conditions still are those of the old revision (pulumi-kubernetes,
provider/pkg/await/deployment.go: `checkReplicaSetStatus`); the next replica would then go too. One
expression, because both must hold in the same status; it is looked at only once the controller has
observed the change (condition/jsonpath.go).
"""
GPU_CLAIM = "gpu"
"""Name of the pod's claim of devices, and of the only request in it."""


@dataclass(frozen=True)
class ReplicaArgs:
    """What one replica has of its own. ``after``: what must be there before its server is touched.
    ``hooks``: what to do when its roll-out fails."""

    claim_name: str
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)
    hooks: pulumi.ResourceHookBinding | None = None


@dataclass(frozen=True)
class VllmServerArgs:
    """``command`` is the planned argv, ``environment`` the planned variables, ``clocks`` the planned
    times, ``shared_memory`` the planned size of /dev/shm."""

    stack: str
    namespace: pulumi.Input[str]
    name: str
    service: ServiceSpec
    pool: PoolSpec
    gpu: str
    flavour: str
    kubernetes_minor: int
    command: Sequence[str]
    environment: Mapping[str, str]
    clocks: Clocks
    shared_memory: str
    cpu: str
    replicas: Sequence[ReplicaArgs]
    api_key: k8s.core.v1.Secret | None = None
    hf_token: k8s.core.v1.Secret | None = None
    service_annotations: Mapping[str, str] = field(default_factory=dict)


def probe(clocks: Clocks, period: int, failures: int) -> k8s.core.v1.ProbeArgs:
    """Ask for health every ``period`` seconds; ``failures`` in a row count. No delay: that is a guess."""
    return k8s.core.v1.ProbeArgs(
        http_get=k8s.core.v1.HTTPGetActionArgs(path=HEALTH, port=naming.HTTP_PORT),
        period_seconds=period,
        timeout_seconds=clocks.probe_timeout_seconds,
        failure_threshold=failures,
    )


def environment(args: VllmServerArgs) -> list[k8s.core.v1.EnvVarArgs]:
    """The planned variables, and secrets by reference."""
    secrets = []
    if args.api_key is not None:
        secrets.append(pod.secret_env("VLLM_API_KEY", args.api_key, "key"))
    if args.hf_token is not None and not args.service.offline:
        secrets.append(pod.secret_env("HF_TOKEN", args.hf_token, "token"))
    return [*pod.env_vars(args.environment), *secrets]


def resource_requirements(args: VllmServerArgs) -> k8s.core.v1.ResourceRequirementsArgs:
    """CPU, RAM, scratch space and GPUs of one replica: counted by a device plugin, or claimed as devices."""
    wanted = args.service.resources
    claims = claims_devices(args.pool)
    requests = {"cpu": args.cpu, "memory": wanted.memory or wanted.memory_limit, "ephemeral-storage": "1Gi"}
    limits = {"memory": wanted.memory_limit, "ephemeral-storage": "6Gi"}
    limits |= {} if claims or args.pool.kind == "cpu" else {"nvidia.com/gpu": str(args.service.gpus)}
    return k8s.core.v1.ResourceRequirementsArgs(
        requests=requests,
        limits={**limits, **({"cpu": wanted.cpu_limit} if wanted.cpu_limit else {})},
        claims=[k8s.core.v1.ResourceClaimArgs(name=GPU_CLAIM)] if claims else None,
    )


def claims_devices(pool: PoolSpec) -> bool:
    """Whether a server's cards are claimed as devices."""
    return pool.kind == "gpu" and pool.allocation == "dra"


def volume_mounts(args: VllmServerArgs, replica: int) -> list[k8s.core.v1.VolumeMountArgs]:
    """The claim's two sub-paths, shared memory, and the only other places that can be written."""
    key = caches.compile_cache_key(args.service.image, args.gpu, replica)
    return [
        weights_mount(),
        k8s.core.v1.VolumeMountArgs(
            name="cache", mount_path=caches.COMPILE, sub_path=f"{caches.COMPILE_SUB_PATH}/{key}"
        ),
        k8s.core.v1.VolumeMountArgs(name="shm", mount_path="/dev/shm"),  # noqa: S108 - a mount of its own
        k8s.core.v1.VolumeMountArgs(name="scratch", mount_path=caches.SCRATCH),
        k8s.core.v1.VolumeMountArgs(name="tmp", mount_path="/tmp"),  # noqa: S108 - a mount of its own
    ]


def weights_mount() -> k8s.core.v1.VolumeMountArgs:
    """The weights' part of the claim."""
    return k8s.core.v1.VolumeMountArgs(name="cache", mount_path=caches.WEIGHTS, sub_path=caches.WEIGHTS_SUB_PATH)


def lifecycle(args: VllmServerArgs) -> k8s.core.v1.LifecycleArgs | None:
    """Wait before SIGTERM: clients go on sending until they have seen that the address is gone."""
    seconds = args.service.stop.pre_stop_seconds
    if seconds == 0:
        return None
    if args.kubernetes_minor >= pod.MINOR_WITH_SLEEP_ACTION:
        action = k8s.core.v1.LifecycleHandlerArgs(sleep=k8s.core.v1.SleepActionArgs(seconds=seconds))
    else:
        action = k8s.core.v1.LifecycleHandlerArgs(exec_=k8s.core.v1.ExecActionArgs(command=["sleep", str(seconds)]))
    return k8s.core.v1.LifecycleArgs(pre_stop=action)


def server_container(args: VllmServerArgs, replica: int) -> k8s.core.v1.ContainerArgs:
    """The engine. Its command is given whole: images of older releases ignore a positional model."""
    clocks = args.clocks
    return k8s.core.v1.ContainerArgs(
        name="vllm",
        image=args.service.image.reference,
        image_pull_policy="IfNotPresent",
        command=list(args.command),
        env=environment(args),
        ports=[k8s.core.v1.ContainerPortArgs(name=naming.HTTP_PORT, container_port=args.service.exposure.port)],
        resources=resource_requirements(args),
        security_context=pod.container_security(),
        lifecycle=lifecycle(args),
        volume_mounts=volume_mounts(args, replica),
        # Until the engine is up nothing listens, so only the startup probe may wait.
        startup_probe=probe(clocks, clocks.startup_period_seconds, clocks.startup_failure_threshold),
        liveness_probe=probe(clocks, clocks.liveness_period_seconds, clocks.liveness_failure_threshold),
        readiness_probe=probe(clocks, clocks.readiness_period_seconds, clocks.readiness_failure_threshold),
    )


def check_container(
    args: VllmServerArgs, name: str, test: str, refusal: str, mount: k8s.core.v1.VolumeMountArgs
) -> k8s.core.v1.ContainerArgs:
    """Stops a start with ``refusal`` in the log unless the shell's ``test`` holds."""
    return k8s.core.v1.ContainerArgs(
        name=name,
        image=args.service.image.reference,
        image_pull_policy="IfNotPresent",
        command=["/bin/sh", "-c", f'{test} || {{ echo "{refusal}" >&2; exit 1; }}'],
        env=pod.no_gpu(args.pool),
        resources=k8s.core.v1.ResourceRequirementsArgs(
            requests={"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "16Mi"},
            limits={"memory": "64Mi", "ephemeral-storage": "64Mi"},
        ),
        security_context=pod.container_security(),
        volume_mounts=[mount],
    )


def seeded_container(args: VllmServerArgs) -> k8s.core.v1.ContainerArgs:
    """Stops a start on half a model: the marker is the last thing that the download writes."""
    marker = caches.seed_marker(args.service.model)
    missing = (
        f"{marker} is missing: the model was not downloaded whole and verified. Look at the Job "
        f"{args.name}-seed-…, or set cache.seed.enabled to false for a claim that was filled by hand."
    )
    return check_container(args, "model-is-there", f'test -s "{marker}"', missing, weights_mount())


def compile_folder_container(args: VllmServerArgs, replica: int) -> k8s.core.v1.ContainerArgs:
    """Makes the folder of the compile cache as the server's user.

    The kubelet would make a missing sub-path as root (kubelet_pods.go, SafeMakeDir), and in a folder of the node no
    group helps this user to write it.
    """
    folder = f"{caches.COMPILE}/{caches.compile_cache_key(args.service.image, args.gpu, replica)}"
    refusal = (
        f"{folder} of the claim cannot be written by user {args.service.security.run_as_user}: on the node, chown "
        "the folder cache.path, with all that is in it, to security.runAsUser."
    )
    claim = k8s.core.v1.VolumeMountArgs(name="cache", mount_path="/models")
    made = f'mkdir -p "{folder}" && test -w "{folder}"'
    return check_container(args, "compile-cache-folder", made, refusal, claim)


def init_containers(args: VllmServerArgs, replica: int) -> list[k8s.core.v1.ContainerArgs]:
    """What must hold before the engine starts."""
    service = args.service
    owned = service.security.run_as_user is not None and not can_change_group(service)
    return [
        *([compile_folder_container(args, replica)] if owned else []),
        *([seeded_container(args)] if service.cache.seed.enabled else []),
    ]


def pod_claims(gpu_template: pulumi.Input[str] | None) -> list[k8s.core.v1.PodResourceClaimArgs] | None:
    """The pod's claim of devices, made from the template of that name; ``None`` with a device plugin."""
    if gpu_template is None:
        return None
    return [k8s.core.v1.PodResourceClaimArgs(name=GPU_CLAIM, resource_claim_template_name=gpu_template)]


def pod_spec(
    args: VllmServerArgs, replica: int, service_account: pulumi.Input[str], gpu_template: pulumi.Input[str] | None
) -> k8s.core.v1.PodSpecArgs:
    """One replica on a node of its pool, pinned where the pool pins."""
    pinned = placement.pinned_labels(args.pool, args.service, replica)
    shared_memory = k8s.core.v1.EmptyDirVolumeSourceArgs(medium="Memory", size_limit=args.shared_memory)
    return k8s.core.v1.PodSpecArgs(
        service_account_name=service_account,
        automount_service_account_token=False,
        # A Service called `vllm` would otherwise set VLLM_PORT to an address (vllm#34199).
        enable_service_links=False,
        runtime_class_name=placement.runtime_class(args.pool, args.flavour),
        node_selector=pod.node_selector(args.pool, pinned),
        tolerations=pod.tolerations(args.pool),
        termination_grace_period_seconds=args.clocks.stop_seconds,
        security_context=pod.pod_security(args.service.security, fs_group=can_change_group(args.service)),
        resource_claims=pod_claims(gpu_template),
        init_containers=init_containers(args, replica),
        containers=[server_container(args, replica)],
        volumes=[
            claim_volume(args.replicas[replica].claim_name),
            k8s.core.v1.VolumeArgs(name="shm", empty_dir=shared_memory),
            pod.scratch_volume("scratch", "2Gi"),
            pod.scratch_volume("tmp", "2Gi"),
        ],
    )


def deployment_spec(
    args: VllmServerArgs, replica: int, service_account: pulumi.Input[str], gpu_template: pulumi.Input[str] | None
) -> k8s.apps.v1.DeploymentSpecArgs:
    """One replica that is stopped before its successor starts: both would need the same card, or the same RAM."""
    selector = naming.selector_labels(args.name, COMPONENT, replica)
    labels = {**naming.component_labels(args.stack, args.name, COMPONENT), naming.REPLICA_LABEL: str(replica)}
    return k8s.apps.v1.DeploymentSpecArgs(
        replicas=1,
        strategy=k8s.apps.v1.DeploymentStrategyArgs(type="Recreate"),
        progress_deadline_seconds=args.clocks.progress_deadline_seconds,
        revision_history_limit=3,
        selector=k8s.meta.v1.LabelSelectorArgs(match_labels=selector),
        template=k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=labels),
            spec=pod_spec(args, replica, service_account, gpu_template),
        ),
    )


def service_spec(args: VllmServerArgs) -> k8s.core.v1.ServiceSpecArgs:
    """All replicas of the service behind one name; no version among its labels."""
    exposure = args.service.exposure
    return k8s.core.v1.ServiceSpecArgs(
        type=exposure.type,
        # A client's own address must reach the NetworkPolicy that lists it, and not the node's in its place:
        # https://kubernetes.io/docs/tutorials/services/source-ip/
        external_traffic_policy=None if exposure.type == "ClusterIP" else "Local",
        selector=naming.selector_labels(args.name, COMPONENT),
        ports=[
            k8s.core.v1.ServicePortArgs(
                name=naming.HTTP_PORT, port=exposure.port, target_port=naming.HTTP_PORT, protocol="TCP"
            )
        ],
    )


def disruption_budget_spec(args: VllmServerArgs) -> k8s.policy.v1.PodDisruptionBudgetSpecArgs:
    """A drain may take one replica while another serves, and never waits for one that is not ready anyway."""
    selector = naming.selector_labels(args.name, COMPONENT)
    return k8s.policy.v1.PodDisruptionBudgetSpecArgs(
        min_available=1,
        # https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy
        unhealthy_pod_eviction_policy="AlwaysAllow",
        selector=k8s.meta.v1.LabelSelectorArgs(match_labels=selector),
    )


def network_policy_spec(args: VllmServerArgs) -> k8s.networking.v1.NetworkPolicySpecArgs:
    """Who may call: the own namespace and whom the stack lists. An offline server calls nobody."""
    allowed = args.service.exposure.allow_from
    callers = [k8s.networking.v1.NetworkPolicyPeerArgs(pod_selector=k8s.meta.v1.LabelSelectorArgs())]
    callers += [
        k8s.networking.v1.NetworkPolicyPeerArgs(
            namespace_selector=k8s.meta.v1.LabelSelectorArgs(match_labels={"kubernetes.io/metadata.name": namespace})
        )
        for namespace in allowed.namespaces
    ]
    callers += [
        k8s.networking.v1.NetworkPolicyPeerArgs(ip_block=k8s.networking.v1.IPBlockArgs(cidr=cidr))
        for cidr in allowed.cidrs
    ]
    reaches_out = not args.service.offline or args.service.engine.otlp_traces_endpoint is not None
    return k8s.networking.v1.NetworkPolicySpecArgs(
        pod_selector=k8s.meta.v1.LabelSelectorArgs(match_labels=naming.selector_labels(args.name, COMPONENT)),
        policy_types=["Ingress", "Egress"],
        ingress=[
            k8s.networking.v1.NetworkPolicyIngressRuleArgs(
                from_=callers, ports=[k8s.networking.v1.NetworkPolicyPortArgs(port=naming.HTTP_PORT, protocol="TCP")]
            )
        ],
        egress=[k8s.networking.v1.NetworkPolicyEgressRuleArgs()] if reaches_out else [],
    )


class VllmServer(pulumi.ComponentResource):
    """A vLLM service: its server and its address."""

    address: pulumi.Output[str]
    """URL of the OpenAI-compatible API inside the cluster."""

    def __init__(self, name: str, args: VllmServerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:VllmServer", name, None, opts)
        self._name, self._args = name, args
        account = k8s.core.v1.ServiceAccount(
            f"{name}-service-account",
            metadata=self._metadata(args.name),
            automount_service_account_token=False,
            opts=pulumi.ResourceOptions(parent=self),
        )
        policy = k8s.networking.v1.NetworkPolicy(
            f"{name}-network-policy",
            metadata=self._metadata(args.name),
            spec=network_policy_spec(args),
            opts=pulumi.ResourceOptions(parent=self),
        )
        first = self._deployments(account.metadata.name, policy)
        if len(args.replicas) > 1:
            self._disruption_budget()
        service = self._service(first)
        self.address = pulumi.Output.format(
            "http://{0}.{1}.svc:{2}/v1", service.metadata.name, service.metadata.namespace, args.service.exposure.port
        )
        self.register_outputs({"address": self.address})

    def _deployments(
        self, service_account: pulumi.Input[str], policy: k8s.networking.v1.NetworkPolicy
    ) -> k8s.apps.v1.Deployment:
        """One Deployment for each replica, each after the one before; the first of them."""
        gpu_template = self._claim_template() if claims_devices(self._args.pool) else None
        timeout = f"{self._args.clocks.deployment_timeout_seconds}s"
        made: list[k8s.apps.v1.Deployment] = []
        for number, replica in enumerate(self._args.replicas):
            deployment = k8s.apps.v1.Deployment(
                f"{self._name}-deployment-{number}",
                metadata=self._metadata(naming.server_name(self._args.name, number), ROLLED_OUT),
                spec=deployment_spec(self._args, number, service_account, gpu_template),
                opts=pulumi.ResourceOptions(
                    parent=self,
                    depends_on=[policy, *replica.after, *made[-1:]],
                    custom_timeouts=pulumi.CustomTimeouts(create=timeout, update=timeout),
                    hooks=replica.hooks,
                ),
            )
            made.append(deployment)
        return made[0]

    def _claim_template(self) -> pulumi.Output[str]:
        """The template of every pod's claim of its GPUs."""
        return device_claims.claim_template(
            f"{self._name}-gpus",
            device_claims.DeviceClaim(GPU_CLAIM, self._args.pool.device_class, self._args.service.gpus),
            self._args.kubernetes_minor,
            k8s.meta.v1.ObjectMetaArgs(namespace=self._args.namespace, labels=self._labels()),
            parent=self,
        )

    def _disruption_budget(self) -> None:
        k8s.policy.v1.PodDisruptionBudget(
            f"{self._name}-disruption-budget",
            metadata=self._metadata(self._args.name),
            spec=disruption_budget_spec(self._args),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _service(self, first: k8s.apps.v1.Deployment) -> k8s.core.v1.Service:
        """The address, given out as soon as one replica is there to answer."""
        timeout = f"{self._args.clocks.service_timeout_seconds}s"
        address = naming.service_name(self._args.name, self._args.service)
        return k8s.core.v1.Service(
            # Of the object's own name: under a renamed YAML key it would be made, then deleted as the old key's.
            f"{address}-service",
            metadata=self._metadata(address, dict(self._args.service_annotations) or None),
            spec=service_spec(self._args),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[first],
                custom_timeouts=pulumi.CustomTimeouts(create=timeout, update=timeout),
            ),
        )

    def _metadata(self, name: str, annotations: Mapping[str, str] | None = None) -> k8s.meta.v1.ObjectMetaArgs:
        return k8s.meta.v1.ObjectMetaArgs(
            name=name, namespace=self._args.namespace, labels=self._labels(), annotations=annotations
        )

    def _labels(self) -> dict[str, str]:
        return naming.component_labels(self._args.stack, self._args.name, COMPONENT)
