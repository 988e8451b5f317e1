"""The errors of the compiler: a stable code, the place, what is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "CompileError",
    "ExecutionError",
    "FlagError",
    "InputError",
    "LimitError",
    "MemoryLimitError",
    "ModelError",
    "ScheduleError",
    "TilewrightError",
    "TilewrightWarning",
    "UnprovenError",
    "UnsupportedError",
    "VerifyError",
    "placed",
]


class TilewrightWarning(UserWarning):
    """The only category of warning this package emits."""


class TilewrightError(Exception):
    """Base of all errors of this package.

    ``message`` says what is wrong (expected and found), ``where`` names the place (file, node,
    tensor, loop), ``hint`` says what to do. ``code`` is stable and searchable; each subclass has a
    default. ``str(error)`` is one line: ``where: message. Hint``,
    or ``where: message; hint`` if the hint is not a sentence.
    """

    code: str = "TW-ERROR"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        text = _one_line(self.message)
        if self.where:
            text = f"{_one_line(self.where)}: {text}"
        if self.hint:
            hint = _one_line(self.hint)
            text = f"{text.rstrip('.')}{';' if hint[:1].islower() else '.'} {hint}"
        return text

    def at(self, where: str) -> TilewrightError:
        """Put ``where`` in front of the place and return self: for callers who know more of it.

        A place that already begins with it stays unchanged.
        """
        if not f"{self.where or ''}: ".startswith(f"{where}: "):
            self.where = f"{where}: {self.where}" if self.where else where
        return self

    def to_dict(self) -> dict[str, object]:
        """The error for machines: JSON-ready, with no information lost."""
        return {
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "hint": self.hint,
        }

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own __reduce__ would call the constructor without the keyword arguments.
        return (_rebuild, (type(self), self.args, self.__dict__))


class ModelError(TilewrightError):
    """The model is invalid: it cannot be read, or violates the rules of its format."""

    code = "TW-MODEL"


class UnsupportedError(TilewrightError):
    """The model is valid, but uses something unimplemented. ``items`` lists all of it."""

    code = "TW-UNSUPPORTED"

    def __init__(
        self,
        message: str,
        *,
        items: Iterable[str] = (),
        code: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, where=where, hint=hint)
        self.items: tuple[str, ...] = tuple(items)

    def to_dict(self) -> dict[str, object]:
        """As the base class, with the list of unsupported items."""
        return {**super().to_dict(), "items": list(self.items)}


class InputError(TilewrightError):
    """A caller gave a wrong name, shape, dtype or value."""

    code = "TW-INPUT"


class ArgumentError(InputError):
    """An argument other than the data has a value that it cannot have, or not for this model."""

    code = "TW-ARGUMENT"


class VerifyError(TilewrightError):
    """An invariant of an IR is broken: an internal error, unless the IR was written by hand."""

    code = "TW-VERIFY"


class UnprovenError(VerifyError):
    """An invariant of an IR is not proven, and may hold all the same: no internal error."""

    code = "TW-UNPROVEN"


class ScheduleError(TilewrightError):
    """A schedule primitive was refused: the rewrite would change the program's meaning.

    ``str(error.program)`` is the program with the loops and buffers in question marked.
    """

    code = "TW-SCHEDULE"
    program: object | None = None


class ArtifactError(TilewrightError):
    """A saved artifact is corrupted, of another version, or for another machine."""

    code = "TW-ARTIFACT"


class LimitError(TilewrightError):
    """A limit other than memory would be exceeded; see `base.limits`."""

    code = "TW-LIMIT"


class MemoryLimitError(TilewrightError):
    """The memory limit would be exceeded; raised before any allocation."""

    code = "TW-MEMORY"


class CompileError(TilewrightError):
    """Code generation failed for a valid program."""

    code = "TW-COMPILE"


class ExecutionError(TilewrightError):
    """Running code found a value that it must reject, such as an index out of range."""

    code = "TW-EXECUTION"


class FlagError(TilewrightError):
    """An environment variable or option has an invalid value."""

    code = "TW-FLAG"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _rebuild(
    cls: type[TilewrightError], args: tuple[object, ...], state: dict[str, object]
) -> TilewrightError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class placed:
    """``with placed(where):`` puts ``where`` in front of the place of errors raised inside."""

    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, TilewrightError):
            error.at(self.where)
