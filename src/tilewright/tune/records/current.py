"""The choices of a database that `compile` currently uses."""

from __future__ import annotations

import warnings
from pathlib import Path

from tilewright.base.errors import InputError, TilewrightError, TilewrightWarning
from tilewright.base.text import reason
from tilewright.tune.records import published
from tilewright.tune.records.published import NOTHING, PublishedChoices


def current(path: Path) -> PublishedChoices:
    """The current choices; the database is only read if the file next to it is missing or damaged.

    Any error becomes a TilewrightWarning and no choices: it never fails a compilation.
    """
    path = published.itself(path)
    try:
        found = published.read(path)
        return _renewed(path) if found is None else found
    except (TilewrightError, OSError) as error:
        # An error of ours names the file already.
        ours = isinstance(error, TilewrightError)
        said = f"{error}" if ours else f"{path}: {reason(error)}"
        text = f"{said.rstrip('.')}. No tuning records are used"
        warnings.warn(TilewrightWarning(text), stacklevel=3)
        return NOTHING


def _renewed(path: Path) -> PublishedChoices:
    """Recreate the file by opening the database, for writing if possible."""
    from tilewright.tune.records.best import chosen
    from tilewright.tune.records.database import Records

    try:
        records = Records(path)
    except InputError:
        records = Records(path, write=False)
    with records:
        return published.of(published.text_of(chosen(records.choices())))
