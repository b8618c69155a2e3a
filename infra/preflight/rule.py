"""One rule is one function: what it looks at, its id, its reason (the docstring), its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from infra.config import StackConfig
from planner.findings import Finding, Level
from planner.plan import ServicePlan

if TYPE_CHECKING:  # a plan without a cluster does not wait for the Kubernetes client to load
    from infra.live import LiveCluster


class Said(NamedTuple):
    """What a rule says about one place; the path is relative to the rule's subject."""

    level: Level
    path: str
    message: str
    remedy: str


@dataclass(frozen=True)
class StackSubject:
    """A whole stack: its configuration, which secrets it sets, the plan of each service."""

    config: StackConfig
    secrets: frozenset[str]
    plans: Mapping[str, ServicePlan]


@dataclass(frozen=True)
class ServiceSubject:
    """One service of a stack, with its plan."""

    stack: StackSubject
    plan: ServicePlan


@dataclass(frozen=True)
class LiveSubject:
    """A stack beside what is in its cluster. ``stack`` is its name, which our label carries."""

    config: StackConfig
    stack: str
    live: LiveCluster


Subject = TypeVar("Subject", StackSubject, ServiceSubject, LiveSubject)
Check = Callable[[Subject], Iterator[Said]]


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """A check with its id, reason and source."""

    id: str
    reason: str
    source: str
    check: Check[Subject]

    def findings(self, subject: Subject, prefix: str) -> Iterator[Finding]:
        """What the check says about ``subject``; ``prefix`` makes its paths full."""
        for said in self.check(subject):
            yield Finding(said.level, f"{prefix}{said.path}", said.message, said.remedy, self.id, self.source)


def rule(identifier: str, source: str) -> Callable[[Check[Subject]], Rule[Subject]]:
    """Make a function into a rule; the first line of its docstring is the reason."""

    def make(check: Check[Subject]) -> Rule[Subject]:
        return Rule(identifier, (check.__doc__ or "").splitlines()[0], source, check)

    return make
