"""What was read of one start: pod, containers, conditions, events and log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Termination:
    """How a container ended; ``reason`` is Kubernetes' word (OOMKilled, Error, Completed, StartError)."""

    reason: str
    exit_code: int
    message: str = ""


@dataclass(frozen=True)
class Container:
    """A container's status. ``waiting`` is Kubernetes' reason why it does not run, empty otherwise;
    ``ended`` is how it ended now, ``last`` how it ended before its restart."""

    name: str
    init: bool = False
    running: bool = False
    ready: bool = False
    restarts: int = 0
    waiting: str = ""
    waiting_message: str = ""
    ended: Termination | None = None
    last: Termination | None = None

    @property
    def failure(self) -> Termination | None:
        """The newest end that was none in peace; ``None`` once the container has what it is for.

        A server obeys SIGTERM with exit code 0 (seen: one that a probe killed): that it had to be started again counts.
        """
        if self.ready:
            return None
        again = None if self.init else self.last
        return next((end for end in (self.ended, self.last) if end and (end.exit_code != 0 or end is again)), None)


@dataclass(frozen=True)
class Condition:
    """A condition of the pod or of its Deployment; ``status`` is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Event:
    """An event about ``of`` (KIND/NAME); ``when`` is ISO time, ``count`` how often it was seen."""

    of: str
    reason: str
    message: str
    type: str = "Normal"
    when: str = ""
    count: int = 1

    def __str__(self) -> str:
        times = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.when} {self.type} {self.reason} {self.of}: {self.message}{times}".strip()


@dataclass(frozen=True)
class StartFacts:
    """What is known of one start.

    ``owner`` is what made the pod (Deployment/NAME, Job/NAME, DaemonSet/NAME), ``pod`` empty where there
    is none, ``stopping`` the pods that are still ending. ``log`` is oldest first, of container ``log_of``,
    from before its restart where ``log_is_previous``. ``unread`` says what could not be read, and why.
    """

    service: str
    owner: str
    pod: str = ""
    phase: str = ""
    phase_reason: str = ""
    phase_message: str = ""
    containers: tuple[Container, ...] = ()
    conditions: tuple[Condition, ...] = ()
    events: tuple[Event, ...] = ()
    log: tuple[str, ...] = ()
    log_of: str = ""
    log_is_previous: bool = False
    stopping: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, of the pod or of the Deployment."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def messages(self, *reasons: str) -> list[str]:
        """What the events of those reasons say, newest first."""
        return [event.message for event in reversed(self.events) if event.reason in reasons]
