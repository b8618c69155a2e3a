"""Takes what looks like a credential out of a text that others will read.

The engine blinds the secrets that it knows. This is the second lock: for what was pasted into a field that is no
secret, or into an error message.
"""

from __future__ import annotations

import re

HIDDEN = "[secret]"

_NAME = re.compile(r"(?:token|api_?-?key|access_?-?key|secret|password|passwd|private_?-?key|credential)s?$", re.I)
_VALUES = (
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\bsk-[\w-]{16,}"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"),
    re.compile(r"\bpul-[0-9a-f]{40}\b"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S),
    re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),
    re.compile(r"(?<=[?&]X-Amz-Signature=)[^&\s]+|(?<=[?&]sig=)[^&\s]+"),
    re.compile(r"(?<=\bBearer )[\w.~+/=-]{8,}", re.I),
    re.compile(r"(?<=--api-key[= ])\S+|(?<=--hf-token[= ])\S+"),
)
"""Forms that credentials have: hub, OpenAI-style keys, GitHub, Pulumi, AWS, JWT, PEM, URLs with a password, signed
URLs, headers, and the two arguments of vLLM that carry one."""


def redacted(text: str) -> str:
    """``text`` with everything that has the form of a credential replaced."""
    for pattern in _VALUES:
        text = pattern.sub(HIDDEN, text)
    return text


def names_a_secret(name: str) -> bool:
    """Whether a field or variable of this name holds a credential (``HF_TOKEN``, ``apiKey``, ``password``)."""
    return _NAME.search(name) is not None
