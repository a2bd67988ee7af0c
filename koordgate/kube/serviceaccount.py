"""Access to the API server as the service account of the Pod that the process runs in.

It takes two files and two variables (Kubernetes, "Accessing the Kubernetes API from a Pod"). kubernetes-asyncio could
read them too, but takes 36 MB in every process that imports it, and the reporter runs on every node.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from koordgate.kube.access import DEFAULT_NAMESPACE, environment_proxy, tls_context
from koordgate.kube.errors import KubeError

_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REFRESH_S: Final = 60.0  # the kubelet replaces a token at 80 % of its life, an hour by default
_MAX_TOKEN: Final = 65536


def inside_a_pod() -> bool:
    """Whether to use the Pod's service account: outside a Pod, or with $KUBECONFIG set, a kubeconfig is used."""
    return not os.environ.get("KUBECONFIG") and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


class ServiceAccountAccess:
    """A `koordgate.kube.access.Access`."""

    server_name: Final = None  # the URL's host

    def __init__(self, folder: Path = _FOLDER, clock: Callable[[], float] = time.monotonic) -> None:
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        self.base_url = f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"
        self.proxy = environment_proxy(self.base_url)
        self._folder = folder
        self._clock = clock
        self._token = ""
        self._fresh_until = clock()

    @property
    def namespace(self) -> str:
        """The Pod's."""
        try:
            return _read(self._folder / "namespace").strip() or DEFAULT_NAMESPACE
        except OSError:
            return DEFAULT_NAMESPACE

    def ssl_context(self) -> ssl.SSLContext:
        """TLS settings with the cluster's CA.

        Raises KubeError: it cannot be read.
        """
        path = self._folder / "ca.crt"
        try:
            return tls_context(path)
        except OSError as error:  # an SSLError is one
            raise KubeError(f"{path}: {error}", reason="Configuration") from error

    async def authorization(self, *, renew: bool = False) -> str:
        """The current token as a header, read again once a minute or when asked.

        Raises KubeError: there has never been one.
        """
        if renew or self._clock() >= self._fresh_until:
            path = self._folder / "token"
            try:
                self._token = (await asyncio.to_thread(_read, path)).strip()
            except OSError as error:
                if not self._token:
                    raise KubeError(f"{path}: {error.strerror}; mount the token", reason="Configuration") from error
            self._fresh_until = self._clock() + _REFRESH_S
        return f"Bearer {self._token}"


async def service_account_access() -> ServiceAccountAccess:
    """The Pod's service account.

    Raises KubeError: no token is mounted.
    """
    access = ServiceAccountAccess()
    await access.authorization()
    return access


def _read(path: Path) -> str:
    with path.open(encoding="ascii") as file:
        return file.read(_MAX_TOKEN)
