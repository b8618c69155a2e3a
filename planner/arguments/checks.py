"""Everything that is wrong with what a stack says to vLLM."""

from __future__ import annotations

from planner import caches
from planner.arguments.extra import check_duplicates, check_extra, read_extra
from planner.arguments.together import check_together
from planner.arguments.typed import check_typed
from planner.arguments.variables import check_environment
from planner.findings import Finding
from planner.releases import Release
from planner.spec import ServiceSpec


def check(service: ServiceSpec, release: Release) -> tuple[Finding, ...]:
    """Everything that is wrong with the arguments and variables of a service in its release, all at once.

    Paths are relative to the service, for example ``engine.extraArgs[2]``.
    """
    variables = {**caches.environment(service.offline), **service.env}
    extra = tuple(read_extra(service.engine.extra_args))
    return (
        *check_typed(service, release, variables),
        *(finding for argument in extra for finding in check_extra(argument, service.engine, release, variables)),
        *check_duplicates(extra, release),
        *check_together(service, extra, release),
        *check_environment(service, extra, release),
    )
