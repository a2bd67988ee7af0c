"""The scheduler's certificate: signed by the extender's CA, kept in a Secret that the scheduler's Pod mounts.

All replicas renew it in time. A replica that does not know a new CA yet must not restore a certificate signed by the
old one. Each replica therefore reads this Secret, *then* reads the CA, and writes on condition that the Secret is
unchanged.
"""

import logging
from datetime import datetime
from typing import Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from webhook.settings import WebhookSettings
from webhook.tls import pki
from webhook.tls.certs import SecretSource
from webhook.tls.pki import Bundle, CertificateError, Pair
from webhook.tls.timing import REAL, Timing
from webhook.tls.tlssecret import TlsSecret

CHECK_S: Final = 60.0
EXTENDER_CA: Final = "extender-ca.crt"
"""The key of the Secret with the CA that the scheduler is to trust. `ca.crt` has it too, but was the webhooks' CA in
earlier releases: a scheduler's Pod that mounts this key waits for the CA that lasts."""
_ATTEMPTS: Final = 5
_LOG: Final = logging.getLogger(__name__)


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
