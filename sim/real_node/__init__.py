"""A real node beside the simulated ones: kubelet, containerd, runc and kube-proxy on this machine.

Root on Linux only. What a pod needs from a node is executed for real; what this one lacks is in
:class:`RealNode`.
"""

from sim.real_node.node import RealNode
from sim.real_node.requirements import NodeError

__all__ = ["NodeError", "RealNode"]
