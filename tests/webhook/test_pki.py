"""Certificates as they are made, and when they are renewed."""

import ssl
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from webhook.tls import pki
from webhook.tls.pki import Bundle, CertificateError, Pair, Step

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMES = ("koordgate.koordgate-system.svc", "koordgate")
ADDRESSES = ("10.0.0.1", "fd00::1")
SECOND = timedelta(seconds=1)


def made(now: datetime = NOW, authority_days: float = 90, days: float = 30) -> Bundle:
    authority = pki.new_authority("koordgate", now, authority_days)
    return Bundle(pki.new_certificate(authority, NAMES, ADDRESSES, now, days), authority)


def bare(authority: Pair | None = None) -> Pair:
    """A certificate without any extension, signed by an authority or by its own key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bare")])
    signer: Any = key
    issuer = name
    if authority is not None:
        issuer = x509.load_pem_x509_certificate(authority.certificate).subject
        signer = load_pem_private_key(authority.key, None)
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(NOW - pki.BACKDATED).not_valid_after(NOW + timedelta(days=30))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(builder.sign(signer, SHA256()).public_bytes(Encoding.PEM), pem)


BUNDLE = made()
OTHER = made()
YOUNG_AUTHORITY = made(authority_days=3, days=3)


def extension(pem: bytes, kind: type[Any]) -> Any:
    return x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(kind).value


# --- what is made


def test_an_authority_may_sign_certificates_and_nothing_else() -> None:
    pem = BUNDLE.authority.certificate
    assert extension(pem, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    uses = extension(pem, x509.KeyUsage)
    assert (uses.key_cert_sign, uses.crl_sign, uses.digital_signature) == (True, True, False)


def test_a_certificate_may_serve_under_its_names_and_nothing_else() -> None:
    pem = BUNDLE.leaf.certificate
    assert extension(pem, x509.BasicConstraints).ca is False
    assert [use.dotted_string for use in extension(pem, x509.ExtendedKeyUsage)] == ["1.3.6.1.5.5.7.3.1"]
    names = extension(pem, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == list(NAMES)
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == list(ADDRESSES)
    uses = extension(pem, x509.KeyUsage)
    assert (uses.digital_signature, uses.key_cert_sign) == (True, False)


@pytest.mark.parametrize(
    ("pem", "must_be_understood", "need_not"),
    [
        pytest.param(BUNDLE.authority.certificate, {"basicConstraints", "keyUsage"}, set(), id="authority"),
        pytest.param(
            BUNDLE.leaf.certificate,
            {"basicConstraints", "keyUsage"},
            {"extendedKeyUsage", "authorityKeyIdentifier", "subjectAltName"},
            id="server",
        ),
        pytest.param(
            pki.new_client_certificate(BUNDLE.authority, "c", NOW, 30).certificate,
            {"basicConstraints", "keyUsage"},
            {"extendedKeyUsage", "authorityKeyIdentifier"},
            id="client",
        ),
    ],
)
def test_what_restricts_a_certificate_must_be_understood_and_the_rest_need_not(
    pem: bytes, must_be_understood: set[str], need_not: set[str]
) -> None:
    found = {one.oid._name: one.critical for one in x509.load_pem_x509_certificate(pem).extensions}
    assert {name for name, critical in found.items() if critical} == must_be_understood
    assert found.keys() - must_be_understood == need_not | {"subjectKeyIdentifier"}


def test_a_certificate_names_its_authoritys_key() -> None:
    issuer = extension(BUNDLE.authority.certificate, x509.SubjectKeyIdentifier).digest
    assert extension(BUNDLE.leaf.certificate, x509.AuthorityKeyIdentifier).key_identifier == issuer


def test_validity_begins_an_hour_early_for_clocks_that_are_behind() -> None:
    for pem, days in ((BUNDLE.authority.certificate, 90), (BUNDLE.leaf.certificate, 30)):
        certificate = x509.load_pem_x509_certificate(pem)
        assert certificate.not_valid_before_utc == NOW - timedelta(hours=1)
        assert certificate.not_valid_after_utc == NOW + timedelta(days=days)


def test_a_certificate_never_outlives_its_authority() -> None:
    assert pki.check_pair(made(authority_days=3, days=30).leaf) == NOW + timedelta(days=3)


def test_two_authorities_made_at_once_have_different_names_and_numbers() -> None:
    one, two = (x509.load_pem_x509_certificate(bundle.authority.certificate) for bundle in (BUNDLE, OTHER))
    assert one.subject != two.subject
    for made_for in (one, two):
        (number,) = made_for.subject.get_attributes_for_oid(x509.NameOID.SERIAL_NUMBER)
        assert number.value == f"{made_for.serial_number:x}"[:16]
    assert one.serial_number != two.serial_number


def test_keys_are_on_p256_and_never_shown() -> None:
    assert load_pem_private_key(BUNDLE.leaf.key, None).curve.name == "secp256r1"  # type: ignore[union-attr]
    assert "PRIVATE" not in repr(BUNDLE)


@pytest.mark.parametrize(
    ("dns_names", "addresses", "message"),
    [
        ((), (), "needs a DNS name or an IP address"),
        (("gåte.example",), (), "cannot be for that name"),
        ((), ("10.0.0",), "cannot be for that name"),
    ],
)
def test_a_name_that_cannot_be_certified_is_refused(
    dns_names: tuple[str, ...], addresses: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CertificateError, match=message):
        pki.new_certificate(BUNDLE.authority, dns_names, addresses, NOW, 30)


def test_an_authority_that_has_expired_signs_nothing() -> None:
    with pytest.raises(CertificateError, match="the authority expired at 2026-05-30T12:00:00Z"):
        pki.new_certificate(BUNDLE.authority, NAMES, (), NOW + timedelta(days=90), 30)


# --- a client's

SCHEDULER = "koord-scheduler"


def test_a_client_certificate_says_who_it_is_and_can_serve_nothing() -> None:
    pem = pki.new_client_certificate(BUNDLE.authority, SCHEDULER, NOW, 365).certificate
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate.subject.rfc4514_string() == f"CN={SCHEDULER}"
    assert [use.dotted_string for use in extension(pem, x509.ExtendedKeyUsage)] == ["1.3.6.1.5.5.7.3.2"]
    assert extension(pem, x509.BasicConstraints).ca is False
    with pytest.raises(x509.ExtensionNotFound):
        extension(pem, x509.SubjectAlternativeName)
    assert certificate.not_valid_after_utc == NOW + timedelta(days=90), "it does not outlive its authority"


@pytest.mark.parametrize("name", ["", "x" * 65], ids=["empty", "65 characters"])
def test_a_client_without_a_name_that_can_be_certified_is_refused(name: str) -> None:
    with pytest.raises(CertificateError, match="cannot be for the name"):
        pki.new_client_certificate(BUNDLE.authority, name, NOW, 30)


def client(authority: Pair, name: str = SCHEDULER, now: datetime = NOW, days: float = 30) -> Pair:
    return pki.new_client_certificate(authority, name, now, days)


GOOD = client(BUNDLE.authority)
NEWER = replace(OTHER, previous=BUNDLE.authority.certificate)
"""A bundle whose authority followed the one that signed GOOD."""
NEWEST = replace(YOUNG_AUTHORITY, previous=OTHER.authority.certificate + BUNDLE.authority.certificate)
"""A bundle whose authority followed one that followed the one that signed GOOD."""
LONG = client(BUNDLE.authority, days=90)

CLIENT_CASES = {
    "as made": (GOOD, BUNDLE, NOW, ""),
    "just before two thirds": (GOOD, BUNDLE, NOW + timedelta(days=20) - SECOND, ""),
    "at two thirds": (GOOD, BUNDLE, NOW + timedelta(days=20), "two thirds of the certificate's life have passed"),
    "expired": (GOOD, BUNDLE, NOW + timedelta(days=30), "the certificate expired"),
    "none": (Pair(b"", b""), BUNDLE, NOW, "the certificate is empty"),
    "broken": (Pair(GOOD.certificate[:99], GOOD.key), BUNDLE, NOW, "the certificate cannot be read"),
    "another key": (Pair(GOOD.certificate, OTHER.leaf.key), BUNDLE, NOW, "the key does not match"),
    "another name": (
        client(BUNDLE.authority, "koord-scheduler-2"),
        BUNDLE,
        NOW,
        "is for ['koord-scheduler-2'], and must be for",
    ),
    "a server's": (BUNDLE.leaf, BUNDLE, NOW, "is not a client certificate"),
    "one that states no use": (bare(BUNDLE.authority), BUNDLE, NOW, "is not a client certificate"),
    "another authority": (client(OTHER.authority), BUNDLE, NOW, "not signed by the authority"),
    "a new authority": (GOOD, NEWER, NOW, ""),
    "past two thirds, a new authority": (LONG, NEWER, NOW + timedelta(minutes=29), ""),
    "an authority after a new one": (GOOD, NEWEST, NOW, ""),
    "the new authority is known to all": (GOOD, NEWER, NOW + timedelta(minutes=30), "signed by an earlier authority"),
    "a new authority, expired": (
        client(BUNDLE.authority, now=NOW - timedelta(days=2), days=1),
        NEWER,
        NOW,
        "signed by an earlier authority",
    ),
    "the earlier authority has expired": (LONG, NEWER, NOW + timedelta(days=90), "not signed by the authority"),
}


@pytest.mark.parametrize("case", CLIENT_CASES)
def test_when_a_client_certificate_is_renewed_and_why(case: str) -> None:
    pair, bundle, now, reason = CLIENT_CASES[case]
    told = pki.client_renewal(pair, bundle, SCHEDULER, now)
    assert bool(told) == bool(reason)
    assert reason in told


# --- when it is renewed

CASES = {
    "as made": (BUNDLE, NOW, Step.NONE, ""),
    "an hour before it was made": (BUNDLE, NOW - timedelta(hours=1), Step.NONE, ""),
    "more than an hour before it was made": (
        BUNDLE,
        NOW - timedelta(hours=1) - SECOND,
        Step.AUTHORITY,
        "is not valid before",
    ),
    "just before two thirds of the certificate": (BUNDLE, NOW + timedelta(days=20) - SECOND, Step.NONE, ""),
    "at two thirds of the certificate": (
        BUNDLE,
        NOW + timedelta(days=20),
        Step.CERTIFICATE,
        "two thirds of the certificate's life have passed",
    ),
    "at the certificate's end": (BUNDLE, NOW + timedelta(days=30), Step.CERTIFICATE, "the certificate expired"),
    "just before two thirds of the authority": (
        YOUNG_AUTHORITY,
        NOW + timedelta(days=2) - SECOND,
        Step.NONE,
        "",
    ),
    "at two thirds of the authority": (
        YOUNG_AUTHORITY,
        NOW + timedelta(days=2),
        Step.AUTHORITY,
        "two thirds of the authority's life have passed",
    ),
    "at the authority's end": (BUNDLE, NOW + timedelta(days=90), Step.AUTHORITY, "the authority expired"),
    "no certificate": (replace(BUNDLE, leaf=Pair(b"", b"")), NOW, Step.CERTIFICATE, "the certificate is empty"),
    "a broken certificate": (
        replace(BUNDLE, leaf=Pair(BUNDLE.leaf.certificate[:99], BUNDLE.leaf.key)),
        NOW,
        Step.CERTIFICATE,
        "the certificate cannot be read",
    ),
    "a broken key": (
        replace(BUNDLE, leaf=Pair(BUNDLE.leaf.certificate, b"?")),
        NOW,
        Step.CERTIFICATE,
        "the key cannot be read",
    ),
    "another certificate's key": (
        replace(BUNDLE, leaf=Pair(BUNDLE.leaf.certificate, OTHER.leaf.key)),
        NOW,
        Step.CERTIFICATE,
        "the key does not match",
    ),
    "another authority's certificate": (
        replace(BUNDLE, leaf=OTHER.leaf),
        NOW,
        Step.CERTIFICATE,
        "not signed by the authority",
    ),
    "no authority": (
        replace(BUNDLE, authority=Pair(b"", b"")),
        NOW,
        Step.AUTHORITY,
        "the authority certificate is empty",
    ),
    "no authority key": (
        replace(BUNDLE, authority=Pair(BUNDLE.authority.certificate, b"")),
        NOW,
        Step.AUTHORITY,
        "the authority key is empty",
    ),
    "another authority's key": (
        replace(BUNDLE, authority=Pair(BUNDLE.authority.certificate, OTHER.authority.key)),
        NOW,
        Step.AUTHORITY,
        "the authority key does not match",
    ),
    "a certificate in the authority's place": (
        replace(BUNDLE, authority=BUNDLE.leaf),
        NOW,
        Step.AUTHORITY,
        "does not belong to a CA",
    ),
    "an authority that does not say so": (
        replace(BUNDLE, authority=bare()),
        NOW,
        Step.AUTHORITY,
        "does not belong to a CA",
    ),
    "a certificate without names": (
        replace(BUNDLE, leaf=bare(BUNDLE.authority)),
        NOW,
        Step.CERTIFICATE,
        "the certificate is for no name, and must be for 10.0.0.1, fd00::1, koordgate",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_renewed_and_why(case: str) -> None:
    bundle, now, step, reason = CASES[case]
    decided = pki.renewal(bundle, now, NAMES, ADDRESSES)
    assert decided.step is step
    assert reason in decided.reason
    assert bool(decided.reason) == (step is not Step.NONE)


@pytest.mark.parametrize(
    ("dns_names", "addresses", "step"),
    [
        (NAMES, ADDRESSES, Step.NONE),
        (NAMES[::-1], ADDRESSES, Step.NONE),
        (("KOORDGATE", "koordgate.koordgate-system.svc"), ADDRESSES, Step.NONE),
        (NAMES, ("10.0.0.1", "FD00:0::1"), Step.NONE),
        (NAMES[:1], (), Step.NONE),  # more names than wanted do no harm
        ((*NAMES, "other"), ADDRESSES, Step.CERTIFICATE),
        (NAMES, ("10.0.0.2",), Step.CERTIFICATE),
    ],
)
def test_a_certificate_that_lacks_a_name_is_renewed(
    dns_names: tuple[str, ...], addresses: tuple[str, ...], step: Step
) -> None:
    assert pki.renewal(BUNDLE, NOW, dns_names, addresses).step is step


def test_the_reason_names_the_names() -> None:
    reason = pki.renewal(BUNDLE, NOW, ("new.example",)).reason
    has = "10.0.0.1, fd00::1, koordgate, koordgate.koordgate-system.svc"
    assert reason == f"the certificate is for {has}, and must be for new.example"


# --- bundles


def test_certificates_of_a_bundle_come_each_once_and_alike() -> None:
    one, two = BUNDLE.authority.certificate, OTHER.authority.certificate
    assert pki.certificates_in(b"# a comment\n" + one + two.replace(b"\n", b"\r\n") + one) == (one, two)


@pytest.mark.parametrize("pem", [b"", b"no PEM", BUNDLE.leaf.key])
def test_a_bundle_without_certificates_is_refused(pem: bytes) -> None:
    with pytest.raises(CertificateError, match="no PEM certificate"):
        pki.certificates_in(pem)


def test_expired_and_broken_certificates_are_not_trusted() -> None:
    old = made(NOW - timedelta(days=90)).authority.certificate
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    pem = b"".join((old, broken, BUNDLE.authority.certificate))
    assert pki.still_trusted(pem, NOW) == (BUNDLE.authority.certificate,)
    assert pki.still_trusted(pem, NOW - SECOND) == (old, BUNDLE.authority.certificate)


def test_a_tls_client_that_trusts_the_authority_accepts_the_certificate(tmp_path: Path) -> None:
    bundle = made(datetime.now(UTC))
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cadata=(OTHER.authority.certificate + bundle.authority.certificate).decode()),
    )
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    (file := tmp_path / "pair").write_bytes(bundle.leaf.key + bundle.leaf.certificate)
    server.load_cert_chain(file)
    away, home = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(away, home, server_side=True), client.wrap_bio(home, away, server_hostname="fd00::1")]
    for end in ends * 4:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert ends[1].getpeercert()
