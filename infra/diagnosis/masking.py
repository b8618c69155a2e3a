"""Secrets that a log, an event or a message may show are taken out before anybody sees them."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar, cast

from infra.redaction import redacted

_SECRETS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "hf_***"),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)?\s*)[^\s'\",]+"), r"\1***"),
    (re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}"), r"\1***"),
    (re.compile(r"(--api-key[\s=]+)[^\s'\"]+"), r"\1***"),
    # Releases up to 0.19.1 print the key among `non-default args`.
    (re.compile(r"(?i)(api_key['\"]?\s*[:=]\s*)(?:\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[^\s,})]+)"), r"\1***"),
    (re.compile(r"(?i)(\bHF_TOKEN\s*[:=]\s*)\S+"), r"\1***"),
    (re.compile(r"(?<=//)[^/\s:@]+:[^/\s@]+@"), "***@"),
    # The query of a signed URL is a credential.
    (re.compile(r"(https?://[^\s?'\"]+\?)[^\s'\")]*(?:[Ss]ignature|[Tt]oken|Credential)=[^\s'\")]*"), r"\1***"),
)


def masked(text: str) -> str:
    """``text`` without tokens, keys, credentials of URLs and signed queries.

    What a log of vLLM or of the hub's library looks like comes first, then every form that a credential has.
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return redacted(text)


_Facts = TypeVar("_Facts")


def masked_facts(facts: _Facts) -> _Facts:
    """The same facts with every text in them masked."""
    if isinstance(facts, str):
        return cast("_Facts", masked(facts))
    if isinstance(facts, tuple):
        return cast("_Facts", tuple(masked_facts(item) for item in facts))
    if is_dataclass(facts) and not isinstance(facts, type):
        return cast(
            "_Facts",
            replace(facts, **{field.name: masked_facts(getattr(facts, field.name)) for field in fields(facts)}),
        )
    return facts
