"""A stack of the program on the real node: the shipped `demo-cpu` in a namespace and a cache folder of its own."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.real_node import RealNode
from tests.engine.driver import Object, Stack

PATIENCE_SECONDS = 900
"""For what a busy machine may need longest: the start of a real vLLM, twice."""
STAND_IN = "docker.io/pulumi-vllm/stand-in"
STAND_IN_TAGS = ("v0.32.0", "v0.32.0-next")
"""Two names of one image, so that a stack can change its image."""


@dataclass
class NodeStack(Stack):
    """A stack whose pods run for real; its weights and compile caches lie in ``cache``."""

    shipped: str = "demo-cpu"
    real_node: RealNode = field(kw_only=True)

    @property
    def cache(self) -> Path:
        """The folder of the node that the claim is."""
        return self.folder / "cache"

    def place(self) -> Object:
        """Nothing selects a node of its own: there is one, and its folder is the cache."""
        return {"services.qwen.cache.path": str(self.cache)}

    def make_node(self) -> None:
        """The real node is there already; the folder must be."""
        self.cache.mkdir(exist_ok=True)

    def clear(self) -> None:
        """Remove the stack's objects, and wait until its containers are gone: they hold the CPU and the folder."""
        super().clear()
        self.eventually(lambda: not self.find("pod"), "the pods of the stack are gone")
        shutil.rmtree(self.cache, ignore_errors=True)

    def service_address(self) -> tuple[str, int]:
        """Host and port of the stack's Service: the node's kube-proxy makes it reachable from this machine."""
        spec = self.get("service", "qwen")["spec"]
        return spec["clusterIP"], int(spec["ports"][0]["port"])

    def log(self, pod: str, *, previous: bool = False) -> str:
        """The server's log."""
        options = ["--previous"] if previous else []
        return self.cluster.kubectl("logs", pod, "-n", self.name, "-c", "vllm", *options)

    def events(self, pod: str) -> list[tuple[str, str]]:
        """(reason, message) of each event about ``pod``, oldest first."""
        selector = f"--field-selector=involvedObject.name={pod}"
        answer = self.cluster.kubectl("get", "events", "-n", self.name, selector, "-o", "json")
        found = sorted(json.loads(answer)["items"], key=lambda one: str(one["metadata"]["creationTimestamp"]))
        return [(one["reason"], one["message"]) for one in found]

    def server_status(self) -> Object:
        """The status of the server's container."""
        return container_status(self.server_pod())

    def eventually(self, condition: Callable[[], Any], reason: str) -> Any:
        """Wait until ``condition`` holds, and return what it gave."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {reason}"
            time.sleep(0.2)
        return found


def container_status(pod: Mapping[str, Any]) -> Object:
    """The status of the container that serves, of a pod that has begun."""
    return next(dict(one) for one in pod["status"].get("containerStatuses", []) if one["name"] == "vllm")


def stand_in(changes: Mapping[str, Any] | None = None, **variables: str) -> Object:
    """The changes that make a stack's server the stand-in; ``variables`` are those of sim/tools/stand-in.

    Its image holds nothing but the server: no shell for a pre-pull or a check of the model.
    """
    return {
        "nodes.cpus.imageDelivery": "none",
        "services.qwen.image": {"repository": STAND_IN, "tag": STAND_IN_TAGS[0], "release": "0.32.0"},
        "services.qwen.cache.seed": {"enabled": False},
        "services.qwen.env": {f"STAND_IN_{name}": value for name, value in variables.items()},
        **(changes or {}),
    }
