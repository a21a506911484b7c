"""X.509 certificates: when they expire, and new ones. The only importer of `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ariane.extras import naming_extras

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TEST_NAMES = ("localhost", "127.0.0.1")
TEST_DAYS = 365
WARNING_DAYS = 30  # of validity that are left when a certificate is reported, or replaced by `ariane up --tls`
CLOCK_SKEW = datetime.timedelta(hours=1)  # of machines that check a certificate right after it was created


class KeyPair(NamedTuple):
    """A certificate and its private key, in PEM; the key is unencrypted PKCS#8, as Java reads it."""

    certificate: bytes
    key: bytes


class Validity(NamedTuple):
    """From when until when a certificate is valid, in UTC."""

    begins: datetime.datetime
    ends: datetime.datetime

    def fault(self, now: datetime.datetime) -> str | None:
        """Return why the certificate is not valid; None if it is."""
        if now >= self.ends:
            return f"expired on {self.ends:%Y-%m-%d}"
        return f"is not valid before {self.begins:%Y-%m-%d %H:%M} UTC" if now < self.begins else None

    def days_left(self, now: datetime.datetime) -> float:
        """Return the days until the certificate expires, negative if it has."""
        return (self.ends - now).total_seconds() / 86_400


class CertificateSummary(NamedTuple):
    """What a certificate says."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """Host names and addresses."""
    validity: Validity
    fingerprint: str
    """SHA-256, in hexadecimal."""


def summarize(pem: bytes) -> CertificateSummary:
    """Return what the first certificate of a PEM text says.

    Raises:
        ValueError: the text contains no certificate.
        MissingPackage: `cryptography` is not installed.
    """
    with naming_extras():
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
    first = x509.load_pem_x509_certificates(pem)[0]
    try:
        extension = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names: tuple[str, ...] = ()
    else:
        dns, addresses = extension.get_values_for_type(x509.DNSName), extension.get_values_for_type(x509.IPAddress)
        names = (*dns, *map(str, addresses))
    return CertificateSummary(
        first.subject.rfc4514_string(),
        first.issuer.rfc4514_string(),
        names,
        Validity(first.not_valid_before_utc, first.not_valid_after_utc),
        first.fingerprint(hashes.SHA256()).hex(),
    )


def self_signed(now: datetime.datetime) -> KeyPair:
    """Return a certificate that no client can verify, for `tls.test.mode.enable`. [SelfSignedCertificate]"""
    return create(TEST_NAMES[0], now, days=TEST_DAYS, names=TEST_NAMES)


def create(
    subject: str,
    now: datetime.datetime,
    *,
    days: int,
    names: Sequence[str] = (),
    issuer: KeyPair | None = None,
    is_authority: bool = False,
) -> KeyPair:
    """Return a new certificate with an elliptic key (P-256).

    Args:
        subject: Common name.
        now: Begin of its validity, apart from CLOCK_SKEW.
        days: Validity.
        names: Host names and addresses that it is valid for.
        issuer: The authority that signs it; None: self-signed.
        is_authority: Whether it may sign others.
    """
    with naming_extras():
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    key = ec.generate_private_key(ec.SECP256R1())
    signer: EllipticCurvePrivateKey = key
    issuer_name = name = _common_name(subject)
    if issuer is not None:
        signer = serialization.load_pem_private_key(issuer.key, None)  # type: ignore[assignment]
        issuer_name = x509.load_pem_x509_certificate(issuer.certificate).subject
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if is_authority:  # Python's default contexts refuse an authority without it from 3.13 on
        absent = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **absent)
        builder = builder.add_extension(usage, critical=True)
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative_name(text) for text in names]), critical=False
        )
    encoding = serialization.Encoding.PEM
    return KeyPair(
        builder.sign(signer, hashes.SHA256()).public_bytes(encoding),
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def decrypted_key(pem: bytes, password: str) -> bytes:
    """Return a key as unencrypted PKCS#8, in PEM. Raise ValueError if the password does not decrypt it."""
    with naming_extras():
        from cryptography.hazmat.primitives import serialization
    key = serialization.load_pem_private_key(pem, password.encode())
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _common_name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _alternative_name(text: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
