"""The live cluster beside the stack, one line for each question: what `vllm-infra check` says.

What is wrong is decided by the rules of :mod:`infra.preflight`, which also stop a preview. A check asks more than they
do (:mod:`closer`: pods that hold cards, rights, the GPU Operator) and also says what is as it should be (:mod:`nodes`,
:mod:`objects`).
"""

from infra.check.closer import Closer, look_closer
from infra.check.lines import check_lines
from infra.check.report import told

__all__ = ["Closer", "check_lines", "look_closer", "told"]
