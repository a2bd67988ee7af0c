"""Where certificates come from: a Secret that replicas share, files, or memory; renewed without a restart.

While the CA changes, the old certificate is served until the API servers trust both CAs:

    make the new pair -> `ca_bundle` holds both -> it is published (`published`) -> SETTLE -> the new pair is served

All replicas renew it in time. A replica that does not know a new CA yet must not restore a certificate signed by the
old one. Each replica therefore reads this Secret, *then* reads the CA, and writes on condition that the Secret is
unchanged.
"""

import asyncio
import itertools
import logging
import ssl
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from webhook.settings import Certificate, CertificateFiles, WebhookSettings
from webhook.tls import pki
from webhook.tls.callers import Entrance
from webhook.tls.pki import Bundle, CertificateError, Pair, Renewal, Step
from webhook.tls.timing import REAL, Timing
from webhook.tls.tlssecret import Found, TlsSecret

POLL_S: Final = 60.0
OVERLAP: Final = timedelta(hours=1)
"""The least time that a replaced CA stays in the Secret: by then every replica has read the Secret many times."""

_PREVIOUS_KEPT: Final = 3
_ATTEMPTS: Final = 5
NO_BUNDLE: Final = Bundle(Pair(b"", b""), Pair(b"", b""))
_MADE: Final = {
    Step.CERTIFICATE: "certificate",
    Step.REISSUE: "certificate of the same authority",
    Step.AUTHORITY: "authority",
}
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingOffer:
    """A certificate that can be served."""

    pair: Pair  # the certificate and its key
    authorities: tuple[bytes, ...]  # CAs that the API servers must trust before the certificate is served, as PEM each
    ca_bundle: bytes  # all CAs to publish, as PEM
    callers: bytes  # CAs that may sign the certificates of the extender's callers, as PEM


