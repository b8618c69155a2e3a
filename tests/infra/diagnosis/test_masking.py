"""No secret is shown, and what is none stays readable."""

from __future__ import annotations

import pytest

from infra.diagnosis import Event, diagnose, masked, render
from tests.infra.diagnosis.starts import NORMAL, died


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer sk-very-secret", "sk-very-secret"),
        ("headers={'authorization': 'Bearer sk-very-secret', 'x': 1}", "sk-very-secret"),
        ("token hf_AbCdEfGhIjKlMnOpQr was refused", "hf_AbCdEfGhIjKlMnOpQr"),
        ("HF_TOKEN=plain-token", "plain-token"),
        ("non-default args: {'api_key': ['sk-very-secret'], 'port': 8000}", "sk-very-secret"),
        ("vllm serve m --api-key sk-very-secret --port 8000", "sk-very-secret"),
        ("VLLM_API_KEY=sk-very-secret", "sk-very-secret"),
        ("http://user:pass-word@10.0.0.5:3128", "pass-word"),
        ("https://cdn.example/x?X-Amz-Signature=abc123&Expires=1", "abc123"),
    ],
)
def test_secrets_are_masked(text: str, secret: str) -> None:
    assert secret not in masked(text), "a log is pasted into issues"
    shown = render(diagnose(died(text, "x", code=3, events=(Event("Pod/x", "Failed", text),), message=text)))
    assert secret not in shown, "neither in the evidence nor in events or log"


@pytest.mark.parametrize(
    "text",
    [
        NORMAL,
        "hf_transfer is not installed",
        "Loading model from hf_hub",
        "https://huggingface.co/api/models?limit=1",
        "Engine core initialization failed. See root cause above.",
        "keys: 3, api keys are optional",
        'secret "chat-api-key" not found',
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert masked(text) == text, "a masked log helps nobody"
