"""VllmServer: one vLLM engine behind one address, with probes that fit its real start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_kubernetes as k8s

from components import naming, pod
from components.model_cache import can_change_group, claim_volume, pinned_node
from planner import caches
from planner.clocks import Clocks
from planner.spec import PoolSpec, ServiceSpec

COMPONENT = "server"
REPLICA = 0
HEALTH = "/health"
"""Open without an API key and free of GPU work, unlike anything below /v1."""


@dataclass(frozen=True)
class VllmServerArgs:
    """``command`` is the planned argv, ``clocks`` the planned times, ``shared_memory`` the planned
    size of /dev/shm. ``after``: what must be there before the server is touched. ``hooks``: what to do
    when the roll-out fails."""

    stack: str
    namespace: pulumi.Input[str]
    name: str
    service: ServiceSpec
    pool: PoolSpec
    gpu: str
    flavour: str
    kubernetes_minor: int
    command: Sequence[str]
    clocks: Clocks
    shared_memory: str
    cpu: str
    claim_name: str
    api_key: k8s.core.v1.Secret | None = None
    hf_token: k8s.core.v1.Secret | None = None
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)
    hooks: pulumi.ResourceHookBinding | None = None


def probe(clocks: Clocks, period: int, failures: int) -> k8s.core.v1.ProbeArgs:
    """Ask for health every ``period`` seconds; ``failures`` in a row count. No delay: that is a guess."""
    return k8s.core.v1.ProbeArgs(
        http_get=k8s.core.v1.HTTPGetActionArgs(path=HEALTH, port="http"),
        period_seconds=period,
        timeout_seconds=clocks.probe_timeout_seconds,
        failure_threshold=failures,
    )


def environment(args: VllmServerArgs) -> list[k8s.core.v1.EnvVarArgs]:
    """Cache locations, the stack's own variables, and secrets by reference."""
    plain = {**caches.environment(args.service.offline), **args.service.env}
    secrets = []
    if args.api_key is not None:
        secrets.append(pod.secret_env("VLLM_API_KEY", args.api_key, "key"))
    if args.hf_token is not None and not args.service.offline:
        secrets.append(pod.secret_env("HF_TOKEN", args.hf_token, "token"))
    return [*pod.env_vars(plain), *secrets]


def resource_requirements(args: VllmServerArgs) -> k8s.core.v1.ResourceRequirementsArgs:
    """CPU, RAM, scratch space and GPUs of one replica."""
    wanted = args.service.resources
    requests = {"cpu": args.cpu, "memory": wanted.memory or wanted.memory_limit, "ephemeral-storage": "1Gi"}
    limits = {"memory": wanted.memory_limit, "ephemeral-storage": "6Gi", "nvidia.com/gpu": str(args.service.gpus)}
    return k8s.core.v1.ResourceRequirementsArgs(
        requests=requests, limits={**limits, **({"cpu": wanted.cpu_limit} if wanted.cpu_limit else {})}
    )


def volume_mounts(args: VllmServerArgs) -> list[k8s.core.v1.VolumeMountArgs]:
    """The claim's two sub-paths, shared memory, and the only other places that can be written."""
    key = caches.compile_cache_key(args.service.image, args.gpu, REPLICA)
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


def server_container(args: VllmServerArgs) -> k8s.core.v1.ContainerArgs:
    """The engine. Its command is given whole: images of older releases ignore a positional model."""
    clocks = args.clocks
    return k8s.core.v1.ContainerArgs(
        name="vllm",
        image=args.service.image.reference,
        image_pull_policy="IfNotPresent",
        command=list(args.command),
        env=environment(args),
        ports=[k8s.core.v1.ContainerPortArgs(name="http", container_port=args.service.exposure.port)],
        resources=resource_requirements(args),
        security_context=pod.container_security(),
        lifecycle=lifecycle(args),
        volume_mounts=volume_mounts(args),
        # Until the engine is up nothing listens, so only the startup probe may wait.
        startup_probe=probe(clocks, clocks.startup_period_seconds, clocks.startup_failure_threshold),
        liveness_probe=probe(clocks, clocks.liveness_period_seconds, clocks.liveness_failure_threshold),
        readiness_probe=probe(clocks, clocks.readiness_period_seconds, clocks.readiness_failure_threshold),
    )


