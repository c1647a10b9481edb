"""Keys and certificates of a deployment, by the package `cryptography`, which Flower brings."""

import datetime
import hashlib
import ipaddress

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from ...core.errors import InputError

AUTHORITY_YEARS = 10
CERTIFICATE_DAYS = 398  # the most that TLS clients commonly accept
SLACK = datetime.timedelta(hours=1)  # clocks of sites differ

Certificate = x509.Certificate
PrivateKey = ec.EllipticCurvePrivateKey


def new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def authority(key: PrivateKey) -> Certificate:
    """A certificate authority that may sign certificates of machines, and nothing below them."""
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    builder = _builder("our federation", key, AUTHORITY_YEARS * 365)
    builder = builder.issuer_name(_name("our federation"))
    builder = builder.add_extension(constraints, critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA384())


def certificate(
    name: str,
    hosts: list[str],
    key: PrivateKey,
    issuer: Certificate,
    issuer_key: PrivateKey,
) -> Certificate:
    """For a server that is dialled at these host names or IP addresses."""
    server = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _builder(name, key, CERTIFICATE_DAYS)
    builder = builder.issuer_name(issuer.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(server, critical=False)
    builder = builder.add_extension(_alternative_names(hosts), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def self_signed(name: str, hosts: list[str], key: PrivateKey) -> Certificate:
    """For traffic between processes of one machine; it vouches for nothing else."""
    builder = _builder(name, key, AUTHORITY_YEARS * 365)
    builder = builder.issuer_name(_name(name))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_alternative_names(hosts), critical=False)
    return builder.sign(key, hashes.SHA384())


def pem(what: Certificate | PrivateKey) -> bytes:
    """As TLS servers read it."""
    if isinstance(what, x509.Certificate):
        return what.public_bytes(serialization.Encoding.PEM)
    return what.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def ssh_private(key: PrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    """As `ssh-keygen` writes it and Flower reads it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def ssh_public(key: PrivateKey | ed25519.Ed25519PrivateKey, comment: str) -> bytes:
    return _ssh_line(key.public_key(), comment)


def _ssh_line(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey, comment: str) -> bytes:
    public = key.public_bytes(
        serialization.Encoding.OpenSSH,
        serialization.PublicFormat.OpenSSH,
    )
    return public + f" {comment}\n".encode()


def read_public(text: bytes, site: str) -> bytes:
    """A site's public key, which it may have made itself, with the site's name as its comment."""
    try:
        key = serialization.load_ssh_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(
            f"sites/{site}/key.pub is no key that Flower takes; the site makes one: ssh-keygen -t ecdsa -b 384 -f key"
        )
    return _ssh_line(key, site)


def new_release_key() -> ed25519.Ed25519PrivateKey:
    """Signs apps; Flower takes Ed25519 alone for that."""
    return ed25519.Ed25519PrivateKey.generate()


def key_name(key: ed25519.Ed25519PrivateKey) -> str:
    """What signatures and `--trusted-entities` call the key."""
    public = key.public_key().public_bytes_raw()
    digest = hashlib.sha256(public).hexdigest()
    return f"release-{digest[:16]}"


def read_authority(certificate_pem: bytes, key_pem: bytes) -> tuple[Certificate, PrivateKey]:
    """An authority made earlier, which must be a pair."""
    try:
        issuer = x509.load_pem_x509_certificate(certificate_pem)
        key = serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        raise InputError(f"ca.crt or ca.key cannot be read ({error}); restore both, or use a new folder") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != issuer.public_key():
        raise InputError("ca.key is not the key of ca.crt; restore the pair, or use a new folder")
    return issuer, key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(name: str, key: PrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    public = key.public_key()
    builder = x509.CertificateBuilder().subject_name(_name(name[:64])).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - SLACK)
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(hosts: list[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)
