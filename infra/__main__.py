"""The program of a stack: load, check, build, export."""

from __future__ import annotations

import pulumi

from infra.config import ConfigError, EksClusterStackConfig
from infra.config.program import load
from infra.eks_cluster import deploy_cluster
from infra.environment import Environment
from infra.live import LiveError, look
from infra.preflight import check_live, check_plan
from infra.preflight.monitoring import missing_kinds
from infra.report import announce, repeat_on
from planner.plan import plan_services


def main() -> None:
    """Check everything first; nothing is registered when there is an error."""
    stack = pulumi.get_stack()
    try:
        config, secrets = load()
        if isinstance(config, EksClusterStackConfig):
            return deploy_cluster(stack, config.eks_cluster)
        plans, findings = plan_services(config.nodes, config.watched_services)
        findings += check_plan(config, secrets.present, plans)
        cluster = look(config.cluster)
        findings += check_live(config, stack, cluster)
    except ConfigError as error:
        return announce(error.findings)
    except LiveError as error:
        return announce([*findings, error.finding], plans)
    announce(findings, plans)
    environment = Environment(stack, config, secrets, plans, not missing_kinds(cluster))
    repeat_on(environment.servers, findings)
    pulumi.export("services", environment.outputs)
    return None


main()
