"""The versions that compiled code depends on: this compiler and the packages it calls."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tilewright import __version__
from tilewright.base.store import FileStore
from tilewright.driver import file_digest

FOUND: Final[
    dict[tuple[str, ...], str]
] = {}  # by the packages; what it is made of stays
_ROOT: Final = str(Path(__file__).parents[1])
_INFORMATION: Final = ".dist-info"  # of an installed package: NAME-VERSION.dist-info


def compiler(*packages: str, store: FileStore | None = None) -> str:
    """The version, a digest of this package's own code, and the versions of what it calls.

    The digest is of file contents, so all installations of a version have the same. store: where
    it is remembered, as that of any file. packages: the additional packages that this model calls.
    Raises ModuleNotFoundError for one that is not installed.
    """
    if packages not in FOUND:
        FOUND[packages] = _compiler(packages, store)
    return FOUND[packages]


def is_known(store: FileStore) -> bool:
    """Whether the sources have a digest without reading all of them, if they have not changed."""
    return bool(FOUND) or store.peek(_key()) is not None


def _key() -> str:
    """The key in the store of the digest of this installation's sources."""
    return f"sources-{hashlib.sha256(_ROOT.encode()).hexdigest()}"


def _compiler(packages: tuple[str, ...], store: FileStore | None) -> str:
    files = sorted(_sources(_ROOT))
    if store is None:
        code = file_digest.read_all(files)
    else:
        code = file_digest.of_files(files, store, _key())
    versions = [_version(name) for name in ("numpy", "onnx", "llvmlite", *packages)]
    return f"{__version__} {code} {versions}"


def _sources(root: str) -> Iterator[str]:
    """The Python files in a folder and its subfolders, as strings, which are faster than Path.

    A link to nothing, such as an editor's mark of a file that it has open, is none.
    """
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path)
            elif entry.name.endswith(".py") and entry.is_file():
                yield entry.path


def _version(name: str) -> str:
    """The version of an installed package. Raises ModuleNotFoundError if there is none.

    It is in the name of a folder. `importlib.metadata`, which reads files and takes 20 ms to load,
    is asked about packages that are installed otherwise.
    """
    stem = f"{name}-"
    for folder in sys.path:
        with suppress(OSError):
            held = [n for n in os.listdir(folder or ".") if n.startswith(stem)]
            found = [n for n in held if n.endswith(_INFORMATION)]
            if len(found) == 1:
                return found[0][len(stem) : -len(_INFORMATION)]
            if held:  # installed otherwise
                break
    from importlib.metadata import version

    return version(name)
