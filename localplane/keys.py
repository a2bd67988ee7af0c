"""A signing key for service account tokens, without any cryptographic library."""

import base64
import secrets

# The order of the curve P-256 (SEC 2, section 2.4.2).
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# DER: OBJECT IDENTIFIER 1.2.840.10045.3.1.7 (prime256v1).
_CURVE = bytes.fromhex("06082a8648ce3d030107")


def _der(tag: int, content: bytes) -> bytes:
    return bytes((tag, len(content))) + content  # all of ours are shorter than 128 bytes


def signing_key_pem() -> str:
    """A fresh P-256 private key as PEM.

    An ECPrivateKey (RFC 5915) may omit its public half, which Go computes from the private one. What remains is a
    random number in an envelope, which needs neither openssl nor the cryptography package.
    """
    number = (secrets.randbelow(_ORDER - 1) + 1).to_bytes(32, "big")
    key = _der(0x30, _der(0x02, b"\x01") + _der(0x04, number) + _der(0xA0, _CURVE))
    body = base64.encodebytes(key).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body}-----END EC PRIVATE KEY-----\n"
