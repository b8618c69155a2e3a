"""One real vLLM for the whole run, and a real Prometheus for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim import tools
from sim.ports import free_port
from sim.traffic import Client
from tests.metrics.prometheus import Prometheus, running
from tests.metrics.server import Server, unavailable
from tests.metrics.service import discovered, rules, scrape


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server; the first test that asks for it waits for its start."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    made = Server(tmp_path_factory.mktemp("vllm"), free_port())
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def client(server: Server) -> Client:
    """Sends requests to the server."""
    return server.client


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has the rendered rules and nothing from before."""
    executable = tools.ensure(["prometheus"], report=False)["prometheus"]
    folder = tmp_path_factory.mktemp("prometheus")
    with running(executable, folder, free_port(), scrape(), rules()) as started:
        started.find([(server.port, discovered())])
        yield started
