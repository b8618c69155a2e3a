"""Rules about secrets and about what is pinned."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, rule

COMMIT = re.compile(r"[0-9a-f]{40}")


@rule("HF-1", "https://github.com/skypilot-org/skypilot/issues/2634")
def gated_model_has_a_token(subject: ServiceSubject) -> Iterator[Said]:
    """The hub refuses a gated model without a token."""
    model = subject.plan.service.model
    if model.gated and "hfToken" not in subject.stack.secrets:
        yield Said(
            "error",
            "model.gated",
            f"{model.id} is gated, and the stack has no vllm:hfToken",
            "accept the licence on the hub, then `pulumi config set --secret vllm:hfToken`",
        )


@rule("PIN-MODEL", "https://huggingface.co/docs/huggingface_hub/guides/download")
def revision_is_pinned(subject: ServiceSubject) -> Iterator[Said]:
    """A branch can move, so that the same stack serves something else next time."""
    model = subject.plan.service.model
    if model.revision is None or not COMMIT.fullmatch(model.revision):
        yield Said(
            "warn",
            "model.revision",
            f"{model.revision or 'is not set'}: what {model.id} is can change by itself",
            "the commit, 40 hex digits, from the model's page on the hub (Files, History)",
        )


@rule("PIN-IMAGE", "https://kubernetes.io/docs/concepts/containers/images/#image-names")
def digest_is_pinned(subject: ServiceSubject) -> Iterator[Said]:
    """A tag can be pushed again with another content."""
    image = subject.plan.service.image
    if image.digest is None:
        yield Said(
            "warn",
            "image.digest",
            f"is not set: {image.repository}:{image.tag} can change by itself",
            "the digest of the tag, sha256:…",
        )


RULES = (gated_model_has_a_token, revision_is_pinned, digest_is_pinned)
