"""Where the API key comes from: a variable of the caller's environment, or the Secret that the server has it from.

It is never an argument (those are in the machine's process list) and never part of what is printed.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client

from infra.live import LiveError
from infra.smoke.way import Fault, read

VARIABLE = "VLLM_API_KEY"
"""The server's own variable (vllm, envs.py); the caller's has the same name."""


@dataclass(frozen=True)
class Key:
    """An API key and where it was found."""

    value: str = field(repr=False)
    source: str

    def __post_init__(self) -> None:
        # A header carries no line break, and the server compares the key as it is.
        if not (self.value.isascii() and self.value.isprintable()) or self.value != self.value.strip():
            raise Fault(
                f"the API key of {self.source} holds a character that no request can carry (a line break at its end?)",
                "printf %s KEY | pulumi config set --secret vllm:apiKey, then `pulumi up`",
            )


def find_key(environment: Mapping[str, str], connect: Callable[[], client.ApiClient], deployment: str) -> Key | None:
    """The key: the variable's, else that of ``deployment`` (NAMESPACE/NAME); ``None`` where the server has none.

    Raises:
        Fault: the server has a key and neither source can be read; both reasons are said.
    """
    if environment.get(VARIABLE):
        return Key(environment[VARIABLE], f"the variable {VARIABLE}")
    unset = f"the variable {VARIABLE} is not set"
    namespace, _, name = deployment.partition("/")
    try:
        return _of_deployment(connect(), namespace, name)
    except LiveError as error:
        reason = str(error)
    except Fault as error:
        reason = str(error)
    raise Fault(
        f"the API key cannot be read: {unset}, and {reason}", f"set {VARIABLE} (read -rs {VARIABLE}; export it)"
    )


def _of_deployment(api: client.ApiClient, namespace: str, name: str) -> Key | None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    found = read(api, path, f"Deployment {namespace}/{name}")
    containers = found["spec"]["template"]["spec"]["containers"]
    variables: list[Mapping[str, Any]] = [one for container in containers for one in container.get("env") or []]
    variable = next((one for one in variables if one["name"] == VARIABLE), None)
    if variable is None:
        return None
    reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
    if reference is None:
        return Key(str(variable.get("value", "")), f"Deployment {namespace}/{name}")
    what = f"Secret {namespace}/{reference['name']}"
    secret = read(api, f"/api/v1/namespaces/{namespace}/secrets/{reference['name']}", what)
    try:
        return Key(b64decode(secret["data"][reference["key"]]).decode(), what)
    except (KeyError, Base64Error, UnicodeDecodeError):
        raise Fault(f"{what} has no text under {reference['key']!r}") from None
