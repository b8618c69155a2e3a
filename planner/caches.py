"""Where each cache lives inside the containers, and what tells one compile cache from another.

One claim, two sub-paths: `hf` holds the weights, `compile/KEY` the compile caches of one replica.
"""

from __future__ import annotations

import re
from typing import Literal

from planner.spec import ImageSpec, ModelSpec

WEIGHTS = "/models/hf"
WEIGHTS_SUB_PATH = "hf"
COMPILE = "/models/compile"
COMPILE_SUB_PATH = "compile"
SCRATCH = "/scratch"


def compile_cache_key(image: ImageSpec, gpu: str, replica: int) -> str:
    """Sub-folder of the compile caches: image, GPU product and replica, nothing else.

    vLLM keys the entries inside by version, torch, CUDA, GPU and configuration itself. The image keeps
    an upgrade from loading artifacts that another build wrote, the replica keeps two engines from
    writing the same files before torch 2.10 made those writes atomic (NovaSky-AI/SkyRL#2138).
    """
    build = image.digest.removeprefix("sha256:")[:12] if image.digest else image.tag
    return re.sub(r"[^a-z0-9.-]+", "-", f"{build}-{gpu}-{replica}".lower())


def seed_marker(model: ModelSpec) -> str:
    """Path of the file that says that this model was downloaded whole and verified."""
    return f"{WEIGHTS}/seeded/{model.id.replace('/', '--')}@{model.revision or 'default'}.json"


CUDA_CACHES = ("FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH")
"""Variables of libraries that only a server on cards has."""


def environment(offline: bool, kind: Literal["gpu", "cpu"] = "gpu") -> dict[str, str]:
    """Variables that put every cache on the claim and everything else that is written on scratch space.

    The root file system is read-only, so each default below a home directory is moved
    (llm-d/llm-d#1430). None of them differs between pods, so none can split vLLM's compile cache.
    """
    home = f"{SCRATCH}/home"
    values = {
        "HF_HOME": WEIGHTS,
        "VLLM_CACHE_ROOT": f"{COMPILE}/vllm",
        "TRITON_CACHE_DIR": f"{COMPILE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{COMPILE}/inductor",
        "FLASHINFER_WORKSPACE_BASE": f"{COMPILE}/flashinfer",
        "CUDA_CACHE_PATH": f"{COMPILE}/cuda",
        "HOME": home,
        "USER": "vllm",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "VLLM_CONFIG_ROOT": f"{home}/.config/vllm",
    }
    if kind == "cpu":
        values = {name: value for name, value in values.items() if name not in CUDA_CACHES}
    return values | ({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if offline else {})