class Source(ABC):
    """A serving certificate and the CAs that sign it; a subclass reads them from one kind of place."""

    # whether all replicas read the same, so that any other published CA is stale. Otherwise it may be another
    # replica's, and stays published until it expires.
    authoritative = True

    def __init__(self, timing: Timing = REAL) -> None:
        # the server's TLS context; always this object, whose certificate changes in place
        self.context = _server_context()
        self.entrance = Entrance()  # the TLS context of the extender's port, which requires client certificates
        self.ca_bundle = b""  # the CAs to publish, as PEM; during a change the old and the new one
        self.changed = asyncio.Event()  # set when `ca_bundle` has changed; the publisher clears it
        self._timing = timing
        self._serving: ServingOffer | None = None
        self._waiting: ServingOffer | None = None
        self._callers = b""
        self._let_in: tuple[Pair, bytes] | None = None
        self._trusted_since: dict[bytes, datetime] = {}
        self._expires = datetime.min.replace(tzinfo=UTC)
        self._tickets = itertools.count()
        self._newest = -1
        self._trouble = "no certificate has been read yet"

    @abstractmethod
    async def _read(self) -> ServingOffer:
        """Read the certificate, and renew it if necessary.

        Raises KubeError: the API server refused, or cannot be reached; CertificateError: what was read cannot be used.
        """

    async def start(self) -> None:
        """Try until there is a certificate to serve."""
        backoff = self._timing.backoff()
        while not await self.attempt():
            await self._timing.sleep(backoff.failed())

    async def run(self) -> None:
        """Renew and reload until cancelled."""
        while True:
            await self._timing.sleep(self._timing.about(POLL_S))
            await self.attempt("the old one stays")
            try:
                self._advance()
            except CertificateError as error:
                _LOG.warning("the new certificate is not served yet: %s", error)

    async def refresh(self) -> bytes:
        """Read the certificate again, renew it if need be, and return the `ca_bundle` read after the call began.

        Raises KubeError: the API server refused, or cannot be reached; CertificateError: what was read cannot be used.
        """
        ticket = next(self._tickets)
        offer = await self._read()
        if ticket > self._newest:  # else the result of a later read is in use already
            self._take(offer)
            self._newest = ticket
        return offer.ca_bundle

    def published(self, bundle: bytes) -> None:
        """The webhook configurations carry this bundle."""
        now = self._timing.clock()
        carried = pki.still_trusted(bundle, self._timing.earliest)
        self._trusted_since = {authority: self._trusted_since.get(authority, now) for authority in carried}

    @property
    def expires(self) -> datetime | None:
        """When the served certificate expires; None while none is served."""
        return self._expires if self._serving is not None else None

    def healthy(self, now: datetime) -> str | None:
        """Why no caller can connect; None if callers can."""
        if self._serving is None:
            return self._trouble
        if now >= self._expires:
            return f"the certificate expired at {self._expires:%Y-%m-%dT%H:%M:%SZ}; {self._trouble or 'not renewed'}"
        return None

    async def attempt(self, otherwise: str = "trying again") -> bool:
        """Read the certificate once, and renew it if necessary; returns whether that succeeded, and logs why not."""
        try:
            await self.refresh()
        except (KubeError, CertificateError) as error:
            self._trouble = str(error)
            _LOG.warning("the certificate could not be read, %s: %s", otherwise, error)
            return False
        self._trouble = ""
        return True

    def _take(self, offer: ServingOffer) -> None:
        if self._serving is None or offer.pair != self._serving.pair:
            _load(_server_context(), offer.pair)  # a pair that fails to load would leave the live context broken
        if offer.ca_bundle != self.ca_bundle:
            self.ca_bundle = offer.ca_bundle
            self.changed.set()
        self._callers = offer.callers  # at once: callers may have certificates of a new CA before we serve one
        self._waiting = None if self._serving and offer.pair == self._serving.pair else offer
        self._advance()

    def _advance(self) -> None:
        """Serve the waiting pair if all callers trust it by now, or if the old one has expired anyway."""
        now, new, old = self._timing.clock(), self._waiting, self._serving
        if new is not None:
            never = now + self._timing.settle
            trusted = all(self._trusted_since.get(one, never) + self._timing.settle <= now for one in new.authorities)
            expired = self._timing.earliest >= self._expires
            if old is None or set(new.authorities) <= set(old.authorities) or trusted or expired:
                # All handshakes happen on this thread, so none sees the context half changed.
                self._expires = _load(self.context, new.pair)
                self._serving, self._waiting = new, None
                _LOG.info("serving a certificate that expires at %s", self._expires.isoformat())
        if self._serving is not None:
            self._follow(self._serving.pair)

    def _follow(self, pair: Pair) -> None:
        """Give the extender's port the same certificate, and its callers' CAs."""
        if self._let_in != (pair, self._callers):
            try:
                self.entrance.change(lambda context: _load(context, pair), self._callers)
            except ssl.SSLError as error:
                raise CertificateError(f"the TLS library rejects the callers' CAs: {error}") from error
            self._let_in = (pair, self._callers)


