"""Write planner/data/instances.json from EC2's own answers about instance types and where they are offered.

    python -m scripts.make_instance_data ANSWERS PRICES

ANSWERS is a folder with instance_types.json.gz (DescribeInstanceTypes by type) and
instance_type_offerings/availability-zone-id/REGION.json.gz (DescribeInstanceTypeOfferings by zone id): moto ships
both below moto/ec2/resources. PRICES is a file of lines with "TYPE": DOLLARS pairs and the date on which they were
generated, as Karpenter keeps one for each region (pkg/providers/pricing/zz_generated.pricing_aws.go).
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "planner" / "data" / "instances.json"

CATALOGUE_NAMES = {
    ("T4", 16384): "t4",
    ("A10G", 22888): "a10g",
    ("L4", 22888): "l4",
    ("L40S", 45776): "l40s",
    ("A100", 40960): "a100-40gb",
    ("A100", 81920): "a100-80gb",
    ("H100", 81920): "h100",
    ("H200", 144384): "h200",
    ("RTX PRO Server 6000", 98304): "rtx-pro-6000",
    ("B200", 183359): "b200",
}
"""GPU of planner/data/gpus.json by EC2's name and memory in MiB, where the catalogue has it."""

MINIMUM_DRIVERS = {"g7": 595}
"""Instance families that the usual driver does not know: g7 has cards of 2026 (EKS guide, accelerated AMIs)."""


def unzipped(path: Path) -> Any:
    """The JSON in a gzip file."""
    return json.loads(gzip.decompress(path.read_bytes()))


def zones(folder: Path) -> dict[str, dict[str, str]]:
    """Zone ids by type, short: {"g6e.xlarge": {"use1": "1246"}} is use1-az1, use1-az2, use1-az4, use1-az6."""
    offered: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.json.gz")):
        for offer in unzipped(path):
            region, _, number = offer["Location"].rpartition("-az")
            if not number.isdigit():  # local and wavelength zones have no managed node groups with GPUs
                continue
            known = offered.setdefault(offer["InstanceType"], {})
            known[region] = "".join(sorted({*known.get(region, ""), number}))
    return offered


def compact(name: str, answer: dict[str, Any], offered: dict[str, str], price: float | None) -> dict[str, Any]:
    """What the planner needs of one type."""
    (gpu,) = answer["GpuInfo"]["Gpus"]
    throughput = answer["EbsInfo"]["EbsOptimizedInfo"]
    entry: dict[str, Any] = {
        "vcpus": answer["VCpuInfo"]["DefaultVCpus"],
        "memoryMib": answer["MemoryInfo"]["SizeInMiB"],
        "architecture": answer["ProcessorInfo"]["SupportedArchitectures"][0],
        "gpus": gpu["Count"],
        "gpuName": gpu["Name"],
        "gpuMib": gpu["MemoryInfo"]["SizeInMiB"],
        "gpu": CATALOGUE_NAMES.get((gpu["Name"], gpu["MemoryInfo"]["SizeInMiB"])),
        "network": answer["NetworkInfo"]["NetworkPerformance"],
        "ebsMbPerSecond": [throughput["BaselineThroughputInMBps"], throughput["MaximumThroughputInMBps"]],
        "localDiskGb": answer.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        "zones": offered,
        "dollarsPerHour": price,
    }
    driver = MINIMUM_DRIVERS.get(name.split(".", maxsplit=1)[0])
    return entry if driver is None else {**entry, "minimumDriver": driver}


def nvidia_gpus(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The NVIDIA cards of a type."""
    return [gpu for gpu in answer.get("GpuInfo", {}).get("Gpus", []) if gpu["Manufacturer"] == "NVIDIA"]


def is_whole_nvidia(answer: dict[str, Any]) -> bool:
    """Whether the type has whole NVIDIA cards: vLLM plans with the memory of a whole one."""
    return any(gpu.get("GpuPartitionSize", 1.0) == 1.0 for gpu in nvidia_gpus(answer))


def family_names(types: Iterable[str]) -> set[str]:
    """``g6e`` of ``g6e.xlarge``, and so on."""
    return {name.split(".")[0] for name in types}


def main(answers: Path, price_file: Path) -> None:
    """Write the table."""
    types = unzipped(answers / "instance_types.json.gz")
    offered = zones(answers / "instance_type_offerings" / "availability-zone-id")
    text = price_file.read_text(encoding="utf-8")
    prices = {name: float(value) for name, value in re.findall(r'"([a-z0-9-]+\.[a-z0-9-]+)":\s*([0-9.]+)', text)}
    date, region = re.findall(r"generated at (\d{4}-\d\d-\d\d)\S* for (\S+)", text)[0]
    gpu_types = sorted(name for name, answer in types.items() if is_whole_nvidia(answer))
    with_nvidia = [name for name, answer in types.items() if nvidia_gpus(answer)]
    document = {
        "source": "EC2 DescribeInstanceTypes and DescribeInstanceTypeOfferings as recorded by moto 5.2.5",
        "priceSource": "AWS price list, on demand, Linux, as recorded by Karpenter (zz_generated.pricing_aws.go)",
        "priceRegion": region,
        "priceDate": date,
        "otherFamilies": sorted(family_names(types) - family_names(with_nvidia)),
        "instances": {name: compact(name, types[name], offered.get(name, {}), prices.get(name)) for name in gpu_types},
    }
    TARGET.write_text(text_of(document), encoding="utf-8")


def text_of(document: dict[str, Any]) -> str:
    """JSON with one line for each type: a diff of the table then says which type changed."""
    instances = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in document["instances"].items()
    )
    head = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in document.items() if key != "instances"]
    return "\n".join(["{", *head, '  "instances": {', instances, "  }", "}"]) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
