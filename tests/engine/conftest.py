"""One simulated cluster for the whole run; in it a namespace, a node and a backend for each test.

The real Pulumi engine, Kubernetes provider, API server, controllers and scheduler; kwok plays nodes and
pods. Most tests take half a minute to two minutes, of which an `up` is 15 to 40 s (10 s of it the
provider's wait for the Service); the failed start waits four minutes for its deadline. All of them
with `-n 2` on two cores: 20 to 30 minutes. A run that is killed leaves its cluster: its processes run
from the folder `engine/cluster` below pytest's temporary folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sim import tools
from sim.cluster import Cluster
from tests.engine.driver import Stack, prepared_stacks

NewStack = Callable[[str], Stack]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str, worker_id: str) -> Iterator[Cluster]:
    """The cluster of this run, shared by all workers; the last one that leaves takes it down."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "engine"
    shared.mkdir(exist_ok=True)
    one = Cluster(f"engine-{testrun_uid[:8]}", shared / "cluster")
    with _users(shared) as users:
        one.up()
        users.append(worker_id)
    try:
        yield one
    finally:
        with _users(shared) as users:
            users.remove(worker_id)
            if not users:
                one.down()


@contextmanager
def _users(shared: Path) -> Iterator[list[str]]:
    """The workers that use the cluster, for one of them at a time."""
    with tools.only_one(shared / "lock"):
        file = shared / "users.json"
        users: list[str] = json.loads(file.read_text()) if file.exists() else []
        yield users
        file.write_text(json.dumps(users))


@pytest.fixture
def new_stack(cluster: Cluster, tmp_path: Path) -> Iterator[NewStack]:
    """Makes a stack that is not deployed; its name is that of its namespace."""
    with prepared_stacks(lambda name: Stack(cluster, tmp_path / name, name)) as new:
        yield new


@pytest.fixture(scope="module")
def shared_stack(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[NewStack]:
    """The same for all tests of a module, which must leave the stack as it is."""
    folder = tmp_path_factory.mktemp("stacks")
    with prepared_stacks(lambda name: Stack(cluster, folder / name, f"{name}-{worker_id}")) as new:
        yield new