class SecretSource(Source):
    """A certificate that the replicas make themselves and share through a Secret.

    `wanted`: the Secret's name, the names in the certificate, and how long certificate and CA are valid.
    """

    def __init__(self, client: KubeClient, namespace: str, wanted: Certificate, timing: Timing = REAL) -> None:
        super().__init__(timing)
        pki.check_names(wanted.dns_names, wanted.ip_addresses)
        self._wanted = wanted
        self._secret = TlsSecret(client, namespace, wanted.secret)
        self._late = ""

    async def _read(self) -> ServingOffer:
        return _offer(*await self.current())

    async def current(self) -> tuple[Bundle, datetime]:
        """The bundle read after the call began, renewed if necessary, and when it was read.

        One that is due and cannot be renewed is used for as long as it is valid, also by a replica that starts.
        Raises KubeError: the API server refused, or cannot be reached; CertificateError: what was read cannot be used.
        """
        for _ in range(_ATTEMPTS):
            found = await self._secret.read()
            now = self._timing.clock()
            bundle, (step, reason) = await self.judged(found, now)
            if step is not Step.NONE and self._timing.apart:
                now += self._timing.apart
                bundle, (step, reason) = await self.judged(found, now)
            if step is Step.NONE:
                self._late = ""
                return bundle, now
            try:
                self._timing.require_agreement(reason)
                made = renewed(bundle, step, self._wanted, now, self.ca_bundle)
                written = await self._secret.write(found, _data_of(made))
            except (KubeError, CertificateError) as error:
                if not pki.still_good(bundle.leaf, bundle.authority.certificate, self._timing.earliest):
                    raise
                self._put_off(str(error))
                return bundle, now
            if written:
                self._late = ""
                _LOG.info("%s: made a new %s, because %s", self._secret, _MADE[step], reason)
                return made, now
            # Another replica wrote first; its bundle is read in the next attempt.
        raise KubeError(f"{self._secret} was changed by others during each of {_ATTEMPTS} attempts to renew it")

    def _put_off(self, why: str) -> None:
        if why != self._late:
            self._late = why
            _LOG.warning("%s could not be renewed yet, and is used while it is valid: %s", self._secret, why)

    async def judged(self, found: Found, now: datetime) -> tuple[Bundle, Renewal]:
        """The bundle in the Secret, or one to begin with in its place, and what of it must be renewed."""
        if found.secret is None:
            return NO_BUNDLE, Renewal(Step.AUTHORITY, "there was none")
        bundle = bundle_in(found)
        return bundle, self.renewal(bundle, now)

    def renewal(self, bundle: Bundle, now: datetime, *, keep_key: bool = False) -> Renewal:
        """What of a bundle must be renewed, as `pki.renewal`."""
        wanted = self._wanted
        return pki.renewal(bundle, now, wanted.dns_names, wanted.ip_addresses, keep_key=keep_key)


class FileSource(Source):
    """Files that another program renews, such as cert-manager through a mounted Secret.

    Files that do not match one another are not used; the certificate read before is kept.
    `client_authority`: path of the CA of the extender's callers; None if it is the one in `files`.
    """

    authoritative = False  # kubelets update the mounted files of the replicas at different times

    def __init__(self, files: CertificateFiles, timing: Timing = REAL, client_authority: str | None = None) -> None:
        super().__init__(timing)
        self._files = files
        self._client_authority = client_authority or files.authority

    async def _read(self) -> ServingOffer:
        return await asyncio.to_thread(self._read_files)

    def _read_files(self) -> ServingOffer:
        pair = Pair(_content(self._files.certificate), _content(self._files.key))
        try:
            expires = pki.check_pair(pair)
            authorities = pki.certificates_in(_content(self._files.authority))
            callers = pki.certificates_in(_content(self._client_authority))
        except CertificateError as error:
            raise CertificateError(f"{self._files.certificate} and the files beside it: {error}") from error
        now = self._timing.earliest
        if now >= expires:
            raise CertificateError(f"{self._files.certificate}: expired at {expires.isoformat()}")
        earlier = pki.still_trusted(self.ca_bundle, now)
        return ServingOffer(pair, authorities, b"".join(dict.fromkeys((*authorities, *earlier))), b"".join(callers))


class MemorySource(Source):
    """A certificate made for this process alone; its callers read `ca_bundle` from it."""

    def __init__(self, wanted: Certificate, timing: Timing = REAL) -> None:
        super().__init__(timing)
        self._wanted = wanted
        self._bundle = NO_BUNDLE

    async def _read(self) -> ServingOffer:
        now = self._timing.clock()
        step, _ = pki.renewal(self._bundle, now, self._wanted.dns_names, self._wanted.ip_addresses)
        self._bundle = renewed(self._bundle, step, self._wanted, now)
        offer = _offer(self._bundle, now)
        self.published(offer.ca_bundle)
        return offer


