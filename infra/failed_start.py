"""Says why a roll-out failed, where the engine reports only that time ran out."""

from __future__ import annotations

import pulumi

from components import naming
from infra.live import connect
from planner.spec import ClusterSpec


def explain_failed_start(cluster: ClusterSpec, service: str, replica: int) -> pulumi.ResourceHookBinding:
    """A hook for a replica's Deployment: on failure it prints reason, last events and last log lines."""

    def explain(_: pulumi.ErrorHookArgs) -> bool:
        # Imported where it is needed: reading a failed start is no part of a preview.
        from infra.diagnosis import diagnose, read_facts, render  # noqa: PLC0415

        pulumi.log.error(render(diagnose(read_facts(connect(cluster), cluster.namespace, service, replica))))
        return False

    return pulumi.ResourceHookBinding(on_error=[pulumi.ErrorHook(f"explain-{naming.server_name(service, replica)}", explain)])
