"""Facts about EC2 instance types with NVIDIA GPUs, AMI types of EKS, and the service quotas they count against."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from planner.spec.aws import EksNodeGroupSpec, SpotCapacity

DEFAULT_AMI_TYPES = {"x86_64": "AL2023_x86_64_NVIDIA", "arm64": "AL2023_ARM_64_NVIDIA"}
KUBERNETES_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Price:
    """On-demand price of one instance, $ per hour, with the day and the list that it was read from."""

    dollars_per_hour: float
    region: str
    date: str
    source: str


@dataclass(frozen=True)
class Instance:
    """One instance type.

    ``memory_mib`` is RAM, ``gpu_mib`` the memory of one card, both MiB. ``gpu`` is its name in the GPU catalogue, where
    it is there. ``ebs_mb_per_second`` is (sustained, highest) in MB/s: the highest holds for half an hour a day on the
    smaller types. ``zone_ids`` are the zones that offer it, ``minimum_driver`` is set where the usual one is too old.
    """

    name: str
    vcpus: int
    memory_mib: int
    architecture: str
    gpus: int
    gpu: str | None
    gpu_name: str
    gpu_mib: int
    network: str
    ebs_mb_per_second: tuple[float, float]
    local_disk_gb: int
    zone_ids: frozenset[str]
    price: Price | None
    minimum_driver: int | None


@dataclass(frozen=True)
class AmiFamily:
    """What all AMI types of one family have in common. ``driver`` is the NVIDIA branch of the current release."""

    name: str
    bootstrap: Literal["nodeadm", "bottlerocket", "none"]
    root_device: str
    data_device: str | None
    device_plugin: bool
    driver: int | None
    ssm_parameter: str | None
    ended: str | None


@dataclass(frozen=True)
class AmiType:
    """One AMI type of a managed node group."""

    name: str
    family: AmiFamily
    architecture: str
    nvidia: bool


@dataclass(frozen=True)
class Quota:
    """A service quota of EC2; its unit is vCPUs."""

    name: str
    code: str


@dataclass(frozen=True)
class Chart:
    """A chart at the version that is installed unless the stack says another. ``repository``: none for an OCI chart."""

    chart: str
    repository: str | None
    version: str


@cache
def _document(name: str) -> Mapping[str, Any]:
    text = (resources.files("planner") / "data" / name).read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return MappingProxyType(document)


@cache
def instances() -> Mapping[str, Instance]:
    """Every known instance type with NVIDIA GPUs, by name."""
    entries = _document("instances.json")["instances"]
    return MappingProxyType({name: _instance(name, entry) for name, entry in entries.items()})


def _instance(name: str, entry: Mapping[str, Any]) -> Instance:
    document = _document("instances.json")
    dollars = entry["dollarsPerHour"]
    price = Price(dollars, document["priceRegion"], document["priceDate"], document["priceSource"]) if dollars else None
    sustained, highest = entry["ebsMbPerSecond"]
    return Instance(
        name=name,
        vcpus=entry["vcpus"],
        memory_mib=entry["memoryMib"],
        architecture=entry["architecture"],
        gpus=entry["gpus"],
        gpu=entry["gpu"],
        gpu_name=entry["gpuName"],
        gpu_mib=entry["gpuMib"],
        network=entry["network"],
        ebs_mb_per_second=(sustained, highest),
        local_disk_gb=entry["localDiskGb"],
        zone_ids=frozenset(f"{zone}-az{digit}" for zone, digits in entry["zones"].items() for digit in digits),
        price=price,
        minimum_driver=entry.get("minimumDriver"),
    )


def has_no_nvidia_gpu(instance_type: str) -> bool:
    """Whether a type is known to have no NVIDIA GPU. False for a type that is not known at all."""
    return instance_type.split(".", maxsplit=1)[0] in _document("instances.json")["otherFamilies"]


@cache
def ami_types() -> Mapping[str, AmiType]:
    """Every AMI type of EKS by name."""
    document = _document("ami_types.json")
    families = {
        name: AmiFamily(
            name=name,
            bootstrap=entry["bootstrap"],
            root_device=entry["rootDevice"],
            data_device=entry["dataDevice"],
            device_plugin=entry["devicePlugin"],
            driver=entry["driver"],
            ssm_parameter=entry["ssmParameter"],
            ended=document["ended"].get(name, {}).get("date"),
        )
        for name, entry in document["families"].items()
    }
    return MappingProxyType(
        {
            name: AmiType(name, families[entry["family"]], entry["architecture"], entry["nvidia"])
            for name, entry in document["amiTypes"].items()
        }
    )


def nearest_ami_type(name: str) -> str | None:
    """The AMI type whose name is closest."""
    spelled = {known.lower(): known for known in ami_types()}
    close = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return spelled[close[0]] if close else None


def architecture_of(spec: EksNodeGroupSpec) -> str:
    """CPU architecture of the group's instances as EC2 writes it; x86_64 for a type that is not known."""
    known = instances().get(spec.instance_type)
    return known.architecture if known else "x86_64"


def ami_type_of(spec: EksNodeGroupSpec) -> AmiType | None:
    """The group's AMI type: named, or the default; ``None`` for an AMI by id and for a name that is not known."""
    if spec.ami_id is not None:
        return None
    return ami_types().get(spec.ami_type or DEFAULT_AMI_TYPES[architecture_of(spec)])


def family_of(spec: EksNodeGroupSpec) -> AmiFamily | None:
    """The family of the group's AMI; an AMI by id is taken to be of the family whose bootstrap it names."""
    named = ami_type_of(spec)
    if named is not None:
        return named.family
    families = {each.family.bootstrap: each.family for each in ami_types().values() if each.nvidia}
    return families.get(spec.bootstrap) if spec.ami_id is not None and spec.bootstrap is not None else None


def quota_of(spec: EksNodeGroupSpec) -> Quota | None:
    """The quota that the group's instances count against; ``None`` where none is known, and for capacity blocks."""
    if spec.capacity.kind == "capacityBlock":
        return None
    capacity = "spot" if isinstance(spec.capacity, SpotCapacity) else "onDemand"
    for entry in _document("ami_types.json")["quotas"]:
        if entry["capacity"] == capacity and re.match(entry["families"], spec.instance_type):
            return Quota(entry["name"], entry["code"])
    return None


def chart_of(kind: Literal["devicePlugin", "draDriver"]) -> Chart:
    """The chart that makes GPUs visible."""
    entry = _document("ami_types.json")["charts"][kind]
    return Chart(entry["chart"], entry["repository"], entry["version"])


def zones_used(spec: EksNodeGroupSpec) -> tuple[str, ...]:
    """The zones in which the group's nodes can start."""
    return tuple(sorted({subnet.zone for subnet in spec.subnets if spec.zone in {None, subnet.zone}}))