def renewed(bundle: Bundle, step: Step, wanted: Certificate, now: datetime, trusted: bytes = b"") -> Bundle:
    """Carry out what `pki.renewal` decided.

    `bundle`: to be renewed; empty if there is none yet. `wanted`: the names in the certificate, and how long
    certificate and CA are valid. `trusted`: CAs that this replica knows to be in use, as PEM, in case the bundle has
    lost them.
    """
    if step is Step.NONE:
        return bundle
    authority, previous = bundle.authority, bundle.previous
    if step is Step.AUTHORITY:
        authority = pki.new_authority("koordgate", now, wanted.authority_days)
        previous = b"\n".join((bundle.authority.certificate, previous, trusted))
    elif step is Step.REISSUE:
        authority = pki.reissued(authority, now, wanted.authority_days)
    elif now >= pki.issued(authority) + OVERLAP:
        previous = b""
    leaf = pki.new_certificate(authority, wanted.dns_names, wanted.ip_addresses, now, wanted.certificate_days)
    return Bundle(leaf, authority, b"".join(pki.still_trusted(previous, now)[:_PREVIOUS_KEPT]))


def _offer(bundle: Bundle, now: datetime) -> ServingOffer:
    authorities = pki.certificates_in(bundle.authority.certificate)
    trusted = b"".join((*authorities, *pki.still_trusted(bundle.previous, now)))
    return ServingOffer(bundle.leaf, authorities, trusted, trusted)


def bundle_in(found: Found) -> Bundle:
    """The bundle in a Secret; what the Secret lacks is empty."""
    value = found.value
    leaf, authority = Pair(value("tls.crt"), value("tls.key")), Pair(value("ca.crt"), value("ca.key"))
    return Bundle(leaf, authority, value("previous-ca.crt"))


def _data_of(bundle: Bundle) -> dict[str, bytes]:
    return {
        "tls.crt": bundle.leaf.certificate,
        "tls.key": bundle.leaf.key,
        "ca.crt": bundle.authority.certificate,
        "ca.key": bundle.authority.key,
        "previous-ca.crt": bundle.previous,
    }


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, pair: Pair) -> datetime:
    """Load a pair into a context, through short-lived files that only we can read; returns when it expires."""
    expires = pki.check_pair(pair)
    try:
        with tempfile.TemporaryDirectory(prefix="koordgate-") as directory:  # mode 0700
            certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(f"the TLS library rejects the certificate: {error}") from error
    return expires


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}") from error


class LastingSource(SecretSource):
    """A SecretSource for callers that read the CA once, when they start: its key never changes.

    A CA whose time is over gets another certificate for the same key. A caller then has the rest of the old
    certificate's time to start again. A Secret that was deleted or damaged is restored from what this replica
    remembers. There is another CA only if no replica remembers one.
    `heir_of`: name of a Secret whose CA is taken over if there is none yet. In earlier releases it signed for these
    callers.
    """

    def __init__(
        self, client: KubeClient, namespace: str, wanted: Certificate, heir_of: str, timing: Timing = REAL
    ) -> None:
        super().__init__(client, namespace, wanted, timing)
        self._ancestor = TlsSecret(client, namespace, heir_of)
        self._known = NO_BUNDLE

    @property
    def authority_expires(self) -> datetime | None:
        """When the present certificate of the CA expires; None while there is none."""
        return pki.expires(self._known.authority) if self._known is not NO_BUNDLE else None

    async def current(self) -> tuple[Bundle, datetime]:
        """As of a SecretSource."""
        self._known, now = await super().current()
        return self._known, now

    async def _read(self) -> ServingOffer:
        offer = await super()._read()
        self.published(offer.ca_bundle)  # its callers do not say what they trust
        return offer

    async def judged(self, found: Found, now: datetime) -> tuple[Bundle, Renewal]:
        """As of a SecretSource; a CA that is lost is looked for in our memory, then in the ancestor's Secret."""
        bundle = bundle_in(found) if found.secret is not None else NO_BUNDLE
        renewal = self.renewal(bundle, now, keep_key=True)
        if renewal.step is not Step.AUTHORITY:
            return bundle, renewal
        lost = "there was none" if found.secret is None else renewal.reason
        if self._known is not NO_BUNDLE:
            again = self.renewal(self._known, now, keep_key=True).step
            step = Step.REISSUE if again is Step.REISSUE else Step.CERTIFICATE
            return self._known, Renewal(step, f"{lost}; its authority is remembered, and was restored")
        earlier = bundle_in(await self._ancestor.read())
        if self.renewal(earlier, now, keep_key=True).step is not Step.AUTHORITY:
            return earlier, Renewal(Step.REISSUE, f"{lost}; the authority of {self._ancestor} was taken over")
        return bundle, Renewal(Step.AUTHORITY, f"{lost}; schedulers that run already must be restarted to trust it")


