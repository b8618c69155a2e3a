"""Rules about secrets and about what is pinned."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, rule

COMMIT = re.compile(r"[0-9a-f]{40}")
MOVING_TAGS = ("latest", "nightly", "main", "stable", "dev")


@rule("HF-1", "https://github.com/skypilot-org/skypilot/issues/2634")
def gated_model_has_a_token(subject: ServiceSubject) -> Iterator[Said]:
    """The hub refuses a gated model without a token."""
    service = subject.plan.service
    model = service.model
    downloads = service.cache.seed.enabled or not service.offline
    if not downloads or "hfToken" in subject.stack.secrets:
        return
    remedy = "accept the licence on the hub, then `pulumi config set --secret vllm:hfToken`"
    if model.gated:
        yield Said("error", "model.gated", f"{model.id} is gated, and the stack has no vllm:hfToken", remedy)
    elif subject.plan.model.gated:
        message = f"is false; the catalogue says that {model.id} is gated, and the stack has no vllm:hfToken"
        yield Said("warn", "model.gated", message, f"model.gated: true; {remedy}")


@rule("HF-MIRROR", "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables#hfendpoint")
def mirror_is_asked_and_trusted(subject: ServiceSubject) -> Iterator[Said]:
    """Whoever downloads sends the token to the mirror, and nobody asks it where nothing is downloaded."""
    service = subject.plan.service
    endpoint = service.cache.seed.endpoint
    if endpoint is None:
        return
    if not service.cache.seed.enabled and service.offline:
        message = f"{endpoint} has no effect: the seed Job is off, and the server is offline"
        yield Said("warn", "cache.seed.endpoint", message, "leave it out")
    elif endpoint.startswith("http://") and "hfToken" in subject.stack.secrets:
        message = f"{endpoint}: vllm:hfToken goes to it in the clear"
        yield Said("warn", "cache.seed.endpoint", message, "https, or no token for a mirror that needs none")


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


@rule("PIN-TAG", "https://kubernetes.io/docs/concepts/containers/images/#image-names")
def tag_does_not_move(subject: ServiceSubject) -> Iterator[Said]:
    """A tag that is pushed again every day is another server at the next restart."""
    image = subject.plan.service.image
    if image.digest is None and image.tag in MOVING_TAGS:
        message = f"{image.tag!r} moves: nodes that pulled it at different times run different servers"
        yield Said("error", "image.tag", message, f"v{subject.plan.release.version}, or image.digest")


@rule("SEC-KEY", "https://docs.vllm.ai/en/latest/usage/security/")
def callers_need_a_key(subject: ServiceSubject) -> Iterator[Said]:
    """Without an API key everybody whom the network lets through may use the model."""
    if "apiKey" not in subject.stack.secrets:
        outside = subject.plan.service.exposure.type != "ClusterIP"
        yield Said(
            "warn" if outside else "info",
            "exposure",
            "the stack has no vllm:apiKey: whoever the NetworkPolicy lets through may call",
            "`pulumi config set --secret vllm:apiKey`; a key for each tenant is a gateway's task",
        )


@rule("SEC-CODE", "https://docs.vllm.ai/en/latest/usage/security/")
def code_of_the_model_is_pinned(subject: ServiceSubject) -> Iterator[Said]:
    """A model that brings its own Python code can bring another code next time."""
    service = subject.plan.service
    if not service.engine.trust_remote_code:
        return
    pinned = service.model.revision is not None and COMMIT.fullmatch(service.model.revision)
    message = f"Python code of {service.model.id} runs in the server" + ("" if pinned else ", and it can change")
    remedy = "read it once for this revision" if pinned else "model.revision: the commit whose code was read"
    yield Said("info" if pinned else "warn", "engine.trustRemoteCode", message, remedy)


RULES = (
    gated_model_has_a_token,
    mirror_is_asked_and_trusted,
    revision_is_pinned,
    digest_is_pinned,
    tag_does_not_move,
    callers_need_a_key,
    code_of_the_model_is_pinned,
)
