"""What a pool computes on: a GPU product (memory, multiprocessors, compute capability, bandwidth), or its CPUs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from planner.spec import DeclaredGpuSpec, PoolSpec, gibibytes

CARVE_OUT_MIB = 380
"""Least memory that driver and firmware keep from CUDA, MiB: 12,288 - 11,908 on an RTX 3060 12GB."""

CARVE_OUT_SHARE = 0.014
"""Share of the total that driver and firmware keep on larger cards: 610 of 46,068 MiB on an L40S is 1.3 %."""


class UnknownGpuError(ValueError):
    """The pool names a GPU that neither the catalogue nor the pool itself describes."""


@dataclass(frozen=True)
class Gpu:
    """One GPU product.

    ``total_mib`` is what nvidia-smi prints, ``usable_mib`` what ``torch.cuda.mem_get_info`` calls the total (vLLM's
    utilisation is a share of this one), both MiB; ``memory_bandwidth`` is in GB/s (10^9 bytes). ``estimated`` is true
    when the usable memory was not observed.
    """

    name: str
    total_mib: int
    usable_mib: int
    multiprocessors: int
    compute_capability: tuple[int, int]
    memory_bandwidth: float
    estimated: bool
    source: str


@dataclass(frozen=True)
class Cpu:
    """The CPUs of a pool without cards. ``cpus`` are the threads of a node, ``memory_mib`` is its RAM."""

    name: str
    cpus: int
    memory_mib: float


Device = Gpu | Cpu
"""What a server computes on."""


def usable_estimate(total_mib: int) -> int:
    """CUDA-usable memory of a card of which only nvidia-smi's total is known, MiB."""
    return int(total_mib - max(CARVE_OUT_MIB, CARVE_OUT_SHARE * total_mib))


@cache
def catalogue() -> Mapping[str, Gpu]:
    """Every known GPU by the key that ``vllm:nodes`` uses, for example ``rtx-3060-12gb``."""
    document = json.loads((resources.files("planner") / "data" / "gpus.json").read_text(encoding="utf-8"))
    return MappingProxyType({name: _gpu(name, entry) for name, entry in document["gpus"].items()})


def _gpu(name: str, entry: Mapping[str, Any]) -> Gpu:
    usable = entry.get("usableMib")
    return Gpu(
        name=name,
        total_mib=entry["totalMib"],
        usable_mib=usable_estimate(entry["totalMib"]) if usable is None else usable,
        multiprocessors=entry["multiprocessors"],
        compute_capability=_capability(entry["computeCapability"]),
        memory_bandwidth=entry["memoryBandwidth"],
        estimated=entry["estimated"],
        source=entry["source"],
    )


def device_of(pool: PoolSpec) -> Device:
    """What the pool computes on: the node's CPUs where it has no card.

    Raises:
        UnknownGpuError: nothing describes its card.
    """
    if pool.kind == "cpu":
        return Cpu(name=pool.gpu, cpus=pool.cpus, memory_mib=gibibytes(pool.memory) * 1024)
    return gpu_of(pool)


def gpu_of(pool: PoolSpec) -> Gpu:
    """The GPU of a pool with cards: as declared there, else from the catalogue.

    Raises:
        UnknownGpuError: neither describes it; the message has the nearest names and how to declare one.
    """
    if pool.declared_gpu is not None:
        return _declared(pool.gpu, pool.declared_gpu)
    known = catalogue()
    if pool.gpu not in known:
        raise UnknownGpuError(_unknown(pool.gpu, known))
    return known[pool.gpu]


def _declared(name: str, spec: DeclaredGpuSpec) -> Gpu:
    return Gpu(
        name=name,
        total_mib=spec.total_mib,
        usable_mib=usable_estimate(spec.total_mib) if spec.usable_mib is None else spec.usable_mib,
        multiprocessors=spec.multiprocessors,
        compute_capability=_capability(spec.compute_capability),
        memory_bandwidth=spec.memory_bandwidth,
        estimated=spec.usable_mib is None,
        source="declaredGpu of the pool",
    )


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _unknown(name: str, known: Mapping[str, Gpu]) -> str:
    near = difflib.get_close_matches(name.lower().replace("_", "-").replace(" ", "-"), known, n=3, cutoff=0.4)
    offer = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}."
    return (
        f"GPU {name!r} is not in the catalogue; {offer} Another card is declared in the pool: "
        "declaredGpu: {totalMib, multiprocessors, computeCapability, memoryBandwidth, usableMib}; "
        "nodes without a card are gpu: cpu"
    )
