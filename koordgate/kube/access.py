"""How to reach the API server, and with which credentials: the seam between the client and its configuration.

Inside a Pod it is the service account's: two files and two variables (Kubernetes, "Accessing the Kubernetes API from a
Pod"). kubernetes-asyncio could read them too, but takes 36 MB in every process that imports it, and the reporter runs
on every node.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from koordgate.kube.errors import KubeError

DEFAULT_NAMESPACE: Final = "default"


class Access(Protocol):
    """One API server, and credentials for it."""

    @property
    def base_url(self) -> str:
        """Scheme, host, port and any leading path, without a slash at the end."""

    @property
    def proxy(self) -> str | None:
        """URL of the HTTP proxy to go through."""

    @property
    def server_name(self) -> str | None:
        """The name to expect in the server's certificate, if it is not the URL's host."""

    @property
    def namespace(self) -> str:
        """Where its user's own objects are, unless he names another namespace."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS settings, client certificate included; None for the defaults."""

    async def authorization(self, *, renew: bool = False) -> str | None:
        """The Authorization header."""


def environment_proxy(base_url: str) -> str | None:
    """The proxy that the environment names for this server ($HTTPS_PROXY, $NO_PROXY); None for a direct connection."""
    url = urlsplit(base_url)
    return None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme)


def tls_context(authority: Path | str | None) -> ssl.SSLContext:
    """TLS settings that trust a CA from a file, or the system's CAs if it is None.

    Raises OSError: the file cannot be read, or is not a certificate.
    """
    tls = ssl.create_default_context(cafile=authority)
    # Python 3.13 requires key identifiers that many clusters' CAs lack, and that no other Kubernetes client requires.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


@dataclass(frozen=True, slots=True)
class FixedAccess:
    """An address and perhaps a token that never change: tests, the local control plane."""

    base_url: str  # as `Access.base_url`
    token: str | None = None  # bearer token
    tls: ssl.SSLContext | None = None  # TLS settings

    @property
    def proxy(self) -> None:
        """None: an address that was given is reached directly."""
        return

    @property
    def server_name(self) -> None:
        """None: the URL's host is expected."""
        return

    @property
    def namespace(self) -> str:
        """No other was given."""
        return DEFAULT_NAMESPACE

    def ssl_context(self) -> ssl.SSLContext | None:
        """The settings that were given."""
        return self.tls

    async def authorization(self, *, renew: bool = False) -> str | None:  # noqa: ARG002 there is no other
        """The token that was given."""
        return f"Bearer {self.token}" if self.token else None


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
