"""What a service runs: the model and the image."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from planner.spec.base import PositiveInt, Spec


class ModelSpec(Spec):
    """A model of the Hugging Face hub."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")]
    """Name on the hub, ORG/NAME. Its facts come from the catalogue; `vllm-infra models add` adds one."""

    revision: Annotated[str, Field(min_length=1)] | None = None
    """Commit of the model's repository (40 hex digits). Unset or a branch: a warning, since what is
    served can then change by itself. `vllm-infra pin` fills it in."""

    served_name: Annotated[str, Field(min_length=1)] | None = None
    """Name that clients send as `model`. Unset: the name part of `id` in lower case."""

    gated: bool = False
    """Whether the hub wants a token and an accepted licence for it; then `vllm:hfToken` is required."""

    @property
    def public_name(self) -> str:
        """The name that clients send as `model`."""
        return self.served_name or self.id.split("/")[1].lower()


class ImageSpec(Spec):
    """The container image of vLLM."""

    repository: Annotated[str, Field(pattern=r"^[a-z0-9][\w.:/-]*$")] = "vllm/vllm-openai"
    """Repository without tag."""

    tag: Annotated[str, Field(pattern=r"^\w[\w.-]{0,127}$")]
    """Tag, for example v0.31.0. It says which release the arguments and the memory are planned for."""

    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """Digest that pins the content. Unset: a warning. `vllm-infra pin` fills it in."""

    release: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] | None = None
    """vLLM release in the image, for a tag that does not say it. Unset: read from the tag."""

    size_bytes: PositiveInt | None = None
    """Compressed size, bytes. Unset: what the release's official image has."""

    @property
    def reference(self) -> str:
        """What a pod names: repository:tag, with the digest when it is pinned."""
        pinned = f"@{self.digest}" if self.digest else ""
        return f"{self.repository}:{self.tag}{pinned}"
