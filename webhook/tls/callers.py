"""Who may call the extender: the scheduler, by a client certificate; and the TLS context that asks for one.

The extender has a port of its own. On the webhooks' port nothing is asked: an API server may have a client certificate
by a CA that we do not know, and asking for one that need not be there would then fail its connections.
"""

import logging
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

_LOG: Final = logging.getLogger(__name__)
_AGAIN_S: Final = 60.0
_DISTRUSTS_US: Final = ("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_UNKNOWN")

Refused = Callable[[str], None]


class Refusals:
    """Hears why callers were refused: counts each, and logs each reason once a minute, for callers try without end.

    Args:
        count: called for each refusal that no HTTP request stands for.
        clock: seconds that never go back.
    """

    def __init__(self, count: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._told: dict[str, float] = {}

    def handshake(self, reason: str) -> None:
        """Hear of a connection that did not come about."""
        self._count()
        self.request(reason)

    def request(self, reason: str) -> None:
        """Hear of a request that was answered with a refusal."""
        now = self._clock()
        if reason in self._told and now < self._told[reason] + _AGAIN_S:
            return
        self._told = {known: since for known, since in self._told.items() if now < since + _AGAIN_S} | {reason: now}
        _LOG.warning("a caller of the extender was refused: %s", reason)


def stranger(shown: Mapping[str, Any] | None, name: str) -> str:
    """Why the owner of a certificate may not call; empty where it may.

    Args:
        shown: a verified certificate, as `ssl.SSLSocket.getpeercert` tells it.
        name: the one common name that its subject must have, compared exactly.
    """
    if not shown:
        return "it showed no certificate"
    has = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    if has == [name]:
        return ""
    told = ", ".join(repr(value[:100]) for value in has[:3]) or "nobody"
    return f"its certificate is for {told}, and only {name!r} may call (scheduler.commonName)"


class Entrance(ssl.SSLContext):
    """The context of the extender's port: each connection is made with what holds at that moment.

    What a context trusts can grow but not shrink, so that a change takes a new one; the server keeps this one.

    Attributes:
        refused: told why a handshake failed.
    """

    refused: Refused
    _asking: ssl.SSLContext

    def __new__(cls) -> Self:
        """Nobody comes in before `change`."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.refused = lambda _: None
        made._asking = _Asking(made._hear)
        return made

    def _hear(self, reason: str) -> None:
        self.refused(reason)

    def change(self, load: Callable[[ssl.SSLContext], object], authorities: bytes) -> None:
        """From the next connection on, serve and trust these.

        Args:
            load: puts our certificate into a context; what it raises leaves all as it was.
            authorities: what callers' certificates must be by, as PEM.

        Raises:
            ssl.SSLError: these cannot be read.
        """
        asking = _Asking(self._hear)
        asking.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        load(asking)
        self._asking = asking

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        """What event loops call for each connection."""
        return self._asking.wrap_bio(*arguments, **more)


class _Handshake(ssl.SSLObject):
    """Says why it fails: event loops do not."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise  # not done yet, or hung up
        except ssl.SSLError as error:
            context = self.context
            if isinstance(context, _Asking):
                context.hear(_reason(error))
            raise


class _Asking(ssl.SSLContext):
    """Takes nobody without a certificate. TLS 1.3 without tickets: each connection is verified anew."""

    sslobject_class = _Handshake
    hear: Refused

    def __new__(cls, hear: Refused) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.hear = hear
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.num_tickets = 0
        made.verify_mode = ssl.CERT_REQUIRED
        # As Go does, and so kube-scheduler: what was given is trusted, though it be no root.
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return made


def _reason(error: ssl.SSLError) -> str:
    told = error.reason or str(error)
    if told == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate; kube-scheduler has certFile and keyFile in extenders[].tlsConfig for it"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if told.endswith(_DISTRUSTS_US):
        return "it does not trust our certificate: kube-scheduler reads its caFile when it starts, so restart it"
    return f"no TLS connection: {told.replace('_', ' ').lower()}"