CHECK_S: Final = 60.0
EXTENDER_CA: Final = "extender-ca.crt"
"""The key of the Secret with the CA that the scheduler is to trust. `ca.crt` has it too, but was the webhooks' CA in
earlier releases: a scheduler's Pod that mounts this key waits for the CA that lasts."""


class ClientSecret:
    """Keeps the scheduler's certificate valid."""

    def __init__(
        self, client: KubeClient, settings: WebhookSettings, source: SecretSource, timing: Timing = REAL
    ) -> None:
        # whether a valid certificate has been seen once. It stays true when a later check fails: the mounted
        # certificate remains valid for long.
        self.made = False
        self.problem = "not tried yet"  # why the last check failed; "" if it did not
        self._secret = TlsSecret(client, settings.identity.namespace, settings.certificate.client_secret)
        self._name = settings.scheduler.common_name
        self._days = settings.certificate.authority_days
        self._source = source
        self._timing = timing

    async def run(self) -> None:
        """Check once a minute until cancelled, and sooner after a failure."""
        await self._timing.repeat(self.check, CHECK_S)

    async def check(self) -> bool:
        """Renew the certificate if necessary, and return whether it is valid now."""
        try:
            problem = (
                ""
                if await self._kept()
                else f"{self._secret} was changed by others during each of {_ATTEMPTS} attempts"
            )
        except (KubeError, CertificateError) as error:
            problem = str(error)
        if problem and problem != self.problem:
            _LOG.warning("no certificate for the scheduler: %s", problem)
        self.problem = problem
        self.made = self.made or not problem
        return not problem

    async def _kept(self) -> bool:
        for _ in range(_ATTEMPTS):
            found = await self._secret.read()
            bundle, now = await self._source.current()
            pair = Pair(found.value("tls.crt"), found.value("tls.key"))
            signers = b"\n".join((bundle.authority.certificate, bundle.previous))
            good = pki.still_good(pair, signers, self._timing.earliest, self._name)
            trusts = pki.still_trusted(found.value(EXTENDER_CA), self._timing.earliest)
            self.made = self.made or (good and bool(trusts))  # before it is renewed, which may fail for days
            reason, wanted = self._wanted(pair, bundle, now)
            if all(found.value(key) == value for key, value in wanted.items()):
                return True
            if await self._secret.write(found, wanted):
                _LOG.info("%s: written, because %s", self._secret, reason or "the authorities have changed")
                return True
        return False

    def _wanted(self, pair: Pair, bundle: Bundle, now: datetime) -> tuple[str, dict[str, bytes]]:
        """Why the certificate must be renewed ("" if it need not be), and what the Secret should hold."""
        reason = pki.client_renewal(pair, bundle, self._name, now)
        if reason:
            self._timing.require_agreement(reason)
            pair = pki.new_client_certificate(bundle.authority, self._name, now, self._days)
        authorities = b"".join(
            (*pki.certificates_in(bundle.authority.certificate), *pki.still_trusted(bundle.previous, now))
        )
        return reason, {
            "tls.crt": pair.certificate,
            "tls.key": pair.key,
            "ca.crt": authorities,
            EXTENDER_CA: authorities,
        }
