"""One environment: the components of a stack, wired in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_kubernetes as k8s

from components import naming
from components.image_pre_pull import ImagePrePull, ImagePrePullArgs
from components.model_cache import ModelCache, ModelCacheArgs
from components.monitoring import Monitoring, MonitoringArgs, service_annotations
from components.monitoring_names import targets_of
from components.placement import share_one_claim
from components.secrets import credential
from components.standalone_monitoring import CREDENTIAL_KEY
from components.vllm_server import ReplicaArgs, VllmServer, VllmServerArgs
from infra.answers import short_answers
from infra.config import StackConfig
from infra.config.program import StackSecrets
from infra.failed_start import explain_failed_start
from infra.preflight.monitoring import RECEIVER_SECRETS
from planner.plan import ServicePlan
from planner.spec import ClusterSpec, ServiceSpec
from planner.spec.monitoring import ActiveMonitoring, NoMonitoring, StandaloneMonitoring


class Environment:
    """The components of a stack. ``outputs`` is what the stack exports, ``servers`` the server of each service."""

    def __init__(
        self,
        stack: str,
        config: StackConfig,
        secrets: StackSecrets,
        plans: Mapping[str, ServicePlan],
        operator_present: bool,
    ) -> None:
        self._stack, self._config = stack, config
        self._provider = kubernetes_provider(config.cluster)
        self._nodes = self._create_nodes(plans)
        self._namespace = self._create_namespace()
        self._hf_token = self._credential("hf-token", "token", secrets.hf_token)
        self._api_key = self._credential("api-key", "key", secrets.api_key)
        self.servers: dict[str, VllmServer] = {}
        self.outputs = {name: self._service(plan) for name, plan in plans.items()}
        self._monitor(plans, secrets, operator_present)

    def _options(self, **options: object) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions.merge(
            pulumi.ResourceOptions(provider=self._provider, transformations=[take_over(self._config.cluster)]),
            pulumi.ResourceOptions(**options),  # type: ignore[arg-type]
        )

    def _create_nodes(self, plans: Mapping[str, ServicePlan]) -> Mapping[str, list[pulumi.Resource]]:
        """What a pod of each pool waits for; nothing where the nodes are there already."""
        reference = self._config.cluster.eks
        if reference is None:
            return {}
        from infra.eks import EksNodes  # noqa: PLC0415 - takes a second to load, which only EKS needs

        return EksNodes(self._stack, self._config, reference, plans, self._provider).ready

    def _create_namespace(self) -> k8s.core.v1.Namespace:
        name = self._config.cluster.namespace
        level = pod_security_level(self._config.services)
        return k8s.core.v1.Namespace(
            name,
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=name,
                labels={**naming.stack_labels(self._stack), "pod-security.kubernetes.io/enforce": level},
                annotations={"pulumi.com/patchFieldManager": "pulumi-vllm"},
            ),
            opts=self._options(retain_on_delete=True),
        )

    def _credential(
        self, name: str, key: str, value: pulumi.Output[str] | None, after: Sequence[pulumi.Resource] = ()
    ) -> k8s.core.v1.Secret | None:
        if value is None:
            return None
        labels, options = naming.stack_labels(self._stack), self._options(depends_on=list(after))
        return credential(name, self._namespace.metadata.name, labels, {key: value}, options)

    def _service(self, plan: ServicePlan) -> dict[str, object]:
        pre_pull = self._pre_pull(plan)
        caches = self._caches(plan, pre_pull)
        server = self._server(plan, caches, pre_pull)
        self.servers[plan.name] = server
        return {"address": server.address, **short_answers(plan)}

    def _pre_pull(self, plan: ServicePlan) -> list[pulumi.Resource]:
        nodes = self._nodes.get(plan.service.pool, [])
        if plan.pool.image_delivery != "daemonSet":
            return nodes
        args = ImagePrePullArgs(
            stack=self._stack,
            namespace=self._namespace.metadata.name,
            service=plan.name,
            pool=plan.pool,
            image=plan.service.image,
            security=plan.service.security,
            timeout_seconds=plan.clocks.pre_pull_timeout_seconds,
            after=nodes,
        )
        return [*nodes, ImagePrePull(plan.name, args, self._options())]

    def _caches(self, plan: ServicePlan, pre_pull: list[pulumi.Resource]) -> list[ModelCache]:
        """The cache of each replica. They are filled one after the other: the hub's rate is one for all."""
        made: list[ModelCache] = []
        for replica in range(1 if share_one_claim(plan.service) else plan.service.replicas):
            after = [*pre_pull, *(made[-1].ready if made else [])]
            made.append(self._cache(plan, replica, after, made[0] if made else None))
        return made

    def _cache(
        self, plan: ServicePlan, replica: int, after: list[pulumi.Resource], first: ModelCache | None
    ) -> ModelCache:
        args = ModelCacheArgs(
            stack=self._stack,
            namespace=self._namespace.metadata.name,
            namespace_name=self._config.cluster.namespace,
            name=plan.name,
            service=plan.service,
            pool=plan.pool,
            gpu=plan.gpu.name,
            replica=replica,
            seed_deadline_seconds=plan.clocks.seed_deadline_seconds,
            seed_timeout_seconds=plan.clocks.seed_timeout_seconds,
            hf_token=self._hf_token,
            seed_after=after,
            first=first,
            hooks=explain_failed_start(self._config.cluster, plan.name, plan.service.pool, replica, "download"),
        )
        # No service can be called that: a slash is in no key.
        return ModelCache(f"{plan.name}/{replica}" if replica else plan.name, args, self._options())

    def _server(self, plan: ServicePlan, caches: list[ModelCache], pre_pull: list[pulumi.Resource]) -> VllmServer:
        args = VllmServerArgs(
            stack=self._stack,
            namespace=self._namespace.metadata.name,
            name=plan.name,
            service=plan.service,
            pool=plan.pool,
            gpu=plan.gpu.name,
            flavour=self._config.cluster.flavour,
            kubernetes_minor=int(self._config.cluster.kubernetes_version.split(".")[1]),
            command=plan.argv,
            environment=plan.environment,
            clocks=plan.clocks,
            shared_memory=plan.shared_memory,
            cpu=plan.cpu,
            replicas=[
                ReplicaArgs(
                    claim_name=caches[replica % len(caches)].claim_name,
                    after=[*caches[replica % len(caches)].ready, *pre_pull],
                    hooks=explain_failed_start(self._config.cluster, plan.name, plan.service.pool, replica),
                )
                for replica in range(plan.service.replicas)
            ],
            api_key=self._api_key,
            hf_token=self._hf_token,
            service_annotations=self._scrape_annotations(plan.service),
        )
        return VllmServer(plan.name, args, self._options())

    def _scrape_annotations(self, service: ServiceSpec) -> dict[str, str]:
        spec = self._config.monitoring
        return {} if isinstance(spec, NoMonitoring) else service_annotations(spec, service.exposure.port)

    def _monitor(self, plans: Mapping[str, ServicePlan], secrets: StackSecrets, operator_present: bool) -> None:
        spec, namespace = self._config.monitoring, self._config.cluster.namespace
        if isinstance(spec, NoMonitoring):
            return
        args = MonitoringArgs(
            stack=self._stack,
            namespace=self._namespace.metadata.name,
            namespace_name=namespace,
            spec=spec,
            targets=targets_of(plans, spec, namespace),
            crds_present=operator_present,
            after=list(self.servers.values()),
            receiver_secret=self._receiver_secret(spec, secrets),
        )
        Monitoring("monitoring", args, self._options())

    def _receiver_secret(self, spec: ActiveMonitoring, secrets: StackSecrets) -> k8s.core.v1.Secret | None:
        """The credential of the receiver, where alerts are sent by us; after the servers, as all of monitoring."""
        if not isinstance(spec, StandaloneMonitoring):
            return None
        value = secrets.alerts.get(RECEIVER_SECRETS[spec.receiver.kind])
        return self._credential("alert-receiver", CREDENTIAL_KEY, value, list(self.servers.values()))


