"""A place that a server cannot write: the start fails, and the message names the field that mends it."""

from __future__ import annotations

import pytest

from sim import vllm_cpu
from sim.real_node import settings
from sim.vllm_cpu.mirror import mirror
from tests.e2e.conftest import NewNodeStack
from tests.e2e.ledger import Prove

pytestmark = pytest.mark.e2e


@pytest.mark.usefixtures("vllm_image")
def test_an_unwritable_cache_is_named_before_a_server_starts(new_stack: NewNodeStack, prove: Prove) -> None:
    stack = new_stack("unwritable")
    hub = stack.folder / "hub"
    vllm_cpu.tiny_model(hub)
    stack.cache.chmod(0o700)
    with mirror(hub, 0, settings.GATEWAY) as endpoint:
        # The stack says that user 1000 owns the folder; it is root's.
        owner = {"services.qwen.security": {"runAsUser": 1000}, "services.qwen.cache.owner": 1000}
        stack.write({**owner, "services.qwen.cache.seed": {"endpoint": endpoint, "retries": 0}})
        answer = stack.up(fails=True)
    assert "chown the folder on the node" in answer.output, f"what to do:\n{answer.output}"
    assert not stack.find("deployment"), "no server was started on it"
    prove(
        "A cache that cannot be written is named, with what to do, before a server starts",
        "folder of root, server as user 1000",
        "`up` failed with the chown to run",
    )
