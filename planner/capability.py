"""What a card, a driver and a node must be for a release: data types, quantisation methods, code in the image.

Compute capabilities are compared as NVIDIA's integers: 8.6 is 86.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from planner.gpus import Cpu, Device, Gpu
from planner.models import ModelFacts
from planner.releases import Release, version_number
from planner.spec import ImageSpec, PoolSpec, ServiceSpec

Dtype = Literal["float16", "bfloat16", "float32"]
_DTYPES: Mapping[str, Dtype] = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
_ARCHITECTURE_IN_TAG = re.compile(r"-(?P<name>x86_64|amd64|aarch64|arm64)(?=[-.]|$)")
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Least:
    """The least compute capability that something needs.

    Below ``certain`` it is refused, from ``enough`` on it runs; between them it is not known. ``None`` for ``certain``
    means that the release has not got it (or, with ``enough`` set, that it may not have it).
    """

    certain: int | None
    enough: int | None


@cache
def capabilities() -> Mapping[str, Any]:
    """The content of ``data/capabilities.json``: requirements, each with its source."""
    document: dict[str, Any] = json.loads(
        (resources.files("planner") / "data" / "capabilities.json").read_text(encoding="utf-8")
    )
    return document


def capability_number(gpu: Gpu) -> int:
    """A card's compute capability as one number: 8.6 is 86."""
    major, minor = gpu.compute_capability
    return 10 * major + minor


def capability_text(number: int) -> str:
    """86 as ``"8.6"``."""
    return f"{number // 10}.{number % 10}"


def asked_dtype(facts: ModelFacts, service: ServiceSpec) -> Dtype | None:
    """The data type that the stack names, or the checkpoint's where it leaves the choice; ``None``: not known."""
    named = service.engine.dtype
    return _DTYPES.get(facts.dtype if named in {None, "auto"} else str(named))


def resolved_dtype(device: Device, facts: ModelFacts, service: ServiceSpec) -> Dtype | None:
    """The data type that the engine computes with (`vllm/config/model.py`: _resolve_auto_dtype).

    ``auto`` takes the checkpoint's where card and model allow it, else the card's first: a bfloat16 checkpoint becomes
    float16 on a card before Ampere, and float32 when its architecture does not take float16. A named type stays.
    """
    asked = asked_dtype(facts, service)
    if service.engine.dtype not in {None, "auto"} or asked is None:
        return asked
    allowed = [dtype for dtype in _dtypes_of(device) if dtype != "float16" or takes_float16(facts)]
    return asked if asked in allowed and asked != "float32" else allowed[0]


def _dtypes_of(device: Device) -> list[Dtype]:
    """In the order in which vLLM prefers them (`vllm/platforms`: supported_dtypes)."""
    newer = isinstance(device, Cpu) or capability_number(device) >= capabilities()["bfloat16"]["least"]
    return ["bfloat16", "float16", "float32"] if newer else ["float16", "float32"]


def takes_float16(facts: ModelFacts) -> bool:
    """Whether vLLM runs this architecture in float16; some overflow and are refused."""
    return facts.architecture not in capabilities()["float16Refused"]["architectures"]


def quantization_method(facts: ModelFacts, service: ServiceSpec) -> str | None:
    """The method that the stack names, else the checkpoint's."""
    return service.engine.quantization or facts.quantization


def known_methods() -> tuple[str, ...]:
    """Every quantisation method whose needs are known."""
    return tuple(sorted({method for entry in capabilities()["quantization"] for method in entry["methods"]}))


def nearest_method(method: str) -> str | None:
    """The known method whose name is closest."""
    close = difflib.get_close_matches(method, known_methods(), n=1, cutoff=0.6)
    return close[0] if close else None


