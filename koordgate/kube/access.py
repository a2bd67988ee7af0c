"""How to reach the API server, and with which credentials: the seam between the client and its configuration."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

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
