"""What all spec models share: strict, frozen, camelCase, and a few field types of Kubernetes."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Spec(BaseModel):
    """A section of a stack file: unknown keys and wrong types are errors, values never change."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )


_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[KMGT]i|[kMGT]|m)?")
_FACTORS: dict[str | None, Decimal] = {
    None: Decimal(1),
    "m": Decimal("0.001"),
    **{prefix: Decimal(1000) ** power for power, prefix in enumerate("kMGT", start=1)},
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGT", start=1)},
}


def quantity(text: str) -> Decimal:
    """The value of a Kubernetes quantity in its base unit (bytes, or CPUs).

    Raises:
        ValueError: ``text`` is no quantity; the message says how one is written.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no Kubernetes quantity: a number with one of Ki Mi Gi Ti (powers of 1024), "
            "k M G T (powers of 1000) or m (thousandths), for example 20Gi"
        )
    return Decimal(match["number"]) * _FACTORS[match["unit"]]


def gibibytes(text: str) -> float:
    """A memory or storage quantity in GiB."""
    return float(quantity(text) / 1024**3)


def _checked(text: str) -> str:
    quantity(text)
    return text


Quantity = Annotated[str, AfterValidator(_checked)]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A name as Kubernetes takes it for a Service: lower case, digits and dashes, at most 63 characters."""
Fraction = Annotated[float, Field(gt=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
