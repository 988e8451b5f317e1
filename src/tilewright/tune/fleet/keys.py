"""Keys of a fleet: whoever has a copy of the folder takes part, nobody else does.

The folder has an authority and one certificate that it signed, for schedulers, workers and clients
alike. The authority's own key is not kept: nothing else can be signed by it, and a fleet whose
folder was lost or seen by others gets a new one.
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
    """Write the keys into a folder that is not there yet, or is empty; readable by the user alone.

    Raises InputError where there is something already, UnsupportedError without `cryptography`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            "there is something already",
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

    Raises InputError where one is missing, or where others could have written or read it.
    """
    paths = {name: folder / name for name in (AUTHORITY, CERTIFICATE, KEY)}
    for name, path in paths.items():
        if not path.is_file():
            raise InputError(
                f"there is no {name}",
                where=str(folder),
                hint="`tilewright fleet keys` makes such a folder",
            )
    why = private.objection(folder)
    if not why and paths[KEY].stat().st_mode & 0o077:
        why = f"{paths[KEY]} can be read by others"
    if why:
        raise InputError(
            f"the keys are not private: {why}",
            where=str(folder),
            hint="close the folder to others; if they may have seen it, make new keys",
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
    """A certificate of a key, signed by an authority; None: it is one, and signs itself."""
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
        # Clocks of machines differ.
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
