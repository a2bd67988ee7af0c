"""How to reach the API server and who we are there: the seam between the client and where configuration comes from."""

import ssl
from dataclasses import dataclass
from typing import Protocol


class Access(Protocol):
    """One API server and our credentials for it."""

    @property
    def base_url(self) -> str:
        """Scheme, host, port and any leading path, without a slash at the end."""

    @property
    def proxy(self) -> str | None:
        """URL of the HTTP proxy to go through."""

    @property
    def server_name(self) -> str | None:
        """The name to expect in the server's certificate, where it is not the URL's host."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS settings, client certificate included; None for the defaults."""

    async def authorization(self, *, renew: bool = False) -> str | None:
        """The Authorization header.

        Args:
            renew: the API server refused the last one: get another, whatever its age.
        """


@dataclass(frozen=True, slots=True)
class FixedAccess:
    """An address and perhaps a token that never change: tests, the local control plane.

    Attributes:
        base_url: as `Access.base_url`.
        token: bearer token.
        tls: TLS settings.
    """

    base_url: str
    token: str | None = None
    tls: ssl.SSLContext | None = None

    @property
    def proxy(self) -> None:
        """An address given by hand is reached directly."""
        return

    @property
    def server_name(self) -> None:
        """The URL's host."""
        return

    def ssl_context(self) -> ssl.SSLContext | None:
        """What was given."""
        return self.tls

    async def authorization(self, *, renew: bool = False) -> str | None:  # noqa: ARG002 there is no other
        """The token that was given."""
        return f"Bearer {self.token}" if self.token else None
