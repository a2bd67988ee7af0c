"""Makes, reads and judges keys and certificates. The only importer of cryptography.

The time is an argument; the only randomness is in new keys and serial numbers.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED: Final = timedelta(hours=1)
"""A certificate is valid from this long before it is made, since clocks differ."""

CLIENT_OVERLAP: Final = timedelta(minutes=30)
"""How long clients keep their certificates after a new CA was made; by then every replica trusts the new CA too."""

_USES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.ExtensionNotFound)


class CertificateError(ValueError):
    """A certificate or key that cannot be read, made or used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (with any intermediate ones) and its key, both PEM; empty where missing."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What the replicas share."""

    leaf: Pair  # the server's certificate and its key
    authority: Pair  # the CA that signed it, and its key
    previous: bytes = b""  # earlier CAs, as PEM, whose certificates some replica may still serve


class Step(Enum):
    """What must be renewed."""

    NONE = auto()  # nothing
    CERTIFICATE = auto()
    # both certificates, while the CA keeps its key: whoever trusts its old certificate trusts the new ones
    REISSUE = auto()
    AUTHORITY = auto()  # the CA with its key, and the server's certificate


class Renewal(NamedTuple):
    """What must be renewed, and why; the reason is "" if nothing must be."""

    step: Step
    reason: str


class Shown(NamedTuple):
    """The time for which a certificate is valid."""

    begins: datetime  # from when on
    ends: datetime  # until when


