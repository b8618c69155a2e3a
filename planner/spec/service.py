"""The section ``vllm:services``: the vLLM servers of a stack."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.spec.base import DnsLabel, PositiveFloat, PositiveInt, Quantity, Spec
from planner.spec.cache import CacheSpec
from planner.spec.engine import EngineSpec
from planner.spec.model import ImageSpec, ModelSpec

EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Cidr = Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/\d{1,3}$")]


class ResourcesSpec(Spec):
    """CPU and RAM of one replica. GPU memory is not among them: see gpuMemoryUtilization."""

    cpu: Quantity | None = None
    """CPUs that are reserved. Unset: 2 and one for each of `gpus`, which is what vLLM keeps busy."""

    cpu_limit: Quantity | None = None
    """Most CPUs. Unset: no limit."""

    memory: Quantity | None = None
    """RAM that is reserved. Unset: the limit."""

    memory_limit: Quantity
    """Most RAM of the container, /dev/shm included. This is host RAM, not GPU memory; on a pool of kind `cpu`
    weights and KV cache are in it too."""

    shared_memory: Quantity | None = None
    """Size of /dev/shm, counted inside the memory limit. Unset: 8Gi, or a quarter of a smaller limit."""


class AllowFromSpec(Spec):
    """Who may call the server, besides the pods of its own namespace."""

    namespaces: tuple[DnsLabel, ...] = ()
    """Namespaces whose pods may call."""

    cidrs: tuple[Cidr, ...] = ()
    """Address ranges that may call; required when the Service is reachable from outside the cluster."""


class ExposureSpec(Spec):
    """How clients reach the server."""

    service_name: DnsLabel | None = None
    """Name of the Service, hence its DNS name. Unset: the service's key."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Kind of the Service. Anything but ClusterIP is reachable from outside and needs allowFrom.cidrs."""

    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the Service and of the container."""

    allow_from: AllowFromSpec = AllowFromSpec()
    """Who may call."""


class SecuritySpec(Spec):
    """Under which identity the server runs."""

    run_as_user: PositiveInt | None = None
    """User id of server and seed Job. Unset: the image's user. With a user the namespace can enforce
    the Pod Security level `restricted`."""

    accepted_back_doors: tuple[EnvironmentName, ...] = ()
    """Variables in `env` that add endpoints without authentication and that you accept by name, for
    example VLLM_SERVER_DEV_MODE. The Service must be ClusterIP and exposure.allowFrom must name its clients."""


class StopSpec(Spec):
    """How a server is stopped. The grace period is the sum of these and of the engine's teardown."""

    pre_stop_seconds: Annotated[int, Field(ge=0)] = 5
    """Wait before SIGTERM, so that clients learn that the pod is leaving."""

    drain_seconds: Annotated[int, Field(ge=0)] = 30
    """How long running requests may finish, where the release has --shutdown-timeout."""


class OverridesSpec(Spec):
    """Values that are computed unless they are given here. One that breaks an order is an error."""

    startup_seconds: PositiveInt | None = None
    """Window of the startup probe, seconds."""

    progress_deadline_seconds: PositiveInt | None = None
    """progressDeadlineSeconds of the Deployment."""

    update_timeout_seconds: PositiveInt | None = None
    """How long Pulumi waits for the Deployment, seconds."""

    termination_grace_period_seconds: PositiveInt | None = None
    """terminationGracePeriodSeconds of the pod."""


class WorkloadSpec(Spec):
    """What the service is for; used to say how many requests run at once."""

    typical_tokens: PositiveInt | None = None
    """Tokens of a typical request, prompt and answer together. Unset: a quarter of the context."""

    target: Literal["timeToFirstToken", "interTokenLatency"] | None = None
    """Which latency matters more."""

    requests_per_second: PositiveFloat | None = None
    """Load that one card was measured to serve within the objective."""


class ServiceSpec(Spec):
    """One vLLM service: a model, on a pool, behind one address."""

    pool: DnsLabel
    """Key of the pool in `vllm:nodes`."""

    model: ModelSpec
    """The model."""

    image: ImageSpec
    """The image of vLLM."""

    engine: EngineSpec = EngineSpec()
    """Settings of the engine."""

    gpus: PositiveInt = 1
    """GPUs of one replica. On a pool of kind `cpu`: workers of vLLM, each bound to one NUMA node."""

    replicas: PositiveInt = 1
    """Replicas, each with its own Deployment and claim, updated one after the other."""

    first_node: Annotated[int, Field(ge=0)] = 0
    """Which node of the pool replica 0 is pinned to, counted from 0, where the pool has nodeNames or an
    ordinalLabel. For several services on one pool."""

    cache: CacheSpec
    """Where weights and compile caches live."""

    resources: ResourcesSpec
    """CPU and RAM of one replica."""

    exposure: ExposureSpec = ExposureSpec()
    """How clients reach the server."""

    security: SecuritySpec = SecuritySpec()
    """Under which identity the server runs."""

    stop: StopSpec = StopSpec()
    """How a server is stopped."""

    offline: bool = True
    """Never ask the hub from the server; needs a seeded or pre-filled claim."""

    env: dict[EnvironmentName, str] = {}
    """Further environment variables of the server. No secrets: these are readable by everybody."""

    workload: WorkloadSpec = WorkloadSpec()
    """What the service is for."""

    overrides: OverridesSpec = OverridesSpec()
    """Values that are computed unless they are given here."""
