"""The node goes down and comes back: the environment is there again, and nobody ran anything."""

from __future__ import annotations

import pytest

from sim.real_node import RealNode
from tests.e2e import clients
from tests.e2e.conftest import NewNodeStack
from tests.e2e.driver import stand_in
from tests.e2e.ledger import Prove

pytestmark = pytest.mark.e2e


def test_after_a_reboot_the_environment_comes_back_by_itself(
    new_stack: NewNodeStack, real_node: RealNode, prove: Prove
) -> None:
    stack = new_stack("reboot")
    stack.write(stand_in(READY_AFTER="5s"))
    stack.up()
    address, claim = stack.service_address(), stack.kept()
    real_node.kill()
    assert not clients.healthy(address), "the node is down"
    real_node.start()
    stack.eventually(lambda: clients.healthy(address), "the server answers again")
    restarted = "the same pod has a new container"
    stack.eventually(lambda: stack.server_status()["restartCount"] > 0, restarted)
    assert stack.kept() == claim, "volume and claim are the same objects"
    stack.preview("--expect-no-changes")
    prove(
        "After a reboot of the node the environment comes back by itself",
        "kubelet, containerd and every container killed, the node started again",
        "the Service answers; the preview has no changes",
    )
