"""The section ``vllm:nodes``: the pools of nodes that services run on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.spec.aws import EksNodeGroupSpec
from planner.spec.base import PositiveFloat, PositiveInt, Quantity, Spec

CPU = "cpu"
"""What ``gpu`` of a pool says whose nodes compute on their CPUs and have no card."""

NodeName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=63)]
"""Value of a node's label kubernetes.io/hostname."""
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$")
]


class TaintSpec(Spec):
    """A taint that the nodes of the pool carry."""

    key: Annotated[str, Field(min_length=1)]
    """Key of the taint, for example nvidia.com/gpu."""

    value: str = ""
    """Value of the taint; what we place there tolerates any value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """What the taint does to a pod that does not tolerate it."""


class DeclaredGpuSpec(Spec):
    """A GPU that the catalogue does not know."""

    total_mib: PositiveInt
    """Total memory as nvidia-smi prints it, MiB."""

    usable_mib: PositiveInt | None = None
    """Memory that CUDA can use (torch.cuda.mem_get_info), MiB. Unset: estimated from the total."""

    multiprocessors: PositiveInt
    """Number of streaming multiprocessors (SMs)."""

    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    """CUDA compute capability, quoted: "8.6"."""

    memory_bandwidth: PositiveFloat
    """Memory bandwidth, GB/s."""


class RatesSpec(Spec):
    """How fast bytes reach this pool; every start-up figure is computed from these."""

    registry_mb_per_second: PositiveFloat = 50.0
    """Pulling and unpacking an image, MB/s (10^6 bytes). Seen: 5.8 in a home network, 57 in a data centre."""

    hub_mb_per_second: PositiveFloat = 80.0
    """Downloading weights from the hub, MB/s."""

    disk_mb_per_second: PositiveFloat = 500.0
    """Reading weights from the volume of the cache when they are not in the page cache, MB/s."""


class PrePullSpec(Spec):
    """How the image gets onto the nodes before the workload is touched."""

    await_ready: Annotated[bool, Field(alias="await")] = True
    """Wait until every node of the pool has the image before a server is changed. Set false while a
    node of the pool is down for long: its pull then happens when it comes back."""

    concurrent_nodes: PositiveInt | None = None
    """How many nodes can pull at the full registry rate at once. Unset: all of them."""


class PoolSpec(Spec):
    """A pool: nodes of one kind, with one GPU product or with none."""

    gpu: Annotated[str, Field(min_length=1)]
    """GPU product from the catalogue (`vllm-infra gpus` lists it), for example rtx-3060-12gb. `cpu`: the
    nodes have no card, and vLLM computes on their CPUs (image vllm/vllm-openai-cpu)."""

    declared_gpu: DeclaredGpuSpec | None = None
    """The figures of a GPU that the catalogue does not know; `gpu` is then its name."""

    gpus_per_node: PositiveInt = 1
    """Physical GPUs in each node. Time-sliced copies do not count: they share one memory. In a pool of kind
    `cpu`: how many workers of vLLM fit on a node side by side, which is one for each replica with `gpus: 1`."""

    nodes: PositiveInt = 1
    """Number of nodes in the pool."""

    allocation: Literal["devicePlugin", "dra"] = "devicePlugin"
    """How a pod is given a GPU: `devicePlugin` asks for nvidia.com/gpu, `dra` (dynamic resource
    allocation, Kubernetes 1.32 or newer with a DRA driver) claims a device of a device class."""

    device_class: Annotated[str, Field(min_length=1)] = "gpu.nvidia.com"
    """DeviceClass that a claim names with `allocation: dra`. The default is the one of NVIDIA's DRA driver."""

    selector: Annotated[dict[str, str], Field(min_length=1)]
    """Node labels that select exactly the nodes of this pool."""

    node_names: tuple[NodeName, ...] = ()
    """The nodes by their label kubernetes.io/hostname, in the order in which replicas are pinned to them:
    replica i runs on the i-th, and again from the first when there are more replicas than nodes. Needed
    for several replicas whose volumes stay on the node where their first pod ran."""

    ordinal_label: LabelKey | None = None
    """In place of nodeNames: a node label whose values are 0, 1, 2, …; replica i runs on the node with i.
    For nodes whose names change."""

    taints: tuple[TaintSpec, ...] = ()
    """Taints that the nodes carry; everything that must run there tolerates them."""

    runtime_class: str | None = None
    """RuntimeClass of GPU pods. Unset: `nvidia` on k3s and microk8s, none elsewhere."""

    driver: Annotated[str, Field(pattern=r"^\d{3}(\.\d+)*$")] | None = None
    """NVIDIA driver version on the nodes, quoted: "580.82". Unset: the CUDA check is a warning."""

    architecture: Literal["amd64", "arm64"] = "amd64"
    """CPU architecture of the nodes."""

    cpus: PositiveInt
    """CPU threads in each node."""

    memory: Quantity
    """RAM in each node, for example 32Gi."""

    disk: Quantity | None = None
    """Disk of each node for images and ephemeral storage, for example 200Gi. Unset: not checked."""

    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of one node, $ per hour. Unset: no cost is shown."""

    image_delivery: Literal["daemonSet", "bakedImage", "snapshot", "none"] = "daemonSet"
    """How the image gets onto the nodes: `daemonSet` pulls it before a server is touched; `bakedImage`
    builds an AMI that has it, and `snapshot` starts Bottlerocket's data volume from a snapshot that has
    it (both on EKS); `none` leaves it to the kubelet, and every update then waits for the pull."""

    pre_pull: PrePullSpec = PrePullSpec()
    """Details of `imageDelivery: daemonSet`."""

    rates: RatesSpec = RatesSpec()
    """How fast bytes reach this pool."""

    measurements: Annotated[str, Field(min_length=1)] | None = None
    """File beside the stack file with rates that were measured here (`vllm-infra cold-start --write`).
    They take the place of the assumed rates; what `rates` says wins over them."""

    eks: EksNodeGroupSpec | None = None
    """The managed node group that this stack makes for the pool, with `kind: eks` in `vllm:cluster`.
    Unset: the nodes are there already."""

    @property
    def kind(self) -> Literal["gpu", "cpu"]:
        """What its nodes compute on."""
        return "cpu" if self.gpu == CPU else "gpu"
