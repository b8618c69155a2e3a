"""Says why a roll-out failed, where the engine reports only that time ran out."""

from __future__ import annotations

import pulumi

from components import naming
from infra.diagnosis import diagnose, in_stack_file, masked, read_facts, render
from infra.live import connect
from planner.spec import ClusterSpec


def explain_failed_start(
    cluster: ClusterSpec, service: str, pool: str, replica: int, part: str = "server"
) -> pulumi.ResourceHookBinding:
    """A hook for a replica's Deployment, or for its download: on failure it prints reason, last events and log lines.

    ``part`` tells the hooks of one replica apart: the engine knows a hook by its name.

    It never raises and never asks for another try. What cannot be read is said in one line.
    """
    server = naming.server_name(service, replica)

    def explain(_: pulumi.ErrorHookArgs) -> bool:
        try:
            facts = read_facts(connect(cluster), cluster.namespace, service, replica)
            pulumi.log.error(render(in_stack_file(diagnose(facts), pool)))
        except Exception as error:  # whatever it is, it must not stand in place of the engine's own error
            reason = " ".join(masked(str(error)).split())
            pulumi.log.warn(f"{server}: why it failed cannot be read: {type(error).__name__}: {reason}")
        return False

    return pulumi.ResourceHookBinding(on_error=[pulumi.ErrorHook(f"explain-{server}-{part}", explain)])
