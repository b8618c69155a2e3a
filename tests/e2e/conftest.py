"""One simulated control plane and one real node for the whole run; a namespace and a backend for each test.

Root on Linux only. Half an hour on two cores once tools, environment and image are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim import stand_in, vllm_cpu
from sim.cluster import Cluster, state_folder
from sim.real_node import RealNode
from tests.e2e import ledger
from tests.e2e.driver import STAND_IN, STAND_IN_TAGS, NodeStack
from tests.engine.driver import prepared_stacks

NewNodeStack = Callable[[str], NodeStack]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the real vLLM's image can be left out by name: it is 5 GB, and its starts take minutes."""
    for item in items:
        if "vllm_image" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_vllm)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The control plane of this run; or, while tests are written, the one that E2E_CLUSTER names, left as it is."""
    kept = os.environ.get("E2E_CLUSTER")
    one = Cluster(kept, state_folder(kept)) if kept else Cluster("e2e", tmp_path_factory.mktemp("e2e") / "cluster")
    one.up()
    yield one
    if not kept:
        one.down()


@pytest.fixture(scope="session")
def real_node(cluster: Cluster) -> Iterator[RealNode]:
    """The real node of this run, with the stand-in's image."""
    node = RealNode(cluster)
    node.up()
    archive = cluster.state / "tmp" / "stand-in.tar"
    for tag in STAND_IN_TAGS:
        reference = f"{STAND_IN}:{tag}"
        stand_in.write_image(archive, reference)
        node.import_image(archive, reference)
    yield node
    if "E2E_CLUSTER" not in os.environ:
        node.down()


@pytest.fixture(scope="session")
def vllm_image(real_node: RealNode) -> str:
    """The real vLLM's image on the node: its name."""
    image = vllm_cpu.image()
    real_node.import_image(image.archive, image.reference)
    return image.reference


@pytest.fixture
def new_stack(cluster: Cluster, real_node: RealNode, tmp_path: Path) -> Iterator[NewNodeStack]:
    """Makes a stack that is not deployed; its name is that of its namespace."""
    with prepared_stacks(lambda name: NodeStack(cluster, tmp_path / name, name, real_node=real_node)) as new:
        yield new


@pytest.fixture
def prove() -> ledger.Prove:
    """Enter what a test has shown into the report, where one is made."""
    file = os.environ.get("E2E_LEDGER")

    def enter(rule: str, how: str, figure: str = "") -> None:
        if file:
            ledger.enter(Path(file), ledger.Proof(rule, how, figure))

    return enter