def shown(pem: bytes) -> Shown:
    """Read the first certificate of a file that comes without its key.

    Raises CertificateError: there is none, or it cannot be read.
    """
    certificate = _certificate(pem, "certificate")
    return Shown(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def new_authority(name: str, now: datetime, days: float) -> Pair:
    """Make a self-signed CA, with a number in its name: issuers are found by name, and bundles hold several."""
    serial = x509.random_serial_number()
    number = x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{serial:x}"[:16])
    subject = x509.Name((x509.NameAttribute(NameOID.COMMON_NAME, name), number))
    return _self_signed(ec.generate_private_key(ec.SECP256R1()), subject, serial, now, days)


def reissued(authority: Pair, now: datetime, days: float) -> Pair:
    """Make another certificate for the same CA: its name and key stay.

    What the CA has signed is valid under both certificates (RFC 5280, section 6.1: a path is built by name and key).
    Raises CertificateError: the CA cannot be read, or koordgate did not make it.
    """
    subject = _certificate(authority.certificate, "authority certificate").subject
    return _self_signed(_signing_key(authority), subject, x509.random_serial_number(), now, days)


def _self_signed(key: ec.EllipticCurvePrivateKey, subject: x509.Name, serial: int, now: datetime, days: float) -> Pair:
    begin = now.replace(microsecond=0)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), serial)
        .not_valid_before(begin - BACKDATED)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_uses("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _key_pem(key))


def new_certificate(
    authority: Pair, dns_names: Iterable[str], ip_addresses: Iterable[str], now: datetime, days: float
) -> Pair:
    """Make a server certificate signed by a CA of `new_authority`.

    `days`: how long it is valid, at most as long as the CA. Raises CertificateError: there is no name, one is not
    valid, or the CA cannot be read.
    """
    names = x509.SubjectAlternativeName(check_names(dns_names, ip_addresses))
    return _signed(authority, "koordgate", ExtendedKeyUsageOID.SERVER_AUTH, now, days, (names,))


def new_client_certificate(authority: Pair, name: str, now: datetime, days: float) -> Pair:
    """Make a client certificate signed by a CA of `new_authority`; it is not valid for servers.

    `days`: how long it is valid, at most as long as the CA. Raises CertificateError: the name is not valid, or the CA
    cannot be read.
    """
    return _signed(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, now, days)


def _signed(
    authority: Pair,
    name: str,
    use: x509.ObjectIdentifier,
    now: datetime,
    days: float,
    more: Iterable[x509.ExtensionType] = (),
) -> Pair:
    issuer = _certificate(authority.certificate, "authority certificate")
    issuer_key = _signing_key(authority)
    if now >= issuer.not_valid_after_utc:
        raise CertificateError(f"the authority expired at {issuer.not_valid_after_utc:{_TIME}}")
    try:
        subject = x509.Name((x509.NameAttribute(NameOID.COMMON_NAME, name),))
    except ValueError as error:
        raise CertificateError(f"a certificate cannot be for the name {name[:100]!r}: {error}") from error
    key = ec.generate_private_key(ec.SECP256R1())
    begin = now.replace(microsecond=0)
    builder = (
        x509.CertificateBuilder(issuer.subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin - BACKDATED)
        .not_valid_after(min(begin + timedelta(days=days), issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_uses("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage((use,)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return Pair(_pem(builder.sign(issuer_key, hashes.SHA256())), _key_pem(key))


def _signing_key(authority: Pair) -> ec.EllipticCurvePrivateKey:
    key = _key(authority.key, "authority key")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the authority key is not an elliptic-curve key, so koordgate did not make it")
    return key


def renewal(
    bundle: Bundle,
    now: datetime,
    dns_names: Iterable[str],
    ip_addresses: Iterable[str] = (),
    *,
    keep_key: bool = False,
) -> Renewal:
    """Decide what in a bundle must be renewed.

    `dns_names`: that the certificate must have. `ip_addresses`: that the certificate must have. `keep_key`: whether a
    CA whose time is over is reissued, instead of replaced.
    """
    try:
        authority = _certificate(bundle.authority.certificate, "authority certificate")
        unfit = _unfit_authority(authority, _key(bundle.authority.key, "authority key").public_key())
    except CertificateError as error:
        unfit = str(error)
    else:
        late = "" if unfit else _untimely(authority, now, "authority")
        if late and keep_key:
            return Renewal(Step.REISSUE, late)
        if not unfit and not late:
            return _leaf_renewal(bundle, authority, now, check_names(dns_names, ip_addresses))
        unfit = unfit or late
    return Renewal(Step.AUTHORITY, unfit)


def client_renewal(pair: Pair, bundle: Bundle, name: str, now: datetime) -> str:
    """Why a client certificate must be renewed; "" if it need not be."""
    try:
        check_pair(pair)
        certificate = _certificate(pair.certificate, "certificate")
        authority = _certificate(bundle.authority.certificate, "authority certificate")
    except CertificateError as error:
        return str(error)
    reason = _misnamed(certificate, name)
    if reason or not _not_signed(certificate, authority):
        return reason or _untimely(certificate, now, "certificate")
    earlier = (_certificate(pem, "authority certificate") for pem in still_trusted(bundle.previous, now))
    if all(_not_signed(certificate, one) for one in earlier):
        return "the certificate is not signed by the authority"
    if now >= _issued(authority) + CLIENT_OVERLAP or now >= certificate.not_valid_after_utc:
        return "the certificate is signed by an earlier authority"
    return ""


def check_pair(pair: Pair) -> datetime:
    """Check that a key belongs to a certificate and return when the certificate expires.

    Raises CertificateError: the key does not belong to it, or one of them cannot be read.
    """
    certificate = _certificate(pair.certificate, "certificate")
    if _bare(certificate.public_key()) != _bare(_key(pair.key, "key").public_key()):
        raise CertificateError("the key does not match the certificate")
    return certificate.not_valid_after_utc


def still_good(pair: Pair, authorities: bytes, now: datetime, name: str = "") -> bool:
    """Whether a certificate has its key, is signed by one of these CAs, and neither of the two has expired.

    `name`: that a client's certificate must be for; "" for a server's.
    """
    try:
        expires = check_pair(pair)
        certificate = _certificate(pair.certificate, "certificate")
    except CertificateError:
        return False
    signers = (_certificate(pem, "authority certificate") for pem in still_trusted(authorities, now))
    signed = any(not _not_signed(certificate, one) for one in signers)
    return now < expires and signed and not (name and _misnamed(certificate, name))


def issued(authority: Pair) -> datetime:
    """When a CA was made."""
    return _issued(_certificate(authority.certificate, "authority certificate"))


def expires(authority: Pair) -> datetime:
    """When a CA expires."""
    return _certificate(authority.certificate, "authority certificate").not_valid_after_utc


def certificates_in(pem: bytes) -> tuple[bytes, ...]:
    """The certificates of a PEM file, each once and in the same encoding.

    Raises CertificateError: the file has none, or one cannot be read.
    """
    found = [_certificate(block, "authority certificate") for block in _BLOCK.findall(pem)]
    if not found:
        raise CertificateError("there is no PEM certificate in the authority file")
    return tuple(dict.fromkeys(_pem(certificate) for certificate in found))


def still_trusted(pem: bytes, now: datetime) -> tuple[bytes, ...]:
    """As `certificates_in`, without those that have expired or cannot be read."""
    kept: dict[bytes, None] = {}
    for block in _BLOCK.findall(pem):
        try:
            certificate = _certificate(block, "authority certificate")
        except CertificateError:
            continue
        if now < certificate.not_valid_after_utc:
            kept[_pem(certificate)] = None
    return tuple(kept)


def _leaf_renewal(bundle: Bundle, authority: x509.Certificate, now: datetime, names: list[x509.GeneralName]) -> Renewal:
    try:
        check_pair(bundle.leaf)
        certificate = _certificate(bundle.leaf.certificate, "certificate")
        reason = (
            _not_signed(certificate, authority)
            or _untimely(certificate, now, "certificate")
            or _renamed(certificate, names)
        )
    except CertificateError as error:
        reason = str(error)
    return Renewal(Step.CERTIFICATE, reason) if reason else Renewal(Step.NONE, "")


def _unfit_authority(authority: x509.Certificate, key: PublicKeyTypes) -> str:
    try:
        signs = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _UNREADABLE:
        signs = False
    if not signs:
        return "the authority certificate does not belong to a CA"
    if _bare(authority.public_key()) != _bare(key) or not isinstance(key, ec.EllipticCurvePublicKey):
        return "the authority key does not match the authority certificate"
    return ""


def _untimely(certificate: x509.Certificate, now: datetime, what: str) -> str:
    """Why `now` is outside the first two thirds of a certificate's life; "" if it is inside."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        return f"the {what} is not valid before {begin:{_TIME}}"
    issued = _issued(certificate)
    if now >= end:
        return f"the {what} expired at {end:{_TIME}}"
    if now >= issued + (end - issued) * 2 / 3:
        return f"two thirds of the {what}'s life have passed; it expires at {end:{_TIME}}"
    return ""


def _not_signed(certificate: x509.Certificate, authority: x509.Certificate) -> str:
    try:
        certificate.verify_directly_issued_by(authority)
    except (*_UNREADABLE, InvalidSignature):
        return "the certificate is not signed by the authority"
    return ""


def _renamed(certificate: x509.Certificate, names: list[x509.GeneralName]) -> str:
    try:
        has = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except _UNREADABLE:
        has = []
    # Surplus names may stay until the next renewal: during a rollout that adds a name, old and new replicas would
    # otherwise replace each other's certificate in turn.
    if set(has) >= set(names):
        return ""
    return f"the certificate is for {_spoken(has)}, and must be for {_spoken(names)}"


def _misnamed(certificate: x509.Certificate, name: str) -> str:
    """Why a certificate is not this client's; "" if it is."""
    try:
        uses = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        has = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except _UNREADABLE:
        uses, has = [], []
    if uses != [ExtendedKeyUsageOID.CLIENT_AUTH]:
        return "the certificate is not a client certificate"
    return "" if has == [name] else f"the certificate is for {has}, and must be for {name!r}"


def _spoken(names: Iterable[x509.GeneralName]) -> str:
    return ", ".join(sorted(str(name.value) for name in names)) or "no name"


def _issued(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_before_utc + BACKDATED


def check_names(dns_names: Iterable[str], ip_addresses: Iterable[str]) -> list[x509.GeneralName]:
    """Each name once, DNS names in lower case.

    Raises CertificateError: there is none, or one is not valid.
    """
    try:
        dns = [x509.DNSName(name.lower()) for name in dns_names]
        addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ip_addresses]
    except ValueError as error:
        raise CertificateError(f"a certificate cannot be for that name: {error}") from error
    names: list[x509.GeneralName] = list(dict.fromkeys((*dns, *addresses)))
    if not names:
        raise CertificateError(
            "a certificate needs a DNS name or an IP address, such as koordgate.koordgate-system.svc"
        )
    return names


@lru_cache(maxsize=32)
def _certificate(pem: bytes, what: str) -> x509.Certificate:
    """The first certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except _UNREADABLE as error:
        raise CertificateError(f"the {what} {'is empty' if not pem.strip() else 'cannot be read'}") from error


def _key(pem: bytes, what: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except _UNREADABLE as error:
        raise CertificateError(f"the {what} {'is empty' if not pem.strip() else 'cannot be read'}") from error


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _bare(key: PublicKeyTypes) -> bytes:
    """A public key as bytes that can be compared."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _uses(*granted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in granted for use in _USES})
