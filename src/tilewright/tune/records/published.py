"""The part of the records that `compile` reads: the best choice per kernel, in one small file.

The file is next to the database and is generated from it. Reading it needs no database and no
compiler, so a compilation without records, or with its model in the cache, pays nothing for them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, field
from functools import cached_property
from pathlib import Path
from typing import Final

from tilewright.base import flags, private
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.files import write_whole

_MAGIC: Final = "tilewright choices 1"
_LARGEST: Final = 1 << 26  # bytes


@dataclass(frozen=True, slots=True)
class PublishedChoice:
    """A schedule that beat its kernel's default. candidate: its key.

    seconds, default_seconds: per call, in the run that measured both. time: since the epoch.
    """

    candidate: str
    seconds: float
    default_seconds: float
    time: float

    @property
    def gain(self) -> float:
        """The speedup over the default."""
        return self.default_seconds / self.seconds


@dataclass(frozen=True)
class PublishedChoices:
    """Choices by key digest. digest: of all of them; empty if there are none."""

    digest: str = ""
    text: str = field(default="{}", repr=False)

    @cached_property
    def choices(self) -> Mapping[str, PublishedChoice]:
        """The choices, by the digests of their kernels' keys."""
        return {
            key: PublishedChoice(**given)
            for key, given in json.loads(self.text).items()
        }


NOTHING: Final = PublishedChoices()


def default_path() -> Path | None:
    """The user's records, from the flag; None if disabled. Raises FlagError."""
    chosen = flags.RECORDS.get()
    if chosen is False:
        return None
    return chosen if isinstance(chosen, Path) else own_path()


def own_path() -> Path:
    """The user's records, if the flag does not say otherwise."""
    import platformdirs

    folder = platformdirs.user_data_dir("tilewright", appauthor=False)
    return Path(folder, "records.sqlite")


def expect_folder(path: Path) -> None:
    """Raise InputError for a file to write in a folder that does not exist: it is rather mistyped.

    The folder of the user's own records is made when they are first written. No file can have a NUL
    character in its name.
    """
    if "\0" in str(path):
        raise InputError(
            "the name of a file holds a NUL character",
            where=repr(str(path)),
            hint="check the path",
        )
    if path != own_path() and not path.parent.is_dir():
        raise InputError(
            f"there is no folder {path.parent}",
            where=str(path),
            hint="check the path, or make the folder first",
        )


def itself(path: Path) -> Path:
    """The file that a path leads to, so that all links to it mean one database and one lock."""
    return Path(os.path.realpath(path))


def place(path: Path) -> Path:
    """The file next to a database; path: as `itself` gives it."""
    return path.with_name(f"{path.name}.best")


def write(path: Path, choices: Mapping[str, PublishedChoice]) -> None:
    """Update the file next to a database. Raises OSError."""
    text = text_of(choices)
    whole = f"{_MAGIC} {_digest(text)}\n{text}\n".encode()
    there = place(path)
    if not there.is_file() or there.read_bytes() != whole:
        write_whole(there, lambda file: file.write(whole), durable=True, private=True)


def read(path: Path) -> PublishedChoices | None:
    """The choices of a database; NOTHING if there is no database.

    None if the file is damaged, or missing while there is a database. Raises OSError if it cannot
    be read, or others could have written it.
    """
    there = place(path)
    try:
        with there.open("rb") as file:
            whole = file.read(_LARGEST)
        why = private.objection(path.parent)
        why = why or private.objection_to(there.stat(), "file")
    except FileNotFoundError:
        return None if path.is_file() else NOTHING
    if why:
        raise PermissionError(f"others could have written the tuning records: {why}")
    head, _, text = whole.decode(errors="replace").partition("\n")
    text = text.removesuffix("\n")
    return of(text) if head == f"{_MAGIC} {_digest(text)}" else None


def of(text: str) -> PublishedChoices:
    """Parse the text of choices."""
    return NOTHING if text == "{}" else PublishedChoices(_digest(text), text)


def text_of(choices: Mapping[str, PublishedChoice]) -> str:
    """Serialize choices, by the digests of their kernels' keys; deterministic."""
    table = {key: asdict(choices[key]) for key in sorted(choices)}
    return json.dumps(table, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
