"""Why a server does not start: pod status, events and log, sorted into what happened and which field mends it.

Pulumi reports only that time ran out. The reason stands in places that disappear at different times:
the pod's status, events (after an hour) and the log of the container that died, which is the
*previous* one after a restart. :func:`read_facts` takes them all at once, :func:`diagnose` only thinks.
"""

from infra.diagnosis.causes import LOG, MOUNT, PULL, UNSCHEDULABLE, Cause
from infra.diagnosis.classification import Diagnosis, diagnose, in_stack_file
from infra.diagnosis.facts import Condition, Container, Event, StartFacts, Termination
from infra.diagnosis.masking import masked
from infra.diagnosis.reading import Ask, Unread, gather, get, read_facts
from infra.diagnosis.text import render

__all__ = [
    "LOG",
    "MOUNT",
    "PULL",
    "UNSCHEDULABLE",
    "Ask",
    "Cause",
    "Condition",
    "Container",
    "Diagnosis",
    "Event",
    "StartFacts",
    "Termination",
    "Unread",
    "diagnose",
    "gather",
    "get",
    "in_stack_file",
    "masked",
    "read_facts",
    "render",
]
