"""`vllm-infra check`: the live cluster beside the stack."""

from __future__ import annotations

from collections.abc import Iterator

from infra.cli.stack_option import AsJson, StackName, print_faults, tell
from infra.config import ConfigError, EksClusterStackConfig, StackConfig, read_any, stack_path
from infra.lines import Line
from infra.preflight import check_cluster
from planner.findings import Finding


def check(stack: StackName, *, as_json: AsJson = False) -> None:
    """Look at the stack's cluster, change nothing, and say what `up` would fail at.

    It asks for this identity's rights with SelfSubjectAccessReviews: objects that are sent and stored nowhere. Exit
    code 1 when a line says `fail`.
    """
    try:
        config, secrets = read_any(stack_path(stack))
    except ConfigError as error:
        raise print_faults(error) from None
    if isinstance(config, EksClusterStackConfig):
        found: Iterator[Line] = _own_cluster(config.eks_cluster.name, check_cluster(config.eks_cluster))
    else:
        found = _lines(config, stack, secrets)
    tell(found, as_json)


def _own_cluster(name: str, findings: tuple[Finding, ...]) -> Iterator[Line]:
    """An EKS cluster of its own: there is no cluster to look at before AWS has made it."""
    from infra.check import told  # noqa: PLC0415 - the client takes a second to load

    yield from told("cluster", "" if findings else f"{name}: nothing stands in the way; AWS was not asked", findings)


def _lines(config: StackConfig, stack: str, secrets: frozenset[str]) -> Iterator[Line]:
    from infra import live  # noqa: PLC0415 - the client takes a second to load
    from infra.check import check_lines, look_closer  # noqa: PLC0415

    try:
        api = live.connect(config.cluster)
        cluster = live.look(config.cluster, api)
        closer = look_closer(api, config, secrets, cluster)
        yield from check_lines(config, stack, api.configuration.host, cluster, closer)
    except live.LiveError as error:
        yield Line("fail", "cluster", error.finding.message, remedy=error.finding.remedy)
