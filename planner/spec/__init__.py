"""What a person writes in a stack file, as typed, strict, frozen models. Imports pydantic only."""

from planner.spec.aws import EksClusterSpec, EksNodeGroupSpec
from planner.spec.base import Spec, gibibytes, quantity
from planner.spec.cache import (
    CacheSpec,
    ExistingClaimCache,
    HostPathCache,
    OwnStorageClassCache,
    ProxySpec,
    SeedSpec,
    StorageClassCache,
)
from planner.spec.cluster import ClusterSpec
from planner.spec.engine import EngineSpec
from planner.spec.model import ImageSpec, ModelSpec
from planner.spec.nodes import CPU, DeclaredGpuSpec, PoolSpec, PrePullSpec, RatesSpec, TaintSpec
from planner.spec.service import (
    AllowFromSpec,
    ExposureSpec,
    OverridesSpec,
    ResourcesSpec,
    SecuritySpec,
    ServiceSpec,
    StopSpec,
    WorkloadSpec,
)

__all__ = [
    "CPU",
    "AllowFromSpec",
    "CacheSpec",
    "ClusterSpec",
    "DeclaredGpuSpec",
    "EksClusterSpec",
    "EksNodeGroupSpec",
    "EngineSpec",
    "ExistingClaimCache",
    "ExposureSpec",
    "HostPathCache",
    "ImageSpec",
    "ModelSpec",
    "OverridesSpec",
    "OwnStorageClassCache",
    "PoolSpec",
    "PrePullSpec",
    "ProxySpec",
    "RatesSpec",
    "ResourcesSpec",
    "SecuritySpec",
    "SeedSpec",
    "ServiceSpec",
    "Spec",
    "StopSpec",
    "StorageClassCache",
    "TaintSpec",
    "WorkloadSpec",
    "gibibytes",
    "quantity",
]
