"""Keys and certificates for one control plane: a certificate authority, and the certificates that it signs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCK_SKEW = timedelta(minutes=5)
_LIFETIME = timedelta(days=1)
_USES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


class Authority:
    """A certificate authority. It writes its own certificate to `ca.crt` in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("control-plane-authority", ())
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        made = (
            _unsigned(self._name, self._key, _LIFETIME)
            .issuer_name(self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, user: str, groups: Sequence[str] = (), lifetime: timedelta = _LIFETIME) -> tuple[Path, Path]:
        """Issue a certificate for a loopback server, or for a client that is this user in these groups.

        Args:
            user: The common name, which Kubernetes takes for the user's name.
            groups: The organizations, which Kubernetes takes for the user's groups.
            lifetime: How long from now the certificate is valid; if negative, how long ago it expired.

        Returns:
            The files of the certificate and of its key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        made = (
            _unsigned(_name(user, groups), key, lifetime)
            .issuer_name(self._name)
            .add_extension(x509.ExtendedKeyUsage(_USES), critical=False)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = f"{user.replace(':', '-').replace('/', '-')}-{made.serial_number:x}"
        certificate = self._folder / f"{stem}.crt"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return certificate, write_key(key, self._folder / f"{stem}.key")


def new_key(path: Path) -> Path:
    """Write a new private key, which signs service account tokens, to a file; return the path."""
    return write_key(ec.generate_private_key(ec.SECP256R1()), path)


def write_key(key: ec.EllipticCurvePrivateKey, path: Path) -> Path:
    """Write a private key as PEM to a file that only the owner can read; return the path."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return path


def _name(user: str, groups: Sequence[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _unsigned(name: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)  # noqa: TID251 - servers check certificates against the real clock
    ends = now + lifetime
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - _CLOCK_SKEW)
        .not_valid_after(ends)
    )
