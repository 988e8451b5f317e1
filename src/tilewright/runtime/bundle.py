"""Artifacts on disk: a zip of a manifest, object code and constants; reading one runs no code.

All members are stored uncompressed, so none can expand beyond the file, and the constants begin at
a page boundary of the file, so that they are mapped and not read: their pages are loaded when first
used and shared by all processes. Constants that take more bytes than the weights that they are made
of are packed when the file is read, which takes up to 16 times its bytes (`runtime.packed`). The
file must not be changed in place while it is loaded; `save` replaces it whole. Checksums: the
manifest, which has those of all other members, is always verified, and so is all object code;
constants are verified up to 64 MiB, and beyond that only when asked, since reading all weights
would be most of the time to load.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import stat
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import ArtifactError
from tilewright.base.files import write_whole
from tilewright.base.text import reason
from tilewright.runtime import abi, buffer, digest, manifest
from tilewright.runtime.model import CompiledModel, check
from tilewright.runtime.packed import StoredConstants

FORMAT: Final = 10
RANGED: Final = 14  # of a model for ranges of shapes; see `runtime.ranged_bundle`
SUFFIX: Final = ".tw"

_MARK: Final = b"tilewright-artifact "
_MANIFEST: Final = "manifest.json"
_CONSTANTS: Final = "constants.bin"
FOLDERS: Final = (
    "objects",
    "support",
    "programs",
)  # fields of the model: lists of code
_VERIFY_LIMIT: Final = 64 << 20
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_ALIGNMENT_FIELD: Final = 0xD935  # the extra field that zipalign defined for padding
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the same model makes the same bytes
_MODELS: Final = (".onnx", ".pt2")
_MODEL: Final = "tilewright.compile takes models"
_BROKEN: Final = (
    zipfile.BadZipFile,
    ValueError,
    RuntimeError,
    NotImplementedError,
    EOFError,
    KeyError,
    OverflowError,
    struct.error,
)
T = TypeVar("T")
Pause = Callable[[], object]


def no_pause() -> None:
    """For writers whom somebody waits for."""


def save(model: CompiledModel, path: str | os.PathLike[str]) -> None:
    """Write the artifact, whole or not at all; it is on the disk on return.

    Raises ArtifactError if the model is inconsistent, holds what JSON cannot, or the file cannot
    be written.
    """
    written(path, partial(write, model))


def written(path: str | os.PathLike[str], write: Callable[..., None]) -> None:
    """Call `write` of an artifact so that it is on the disk on return; errors as of `save`."""
    try:
        write(Path(path), durable=True)
    except OSError as error:
        raise ArtifactError(
            f"the artifact cannot be written: {reason(error)}",
            where=str(path),
        ) from error


def write(
    model: CompiledModel,
    path: Path,
    *,
    durable: bool = False,
    private: bool = False,
    pause: Pause = no_pause,
) -> None:
    """`save` for a cache; `durable` and `private` are as for `write_whole`.

    private: also with all constants as kernels read them, so that none is packed at load, at up to
    16 times the size. pause: called after each MiB. Raises OSError, and ArtifactError for the
    model.
    """
    check(model)
    try:
        write_whole(
            path,
            lambda file: write_to(file, model, private, pause),
            durable=durable,
            private=private,
        )
    except TypeError as error:
        raise ArtifactError(
            f"the model cannot be saved: {error}", where=str(path)
        ) from error


def load(path: str | os.PathLike[str], *, verify: bool = False) -> CompiledModel:
    """The model in an artifact, with its constants mapped.

    verify: check the constants' checksum whatever their size. Raises ArtifactError for anything
    but a whole artifact of a format that this version reads.
    """
    return opened(path, lambda file: read_from(file, verify))


def opened(path: str | os.PathLike[str], read: Callable[[BinaryIO], T]) -> T:
    """What `read` makes of the file, whose errors are ArtifactErrors that name it."""
    given: object = path
    if not isinstance(given, str | bytes | os.PathLike):
        kind = type(given).__name__
        raise ArtifactError(
            f"an artifact is given by its path, not a {kind}", hint=_MODEL
        )
    try:
        with open(path, "rb", opener=_opened) as file:
            return read(file)
    except OSError as error:
        raise ArtifactError(
            f"the artifact cannot be read: {reason(error)}", where=str(path)
        ) from error
    except (*_BROKEN, ArtifactError) as error:
        raise _unread(os.fsdecode(path), error) from error.__cause__ or error


def _unread(path: str, error: Exception) -> Exception:
    """The error for a file that is no artifact; one for a model says what to do with that."""
    if path.endswith(_MODELS):
        text = "the file is a model, not an artifact"
        return ArtifactError(text, where=path, hint=_MODEL)
    if not isinstance(error, ArtifactError):
        error = _damaged(f"is not an artifact, or is damaged: {error}")
    return error.at(path)


def write_to(
    file: BinaryIO, model: CompiledModel, whole: bool, pause: Pause = no_pause
) -> None:
    """Write the artifact; whole: with all constants as kernels read them. Both as of `write`."""
    codes = {folder: getattr(model, folder) for folder in FOLDERS}
    head = {"format": FORMAT, **manifest.encode(model, whole)}
    pack(file, model.held.stored(whole), codes, head, pause)


def pack(
    file: BinaryIO,
    constants: Iterable[NDArray[np.uint8]],
    codes: Mapping[str, Sequence[bytes]],
    head: Mapping[str, Any],
    pause: Pause = no_pause,
) -> None:
    """The archive of these members, with a manifest that begins with `head`.

    constants: in pieces. pause: as of `write`. Raises ArtifactError for code that calls functions
    of this process.
    """
    _check_process(codes.values())
    members: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        pieces = [piece.data for piece in constants]
        offset = _add(archive, members, _CONSTANTS, pieces, mmap.PAGESIZE, pause)
        for folder, parts in codes.items():
            for number, code in enumerate(parts):
                _add(archive, members, f"{folder}/{number}.o", [memoryview(code)])
        whole = {**head, "members": members, "constants_offset": offset}
        text = json.dumps(whole, indent=1, allow_nan=False).encode()
        _add(archive, {}, _MANIFEST, [memoryview(text)])
        archive.comment = _MARK + hashlib.sha256(text).hexdigest().encode()


def process_functions(codes: Iterable[Sequence[bytes]]) -> list[str]:
    """The functions of this process that code calls at their address, by name."""
    mark = re.compile(re.escape(abi.OF_PROCESS.encode()) + rb"(\w+)")
    parts = (part for several in codes for part in several)
    return sorted({m[1].decode() for part in parts for m in mark.finditer(part)})


def _check_process(codes: Iterable[Sequence[bytes]]) -> None:
    found = process_functions(codes)
    if found:
        raise ArtifactError(
            f"the code calls functions of this process: {', '.join(found)}",
            hint="a file can hold their code as LLVM's text: hardware_intrinsic(..., llvm=text)",
        )


def _add(
    archive: zipfile.ZipFile,
    members: dict[str, dict[str, Any]],
    name: str,
    pieces: Sequence[memoryview],
    alignment: int = 1,
    pause: Pause = no_pause,
) -> int:
    """Store one member with its data at a multiple of `alignment`; where in the file that is."""
    size = sum(piece.nbytes for piece in pieces)
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    info.file_size = size
    info.CRC = 0  # so that the header can be measured before it is written
    large = size >= 1 << 30
    start = archive.fp.tell() if archive.fp else 0
    if alignment > 1:
        header = start + len(info.FileHeader(large)) + 6
        padding = bytes(-header % alignment)
        info.extra = (
            struct.pack("<HHH", _ALIGNMENT_FIELD, 2 + len(padding), alignment) + padding
        )
    offset = start + len(info.FileHeader(large))
    held = digest.GrowingDigest()
    with archive.open(info, "w", force_zip64=large) as out:
        for chunk in digest.chunks(pieces):
            out.write(chunk)
            held.add(chunk)
            pause()
    members[name] = {"size": size, "digest": held.text}
    return offset


def _opened(path: str, flags: int) -> int:
    """Open a file, without waiting for who writes to a pipe. Raises OSError for what is none."""
    opened = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(opened).st_mode
    if stat.S_ISREG(mode):
        return opened
    os.close(opened)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is a pipe or a device")


def read_from(file: BinaryIO, verify: bool = False) -> CompiledModel:
    """As `load`, from an open file. Raises ArtifactError, and other errors for damaged files."""
    head, codes, constants = contents(file, verify, {FORMAT: manifest.check})
    held = manifest.read_constants(head, constants)
    model = manifest.decode(head, constants=held, **codes)
    check(model)
    return model


def contents(
    file: BinaryIO, verify: bool, checks: Mapping[int, Callable[[Any], None]]
) -> tuple[dict[str, Any], dict[str, list[bytes]], StoredConstants]:
    """The manifest, the code by folder, and the constants, all as their checksums say.

    checks: what checks the manifest of each format that may be read.
    """
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        infos = _members(archive, size)
        head = _manifest(archive, infos, checks)
        listed = head["members"]
        if set(listed) != set(infos) - {_MANIFEST}:
            raise _damaged("has members that differ from those its manifest lists")
        for name, entry in listed.items():
            if infos[name].file_size != entry["size"]:
                raise _damaged(f"has a {name} of {infos[name].file_size} bytes")
        codes = {f: list(_objects(archive, listed, f)) for f in FOLDERS}
        return head, codes, _map_constants(file, infos[_CONSTANTS], head, verify)


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members, none of which can be larger than the file or appear twice."""
    if not archive.comment.startswith(_MARK):
        raise _damaged("is a zip file, but not an artifact of this compiler")
    infos = archive.infolist()
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise _damaged(f"has a compressed or encrypted member {info.filename!r}")
        if info.file_size != info.compress_size or info.file_size > size:
            raise _damaged(f"has a member {info.filename!r} larger than the file")
    found = {info.filename: info for info in infos}
    if len(found) != len(infos) or not {_MANIFEST, _CONSTANTS} <= set(found):
        raise _damaged("lacks its manifest or constants, or has a member twice")
    return found


