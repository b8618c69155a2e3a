"""What `make up REAL=1` adds to `make up`: a real node, the image on it, and a hub that has the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ruamel.yaml import YAML

from sim import demo, vllm_cpu
from sim.cluster import Cluster
from sim.real_node import RealNode, settings
from sim.vllm_cpu.mirror import mirror

HUB_PORT = 8900
"""With the address of the node's bridge, it is what stacks/Pulumi.demo-cpu.yaml names as `seed.endpoint`."""
_FOLDERS = "made-folders.json"


@contextmanager
def prepared(cluster: Cluster, stack: str) -> Iterator[RealNode]:
    """The real node with the image that ``stack`` names; the hub's mirror answers while the block runs.

    Raises:
        NodeError, ToolError: this machine cannot run it, or a part could not be made; the message says which.
        ClusterError: there is no such stack.
    """
    node = RealNode(cluster)
    node.up()
    image = vllm_cpu.image()
    node.import_image(image.archive, image.reference)
    _make_cache_folders(cluster, stack)
    hub = cluster.state / "hub"
    vllm_cpu.tiny_model(hub)
    with mirror(hub, HUB_PORT, settings.GATEWAY):
        yield node


def _make_cache_folders(cluster: Cluster, stack: str) -> None:
    """The folders of the node that the stack's claims are: a person makes them by hand."""
    content = YAML(typ="safe", pure=True).load(demo.stack_file(stack))
    services = content["config"]["vllm:services"].values()
    for folder in (Path(one["cache"]["path"]) for one in services if one["cache"]["kind"] == "hostPath"):
        missing = [part for part in (*reversed(folder.parents), folder) if not part.exists()]
        if missing:
            (cluster.state / _FOLDERS).write_text(json.dumps([*map(str, made_folders(cluster)), str(missing[0])]))
            folder.mkdir(parents=True)


def made_folders(cluster: Cluster) -> list[Path]:
    """The cache folders that were made for this cluster's demo, and end with it."""
    file = cluster.state / _FOLDERS
    return [Path(folder) for folder in json.loads(file.read_text())] if file.is_file() else []


def remove(folders: list[Path]) -> None:
    """Delete what :func:`prepared` made outside the state folder; a folder that was there before stays."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
