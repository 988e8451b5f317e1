"""The versions that compiled code depends on: this compiler and the packages it calls."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tilewright import __version__

FOUND: Final[
    dict[tuple[str, ...], str]
] = {}  # by the packages; what it is made of stays


def compiler(*packages: str) -> str:
    """The version, a digest of this package's own code, and the versions of what it calls.

    The digest is of file contents, so all installations of a version have the same. packages: the
    additional packages that this model calls. Raises PackageNotFoundError for one that is not
    installed.
    """
    if packages not in FOUND:
        FOUND[packages] = _compiler(packages)
    return FOUND[packages]


def _compiler(packages: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(_sources(str(Path(__file__).parents[1]))):
        with open(path, "rb", buffering=0) as file:
            digest.update(file.read())
    versions = [version(name) for name in ("numpy", "onnx", "llvmlite", *packages)]
    return f"{__version__} {digest.hexdigest()} {versions}"


def _sources(root: str) -> Iterator[str]:
    """The Python files in a folder and its subfolders, as strings, which are faster than Path."""
    for folder, _, names in os.walk(root):
        yield from (os.path.join(folder, n) for n in names if n.endswith(".py"))
