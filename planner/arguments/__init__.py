"""Typed engine settings to the arguments of `vllm serve`, and what is wrong with the ones given.

Kubernetes hands arguments over as they are: nothing splits them at blanks, expands `$NAME` or removes quotes.
"""

from planner.arguments.checks import check
from planner.arguments.parsing import ArgumentsError, parse
from planner.arguments.rendering import KV_SPACE, render, server_environment

__all__ = ["KV_SPACE", "ArgumentsError", "check", "parse", "render", "server_environment"]
