"""Wrong options: what they raise, for which the command line exits with 2 as for any bad usage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.base.errors import ArgumentError, TilewrightError


class OptionError(ArgumentError):
    """An option has a value that it cannot have, or does not go with the others or the file."""


@contextmanager
def of_option(flag: str) -> Iterator[None]:
    """Raise OptionError, with this option as its place, for an error about the option's value."""
    try:
        yield
    except TilewrightError as error:
        raise OptionError(
            error.message, code=error.code, where=flag, hint=error.hint
        ) from None
