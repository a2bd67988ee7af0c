"""Webhook configurations and certificates: what the API server trusts is what replicas show, and lasts."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import Snapshot
from webhook.settings import WebhookSettings
from webhook.tls.pki import CertificateError, Shown, certificates_in, shown

_AREA: Final = "certificates"
_SOON: Final = timedelta(days=5)
_EXTENDER_SOON: Final = timedelta(days=90)
_PRESENT: Final = (
    (
        "mutating",
        ("bindings.mutate.koordgate.io", "pods.mutate.koordgate.io", "updates.mutate.koordgate.io"),
    ),
    ("validating", ("bindings.validate.koordgate.io", "guard.validate.koordgate.io", "pods.validate.koordgate.io")),
)
# An administrator may have opened those of Pods by hand, while no replica answered (docs/operations.md).
_MUST_FAIL: Final = tuple(
    f"{about}.{step}.koordgate.io" for about in ("bindings", "pods") for step in ("mutate", "validate")
)


def certificates(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the webhook configurations and what they trust."""
    settings = snapshot.settings
    if settings is None:
        return
    bundles: set[bytes] = set()
    for key, names in _PRESENT:
        read = snapshot.of(key)
        if read.error:
            todo = "run this as a user who may list webhook configurations"
            yield unknown(_AREA, f"webhook configurations cannot be read: {read.error}", todo)
            continue
        name = {"mutating": settings.identity.mutating, "validating": settings.identity.validating}[key]
        yield from _configuration(read.named(name), f"{key} webhook configuration {name}", names, bundles)
    if settings.certificate.files is None:
        yield from _secrets(snapshot, settings, bundles)


def _configuration(
    found: Mapping[str, Any] | None, about: str, names: tuple[str, ...], bundles: set[bytes]
) -> Iterator[Finding]:
    if found is None:
        yield failure(_AREA, f"there is no {about}", "helm upgrade restores it")
        return
    entries = {one["name"]: one for one in found["webhooks"]}
    if missing := sorted(set(names) - entries.keys()):
        yield failure(_AREA, f"the {about} lacks {listed(missing)}", "helm upgrade restores it")
    loose = [name for name in _MUST_FAIL if name in entries and entries[name].get("failurePolicy") == "Ignore"]
    if loose:
        todo = "helm upgrade restores failurePolicy: Fail"
        yield warning(_AREA, f"failurePolicy is Ignore, so Pods may bypass koordgate: {listed(loose)}", todo)
    empty = [name for name, one in entries.items() if not (one.get("clientConfig") or {}).get("caBundle")]
    if empty:
        todo = "wait until a replica is ready: it publishes its CA; then see its log"
        yield failure(_AREA, f"the {about} states no CA: {listed(empty)}", todo)
        return
    for one in entries.values():
        try:
            bundles.update(certificates_in(base64.b64decode(one["clientConfig"]["caBundle"], validate=True)))
        except (CertificateError, binascii.Error) as error:
            yield failure(_AREA, f"the CA of {one['name']} cannot be read: {error}", "remove caBundle; see the log")
            return
    yield ok(_AREA, f"the {about} has {len(entries)} entries with a CA")


def _secrets(snapshot: Snapshot, settings: WebhookSettings, bundles: set[bytes]) -> Iterator[Finding]:
    read = snapshot.of("secrets")
    if read.error:
        todo = "the dry runs show whether they are accepted; run this as a user who may get Secrets for their dates"
        yield unknown(_AREA, f"the Secrets with certificates cannot be read: {read.error}", todo)
        return
    now = datetime.fromtimestamp(snapshot.now, UTC)
    names = settings.certificate.secret, settings.certificate.extender_secret
    for name, soon in zip(names, (_SOON, _EXTENDER_SOON), strict=True):
        secret = read.named(name)
        if secret is None:
            yield failure(_AREA, f"there is no Secret {name}", "see the log of deployment/koordgate: it makes it")
            continue
        try:
            pems = {key: base64.b64decode(text) for key, text in secret["data"].items()}
            leaf, authority = shown(pems.get("tls.crt", b"")), shown(pems.get("ca.crt", b""))
        except (CertificateError, binascii.Error) as error:
            yield failure(_AREA, f"Secret {name}: {error}", "see the log of deployment/koordgate")
            continue
        yield from _dates(name, leaf, authority, now, soon)
        if name == settings.certificate.secret and bundles and not _trusted(pems["ca.crt"], bundles):
            todo = "see the log of deployment/koordgate: it may not patch its webhook configurations"
            yield failure(_AREA, f"the API server does not trust the CA of Secret {name}", todo)


def _trusted(authority: bytes, bundles: set[bytes]) -> bool:
    return bool(set(certificates_in(authority)) & bundles)


def _dates(name: str, leaf: Shown, authority: Shown, now: datetime, soon: timedelta) -> Iterator[Finding]:
    see = "see the log of deployment/koordgate: clocks, or rights to the Secret"
    for what, one, early in (("certificate", leaf, _SOON), ("CA", authority, soon)):
        if now >= one.ends:
            yield failure(_AREA, f"Secret {name}: the {what} expired at {one.ends:%Y-%m-%d %H:%M} UTC", see)
        elif now < one.begins:
            yield failure(_AREA, f"Secret {name}: the {what} is valid from {one.begins:%Y-%m-%d %H:%M} UTC only", see)
        elif now >= one.ends - early:
            todo = "restart koord-scheduler" if early is _EXTENDER_SOON else see
            yield warning(_AREA, f"Secret {name}: the {what} expires at {one.ends:%Y-%m-%d}", todo)
    if now < leaf.ends:
        yield ok(_AREA, f"Secret {name}: valid until {leaf.ends:%Y-%m-%d}, its CA until {authority.ends:%Y-%m-%d}")
