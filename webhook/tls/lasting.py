"""The extender's certificate and CA: kube-scheduler reads the CA once, so what it trusts must last."""

from datetime import datetime

from koordgate.kube.client import KubeClient
from webhook.settings import Certificate
from webhook.tls import pki
from webhook.tls.certs import NO_BUNDLE, SecretSource, ServingOffer, bundle_in
from webhook.tls.pki import Bundle, Renewal, Step
from webhook.tls.timing import REAL, Timing
from webhook.tls.tlssecret import Found, TlsSecret


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
