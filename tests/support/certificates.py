"""Certificates for tests: made on the spot, for a name or an address, trusted by nobody else."""

import datetime as dt
import ssl
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_pair(certificate: Path, key: Path, name: str, password: bytes | None = None) -> ssl.SSLContext:
    """Write a certificate and its key, into one file where both paths are the same; the side of a client that trusts no
    other."""
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    public = (
        x509.CertificateBuilder(subject, subject, secret.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=60))
        .add_extension(x509.SubjectAlternativeName([_alternative(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private = secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    certificate.write_bytes(public)
    key.write_bytes(private + (public if key == certificate else b""))
    key.chmod(0o600)
    return ssl.create_default_context(cadata=public.decode())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
