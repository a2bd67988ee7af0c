"""Who may call the extender: the scheduler, by a client certificate; and the TLS context that asks for one.

The extender has a port of its own. The webhooks' port requests no client certificate by default: an API server may have
one from a CA that is unknown here, and would then fail to connect although none is required. Where the settings state
the CA, the port asks, and reviews without a certificate are refused; the kubelet's probes show none.
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
    """Counts refused callers, and logs each reason at most once a minute, since callers retry without end.

    `count`: called for each refused connection; refused requests are counted by the code that answers them. `clock`:
    monotonic seconds.
    """

    def __init__(self, count: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._told: dict[str, float] = {}

    def handshake(self, reason: str) -> None:
        """A TLS handshake failed for this reason."""
        self._count()
        self.request(reason)

    def request(self, reason: str, port: str = "the extender") -> None:
        """A request was refused for this reason; `port` is what was asked, for the log."""
        now = self._clock()
        reason = f"a caller of {port} was refused: {reason}"
        if reason in self._told and now < self._told[reason] + _AGAIN_S:
            return
        self._told = {known: since for known, since in self._told.items() if now < since + _AGAIN_S} | {reason: now}
        _LOG.warning("%s", reason)


def ask_for_certificate(context: ssl.SSLContext, authority: str, refused: Refused) -> None:
    """Let a server's context ask callers for a certificate, and verify those that show one.

    `authority`: the CAs that may have signed it, as PEM. `refused`: called with the reason for which a certificate was
    not accepted; its owner sees no more than a closed connection. Raises ssl.SSLError: `authority` cannot be read.
    """

    class Verified(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except ssl.SSLCertVerificationError as error:
                refused(_reason(error))
                raise

    context.sslobject_class = Verified
    context.load_verify_locations(cadata=authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in `_Asking`


def why_refused(shown: Mapping[str, Any] | None, name: str, setting: str = "scheduler.commonName") -> str:
    """Why the owner of a certificate may not call; "" if it may.

    `name`: the one common name that its subject must have, compared exactly.
    """
    if not shown:
        return "it presented no certificate"
    has = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    if has == [name]:
        return ""
    owner = ", ".join(repr(value[:100]) for value in has[:3]) or "nobody"
    return f"its certificate is for {owner}, and only {name!r} may call ({setting})"


class Entrance(ssl.SSLContext):
    """The TLS context of the extender's port; each connection uses the certificate and the CAs of its moment.

    The CAs that an `ssl.SSLContext` trusts can grow but not shrink. Each change therefore makes a new inner context,
    while the server keeps this outer one.
    """

    refused: Refused  # called with the reason of each failed handshake
    _asking: ssl.SSLContext

    def __new__(cls) -> Self:
        """Make a context that refuses every caller until `change` is called."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.refused = lambda _: None
        made._asking = _Asking(made._hear)
        return made

    def _hear(self, reason: str) -> None:
        self.refused(reason)

    def change(self, load: Callable[[ssl.SSLContext], object], authorities: bytes) -> None:
        """Use another certificate and other CAs from the next connection on.

        `load`: puts our certificate into a context; if it raises, nothing changes. `authorities`: the CAs that may sign
        callers' certificates, as PEM. Raises ssl.SSLError: `authorities` cannot be read.
        """
        asking = _Asking(self._hear)
        asking.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        load(asking)
        self._asking = asking

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        """Wrap one connection; event loops call this."""
        return self._asking.wrap_bio(*arguments, **more)


class _Handshake(ssl.SSLObject):
    """A connection that reports why its handshake failed, which event loops do not."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise  # not complete yet, or the peer hung up
        except ssl.SSLError as error:
            context = self.context
            if isinstance(context, _Asking):
                context.hear(_reason(error))
            raise


class _Asking(ssl.SSLContext):
    """Requires a client certificate. TLS 1.3 without session tickets, so that each connection is verified again."""

    sslobject_class = _Handshake
    hear: Refused

    def __new__(cls, hear: Refused) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.hear = hear
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.num_tickets = 0
        made.verify_mode = ssl.CERT_REQUIRED
        # As in Go, and therefore in kube-scheduler: a configured CA is trusted even if it is not a root.
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return made


def _reason(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it presented no certificate; set certFile and keyFile in extenders[].tlsConfig of kube-scheduler"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if reason.endswith(_DISTRUSTS_US):
        return "it does not trust our certificate: kube-scheduler reads its caFile when it starts, so restart it"
    return f"no TLS connection: {reason.replace('_', ' ').lower()}"