def least_for(method: str, bits: int | None, release: Release) -> Least | None:
    """The least compute capability for a quantisation method in a release; ``None``: the method is not known."""
    entries = [entry for entry in capabilities()["quantization"] if method in entry["methods"]]
    entry = next((each for each in entries if each.get("bits", bits) == bits), None)
    if entry is None:
        return None
    lower = _at(entry["least"], release)
    upper = _at(entry.get("atMost", entry["least"]), release)
    known = [number for number in lower if number is not None]
    enough = [number for number in upper if number is not None]
    # A release between two tables of which only one has the method: whether it is there is not known.
    missing = len(known) < len(lower)
    return Least(None if missing else min(known), max(enough) if enough else None)


def image_cards(release: Release) -> tuple[frozenset[int], frozenset[int]]:
    """The compute capabilities that the image has code for: (certainly, perhaps)."""
    lists = [frozenset(cards) for cards in _at(capabilities()["imageCards"]["cards"], release)]
    return frozenset.intersection(*lists), frozenset.union(*lists)


def has_code(card: int, cards: frozenset[int]) -> bool:
    """Whether code for one of ``cards`` runs on ``card``: the same major number, a minor one that is no larger."""
    return any(code // 10 == card // 10 and code <= card for code in cards)


def _at(values: list[Any], release: Release) -> list[Any]:
    """The entries of a list by table that hold for a release: one, or those of both neighbours."""
    tables = [version_number(table) for table in capabilities()["tables"]]
    after = [index for index, table in enumerate(tables) if table >= release.number]
    if not after:
        return [values[-1]]
    index = after[0]
    return [values[index]] if tables[index] == release.number or index == 0 else [values[index - 1], values[index]]


def cuda_major(release: Release) -> str:
    """The CUDA family of the image: ``"12"`` or ``"13"``."""
    return release.cuda.split(".")[0]


def least_driver(release: Release) -> int | None:
    """The driver branch that the image's CUDA family needs; ``None``: that family is not known."""
    found: int | None = capabilities()["drivers"].get(cuda_major(release))
    return found


def driver_branch(pool: PoolSpec) -> int | None:
    """The branch of the pool's driver: ``"570.124"`` is 570."""
    return None if pool.driver is None else int(pool.driver.split(".")[0])


def older_cuda_tag(image: ImageSpec, release: Release) -> str | None:
    """The tag of the same release with an older CUDA, where official images have one."""
    entry, official = capabilities()["olderCuda"], capabilities()["armImage"]["repository"]
    plain = image.tag == f"v{release.version}"
    there = release.number >= version_number(entry["from"])
    return f"{image.tag}{entry['suffix']}" if plain and there and image.repository == official else None


def image_architecture(image: ImageSpec) -> str | None:
    """The one CPU architecture that a tag names (``v0.20.2-aarch64``); ``None``: it names none."""
    found = _ARCHITECTURE_IN_TAG.search(image.tag)
    return _ARCHITECTURES[found["name"]] if found else None


def arm_image_is_known(image: ImageSpec, release: Release) -> bool:
    """Whether the image is known to come for arm64 as well."""
    entry = capabilities()["armImage"]
    return image.repository == entry["repository"] and release.number >= version_number(entry["from"])


def unpacked_image_bytes(release: Release) -> float:
    """What the image takes on a node's disk once it is unpacked, bytes; an estimate."""
    return release.image_bytes * float(capabilities()["unpackedFactor"]["value"])


def runs_on(image: ImageSpec) -> Literal["gpu", "cpu"] | None:
    """What an official image computes on; ``None`` for an image of one's own, of which nobody knows."""
    known: Mapping[str, Literal["gpu", "cpu"]] = capabilities()["officialImages"]["repositories"]
    return known.get(image.repository.removeprefix("docker.io/"))


def host_memory_gib(facts: ModelFacts, service: ServiceSpec, shared_memory_gib: float) -> float:
    """RAM with which the weights stay in the page cache of the container, GiB; an estimate.

    Processes (API server, engine, and one worker for each GPU when there are several), the weights, /dev/shm.
    """
    processes = 2 + (service.gpus if service.gpus > 1 else 0)
    process_gib = float(capabilities()["hostMemory"]["processGib"]["value"])
    return processes * process_gib + facts.weight_bytes / 1024**3 + shared_memory_gib