def kubernetes_provider(cluster: ClusterSpec) -> k8s.Provider:
    """The provider for exactly the context that the stack names.

    It is given the kubeconfig's path, never its content, which would land in the state; the cluster
    identifier keeps an edited kubeconfig from replacing everything (pulumi-kubernetes#4019). Objects
    that exist are taken over, since the live look-up has refused those that are not ours.
    """
    return k8s.Provider(
        "cluster",
        # An output, because the SDK would put the path that KUBECONFIG has here in the place of none: the provider
        # reads that variable itself, and a path of one machine is no change on the next.
        kubeconfig=pulumi.Output.from_input(cluster.kubeconfig),
        context=cluster.context,
        cluster_identifier=cluster.context,
        upsert_existing_objects=True,
        # Else another threshold would delete the ConfigMap that Prometheus or Grafana reads and make it again
        # (pulumi-kubernetes, provider/pkg/provider/diff.go); one that is `immutable` is replaced all the same.
        enable_config_map_mutable=True,
    )


def take_over(cluster: ClusterSpec) -> pulumi.ResourceTransformation:
    """Lets the stack's word win on what `cluster.adopt` names, wherever among the components it is made.

    Whoever made such an object still manages its fields, and another value would be refused as a conflict:
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts.
    """

    def force(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        metadata = args.props.get("metadata")
        if not isinstance(metadata, k8s.meta.v1.ObjectMetaArgs):
            return None
        if f"{args.type_.rsplit(':', maxsplit=1)[-1]}/{metadata.name}" not in cluster.adopt:
            return None
        metadata.annotations = {**(metadata.annotations or {}), "pulumi.com/patchForce": "true"}  # type: ignore[dict-item]
        return pulumi.ResourceTransformationResult({**args.props, "metadata": metadata}, args.opts)

    return force


def pod_security_level(services: Mapping[str, ServiceSpec]) -> str:
    """The strictest Pod Security level under which every pod of the stack is admitted.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/: the host's network needs
    `privileged`, a container as root needs `baseline`. A claim on a hostPath volume needs neither.
    """
    if any(service.cache.seed.enabled and service.cache.seed.host_network for service in services.values()):
        return "privileged"
    users = [service.security.run_as_user for service in services.values()]
    return "restricted" if all(user is not None for user in users) else "baseline"
