"""A Secret with a certificate that all replicas share, written by compare-and-swap."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import AlreadyExists, Conflict, NotFound
from koordgate.kube.resource import SECRETS
from webhook.tls.pki import CertificateError

_FOREIGN: Final = "cert-manager.io/certificate-name"


@dataclass(frozen=True, slots=True)
class Found:
    """A Secret at one moment."""

    secret: dict[str, Any] | None  # the object; None if there is none

    def value(self, key: str) -> bytes:
        """The value of a key; empty if there is none or it is not base64."""
        data = (self.secret or {}).get("data") or {}
        try:
            return base64.b64decode(data.get(key) or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            return b""


class TlsSecret:
    """One Secret."""

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._name = name
        self._collection = SECRETS.path(namespace=namespace)
        self._path = SECRETS.path(name, namespace)
        self._title = f"Secret {namespace}/{name}"

    def __str__(self) -> str:
        return self._title

    async def read(self) -> Found:
        """Read the Secret.

        Raises KubeError: the API server refused, or cannot be reached; CertificateError: the Secret is managed by
        cert-manager.
        """
        try:
            secret = await self._client.get(self._path)
        except NotFound:
            return Found(None)
        if _FOREIGN in (secret["metadata"].get("annotations") or {}):
            raise CertificateError(f"{self} is managed by cert-manager: mount it and set certificate.files")
        return Found(secret)

    async def write(self, over: Found, data: Mapping[str, bytes]) -> bool:
        """Write these values over a Secret as it was read; keys with empty values are removed, other keys stay.

        Returns whether it was written; False if another replica wrote first. Raises KubeError: the API server refused,
        or cannot be reached.
        """
        written = {key: base64.b64encode(value).decode() for key, value in data.items() if value}
        try:
            if over.secret is None:
                about = {"name": self._name, "labels": {"app.kubernetes.io/name": "koordgate"}}
                body = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": about}
                await self._client.create(self._collection, {**body, "data": written})
            else:  # with its resourceVersion, and its type, which is immutable
                kept = {key: value for key, value in (over.secret.get("data") or {}).items() if key not in data}
                await self._client.replace(self._path, {**over.secret, "data": kept | written})
        except (AlreadyExists, Conflict, NotFound):
            return False
        return True
