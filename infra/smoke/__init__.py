"""Whether a deployed service answers: a ready address, health, the model's name, one completion.

:mod:`way` is how a server is reached, :mod:`key` where its API key comes from, :mod:`trial` what it is asked.
"""

from infra.smoke.key import VARIABLE, Key, find_key
from infra.smoke.trial import Subject, through_address, through_cluster
from infra.smoke.way import Fault, address_of

__all__ = ["VARIABLE", "Fault", "Key", "Subject", "address_of", "find_key", "through_address", "through_cluster"]
