"""Keys of a fleet: only those with a copy of the folder can take part.

The folder has an authority and one certificate signed by it, for schedulers, workers and clients
alike. The authority's private key is discarded: it can sign nothing else, and a fleet whose folder
was lost or leaked needs a new one.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tilewright.base import private
from tilewright.base.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY: Final = "authority.pem"
CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"
YEARS: Final = 5  # until they expire


def make(folder: Path) -> None:
    """Write keys into a new or empty folder, readable by the user only.

    Raises InputError if the folder is not empty, UnsupportedError without `cryptography`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            "the folder is not empty",
            where=str(folder),
            hint="name a new folder, or delete the old keys first",
        )
    made = _signed()
    private.make_folder(folder)
    private.close_folder(folder)
    for name, data in made.items():
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "wb") as stream:
            stream.write(data)


def found(folder: Path) -> dict[str, str]:
    """The paths of the three files, by name.

    Raises InputError if one is missing, or others could have written or read it.
    """
    paths = {name: folder / name for name in (AUTHORITY, CERTIFICATE, KEY)}
    for name, path in paths.items():
        if not path.is_file():
            raise InputError(
                f"there is no {name}",
                where=str(folder),
                hint="`tilewright fleet keys` creates such a folder",
            )
    why = private.objection(folder)
    if not why and paths[KEY].stat().st_mode & 0o077:
        why = f"{paths[KEY]} can be read by others"
    if why:
        raise InputError(
            f"the keys are not private: {why}",
            where=str(folder),
            hint="restrict access to the folder; if others may have read the keys, create new ones",
        )
    return {name: str(path) for name, path in paths.items()}


def _signed() -> dict[str, bytes]:
    """The contents of the files."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UnsupportedError(
            "making keys needs the package cryptography",
            code="TW-EXTRA",
            hint="pip install 'tilewright[fleet]'",
        ) from None
    pem = serialization.Encoding.PEM
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    top = _certificate("tilewright fleet authority", authority, None)
    signed = _certificate("tilewright fleet", own, (top, authority))
    secret = own.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        AUTHORITY: top.public_bytes(pem),
        CERTIFICATE: signed.public_bytes(pem),
        KEY: secret,
    }


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    by: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
) -> x509.Certificate:
    """A certificate for a key, signed by an authority, or self-signed if None."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signing = (subject, key) if by is None else (by[0].subject, by[1])
    now = datetime.datetime.now(datetime.UTC)
    basic = x509.BasicConstraints(ca=by is None, path_length=0 if by is None else None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The clocks of machines differ.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(basic, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
    )
    return builder.sign(signing, hashes.SHA256())