def _manifest(
    archive: zipfile.ZipFile,
    infos: dict[str, zipfile.ZipInfo],
    checks: Mapping[int, Callable[[Any], None]],
) -> dict[str, Any]:
    text = archive.read(infos[_MANIFEST])
    if hashlib.sha256(text).hexdigest().encode() != archive.comment[len(_MARK) :]:
        raise _damaged("has a manifest that does not match its checksum")
    head = manifest.parse(text)
    version = head.get("format")
    if version == RANGED and RANGED not in checks:
        raise ArtifactError(
            "the artifact has code for ranges of shapes, and code for one is expected",
            hint="Load it with tw.load, or compile the model with one value per dimension",
        )
    if not isinstance(version, int) or version not in checks:
        raise ArtifactError(
            f"the artifact has format {version}, this version reads {', '.join(map(str, checks))}",
            code="TW-VERSION",
            hint="Load it with the version that wrote it, or compile the model again",
        )
    if head.get("abi") != abi.ABI_VERSION:
        raise ArtifactError(
            f"the artifact has the calling convention {head.get('abi')}, this version has "
            f"{abi.ABI_VERSION}",
            code="TW-VERSION",
            hint="Compile the model again with this version",
        )
    checks[version](head)
    return head


def _objects(
    archive: zipfile.ZipFile, listed: dict[str, dict[str, Any]], folder: str
) -> Iterator[bytes]:
    count = sum(name.startswith(f"{folder}/") for name in listed)
    for number in range(count):
        name = f"{folder}/{number}.o"
        code = archive.read(name)
        if digest.of_bytes(code) != listed[name]["digest"]:
            raise _damaged(f"has a member {name} that does not match its checksum")
        yield code


