"""Asks a container registry for the digest of a tag.

The OCI distribution API: HEAD of the manifest, after the token that an anonymous client is given
(https://github.com/opencontainers/distribution-spec, https://distribution.github.io/distribution/spec/auth/token/).
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

DOCKER_HUB = "registry-1.docker.io"
TIMEOUT_SECONDS = 30
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
"""Lists first: the digest of a list pins the image for every architecture."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class RegistryError(Exception):
    """The digest cannot be had; the message says why and what helps."""


class Name(NamedTuple):
    """An image's repository as a registry knows it."""

    host: str
    path: str


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def name_of(repository: str) -> Name:
    """Registry and path of a repository, as containerd and Docker read it.

    ``vllm/vllm-openai`` is Docker Hub's, ``ubuntu`` is its ``library/ubuntu``; a first part with a dot or a port, or
    ``localhost``, is a host.
    """
    first, slash, rest = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return Name(DOCKER_HUB if first in {"docker.io", "index.docker.io"} else first, rest)
    return Name(DOCKER_HUB, repository if slash else f"library/{repository}")


def digest_of(repository: str, tag: str, registry: str | None = None) -> str:
    """The digest that a tag has now, ``sha256:`` and 64 hex digits.

    ``registry`` is a base URL that is asked in place of the repository's own registry: a mirror.

    Raises:
        RegistryError: not found, refused, not reachable, or no digest in the answer.
    """
    name = name_of(repository)
    url = f"{(registry or f'https://{name.host}').rstrip('/')}/v2/{name.path}/manifests/{tag}"
    image = f"{repository}:{tag}"
    answer = _ask("HEAD", url, {"Accept": ACCEPT})
    headers = {"Accept": ACCEPT}
    if answer.status == HTTPStatus.UNAUTHORIZED:
        headers["Authorization"] = f"Bearer {_token(answer.headers.get('www-authenticate', ''), name, image)}"
        answer = _ask("HEAD", url, headers)
    _require_found(answer, image, url)
    digest = answer.headers.get("docker-content-digest", "")
    if not digest:
        # The header is only recommended; the digest is that of the manifest's bytes.
        body = _ask("GET", url, headers).body
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}" if body else ""
    if not _DIGEST.fullmatch(digest):
        raise RegistryError(f"{url} gives no sha256 digest of {image}: found {digest!r}")
    return digest


def _require_found(answer: _Answer, image: str, url: str) -> None:
    if answer.status == HTTPStatus.NOT_FOUND:
        raise RegistryError(f"{image} is not there: {url} answers 404; check repository and tag")
    if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise RegistryError(
            f"{image} is not public, or does not exist: {url} answers {answer.status} to an anonymous client; "
            "write the digest by hand (`docker buildx imagetools inspect`)"
        )
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise RegistryError(f"{url} answers 429, too many requests from this address: try later, or use --registry")
    if answer.status != HTTPStatus.OK:
        raise RegistryError(f"{url} answers {answer.status}")


def _token(challenge: str, name: Name, image: str) -> str:
    """The token for an anonymous pull, from the service that the registry names in WWW-Authenticate."""
    said = dict(_CHALLENGE.findall(challenge))
    if not challenge.lower().startswith("bearer ") or "realm" not in said:
        raise RegistryError(f"the registry of {image} wants a login of a kind that is not offered here: {challenge!r}")
    query = {"service": said.get("service", ""), "scope": said.get("scope") or f"repository:{name.path}:pull"}
    url = f"{said['realm']}?{urllib.parse.urlencode({key: value for key, value in query.items() if value})}"
    answer = _ask("GET", url, {})
    try:
        document = json.loads(answer.body) if answer.status == HTTPStatus.OK else {}
        return str(document.get("token") or document["access_token"])
    except (ValueError, KeyError, AttributeError):
        raise RegistryError(f"{said['realm']} gives no token for {image}: it answers {answer.status}") from None


def _ask(method: str, url: str, headers: Mapping[str, str]) -> _Answer:
    """One request; an answer that is an error is an answer."""
    if not url.startswith(("https://", "http://")):
        raise RegistryError(f"{url} is no http address")
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            return _Answer(answer.status, _lower(answer.headers.items()), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return _Answer(error.code, _lower(error.headers.items()), b"")
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise RegistryError(f"{url} cannot be reached ({reason}): check network and proxy, or use --registry") from None


def _lower(headers: list[tuple[str, str]]) -> dict[str, str]:
    return {key.lower(): value for key, value in headers}