def seeded_container(args: VllmServerArgs) -> k8s.core.v1.ContainerArgs:
    """Stops a start on half a model: the marker is the last thing that the download writes."""
    marker = caches.seed_marker(args.service.model)
    missing = (
        f"{marker} is missing: the model was not downloaded whole and verified. Look at the Job "
        f"{args.name}-seed-…, or set cache.seed.enabled to false for a claim that was filled by hand."
    )
    return k8s.core.v1.ContainerArgs(
        name="model-is-there",
        image=args.service.image.reference,
        image_pull_policy="IfNotPresent",
        command=["/bin/sh", "-c", f'test -s "{marker}" || {{ echo "{missing}" >&2; exit 1; }}'],
        env=[pod.NO_GPU],
        resources=k8s.core.v1.ResourceRequirementsArgs(
            requests={"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "16Mi"},
            limits={"memory": "64Mi", "ephemeral-storage": "64Mi"},
        ),
        security_context=pod.container_security(),
        volume_mounts=[weights_mount()],
    )


def pod_spec(args: VllmServerArgs, service_account: pulumi.Input[str]) -> k8s.core.v1.PodSpecArgs:
    """One replica on a GPU node of its pool."""
    shared_memory = k8s.core.v1.EmptyDirVolumeSourceArgs(medium="Memory", size_limit=args.shared_memory)
    return k8s.core.v1.PodSpecArgs(
        service_account_name=service_account,
        automount_service_account_token=False,
        # A Service called `vllm` would otherwise set VLLM_PORT to an address (vllm#34199).
        enable_service_links=False,
        runtime_class_name=pod.runtime_class(args.pool, args.flavour),
        node_selector=pod.node_selector(args.pool, pinned_node(args.service)),
        tolerations=pod.tolerations(args.pool),
        termination_grace_period_seconds=args.clocks.stop_seconds,
        security_context=pod.pod_security(args.service.security, fs_group=can_change_group(args.service)),
        init_containers=[seeded_container(args)] if args.service.cache.seed.enabled else [],
        containers=[server_container(args)],
        volumes=[
            claim_volume(args.claim_name),
            k8s.core.v1.VolumeArgs(name="shm", empty_dir=shared_memory),
            pod.scratch_volume("scratch", "2Gi"),
            pod.scratch_volume("tmp", "2Gi"),
        ],
    )


def deployment_spec(args: VllmServerArgs, service_account: pulumi.Input[str]) -> k8s.apps.v1.DeploymentSpecArgs:
    """One replica that is stopped before its successor starts: both would need the same card."""
    selector = naming.selector_labels(args.name, COMPONENT, REPLICA)
    labels = {**naming.component_labels(args.stack, args.name, COMPONENT), naming.REPLICA_LABEL: str(REPLICA)}
    return k8s.apps.v1.DeploymentSpecArgs(
        replicas=1,
        strategy=k8s.apps.v1.DeploymentStrategyArgs(type="Recreate"),
        progress_deadline_seconds=args.clocks.progress_deadline_seconds,
        revision_history_limit=3,
        selector=k8s.meta.v1.LabelSelectorArgs(match_labels=selector),
        template=k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=labels), spec=pod_spec(args, service_account)
        ),
    )


def service_spec(args: VllmServerArgs) -> k8s.core.v1.ServiceSpecArgs:
    """All replicas of the service behind one name; no version among its labels."""
    exposure = args.service.exposure
    return k8s.core.v1.ServiceSpecArgs(
        type=exposure.type,
        selector=naming.selector_labels(args.name, COMPONENT),
        ports=[k8s.core.v1.ServicePortArgs(name="http", port=exposure.port, target_port="http", protocol="TCP")],
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
                from_=callers, ports=[k8s.networking.v1.NetworkPolicyPortArgs(port="http", protocol="TCP")]
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
        account = k8s.core.v1.ServiceAccount(
            f"{name}-service-account",
            metadata=self._metadata(args, args.name),
            automount_service_account_token=False,
            opts=pulumi.ResourceOptions(parent=self),
        )
        policy = k8s.networking.v1.NetworkPolicy(
            f"{name}-network-policy",
            metadata=self._metadata(args, args.name),
            spec=network_policy_spec(args),
            opts=pulumi.ResourceOptions(parent=self),
        )
        timeout = f"{args.clocks.deployment_timeout_seconds}s"
        deployment = k8s.apps.v1.Deployment(
            f"{name}-deployment-{REPLICA}",
            metadata=self._metadata(args, naming.server_name(args.name, REPLICA)),
            spec=deployment_spec(args, account.metadata.name),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[policy, *args.after],
                custom_timeouts=pulumi.CustomTimeouts(create=timeout, update=timeout),
                hooks=args.hooks,
            ),
        )
        service_timeout = f"{args.clocks.service_timeout_seconds}s"
        service = k8s.core.v1.Service(
            f"{name}-service",
            metadata=self._metadata(args, naming.service_name(args.name, args.service)),
            spec=service_spec(args),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[deployment],
                custom_timeouts=pulumi.CustomTimeouts(create=service_timeout, update=service_timeout),
            ),
        )
        self.address = pulumi.Output.format(
            "http://{0}.{1}.svc:{2}/v1", service.metadata.name, service.metadata.namespace, args.service.exposure.port
        )
        self.register_outputs({"address": self.address})

    @staticmethod
    def _metadata(args: VllmServerArgs, name: str) -> k8s.meta.v1.ObjectMetaArgs:
        return k8s.meta.v1.ObjectMetaArgs(
            name=name,
            namespace=args.namespace,
            labels=naming.component_labels(args.stack, args.name, COMPONENT),
        )