def _map_constants(
    file: BinaryIO, info: zipfile.ZipInfo, head: dict[str, Any], verify: bool
) -> StoredConstants:
    size, offset = info.file_size, head["constants_offset"]
    file.seek(info.header_offset)
    raw = file.read(_LOCAL_HEADER.size)
    mark, name_size, extra_size = _LOCAL_HEADER.unpack(raw)
    found = info.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    if mark != b"PK\3\4" or found != offset:
        raise _damaged("has its constants at another offset than its manifest states")
    if verify or size <= _VERIFY_LIMIT:
        if (
            digest.of_file(file.fileno(), offset, size)
            != head["members"][_CONSTANTS]["digest"]
        ):
            raise _damaged("has constants that do not match their checksum")
    if size == 0:
        return StoredConstants(np.empty(0, np.uint8), file.fileno(), offset)
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(
        file.fileno(), offset - start + size, access=mmap.ACCESS_READ, offset=start
    )
    view = np.frombuffer(mapped, np.uint8, size, offset - start)
    if buffer.address(view) % abi.ALIGNMENT:
        raise _damaged("has constants that are not aligned")
    return StoredConstants(view, file.fileno(), offset)


def _damaged(problem: str) -> ArtifactError:
    return ArtifactError(
        f"the file {problem}",
        code="TW-ARTIFACT",
        hint="Compile the model again, or copy the file again",
    )
