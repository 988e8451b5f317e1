"""The registry of primitives: name -> rewrite `(kernel, arguments...) -> (kernel, new names)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property, update_wrapper
from inspect import Parameter, signature
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from tilewright.loops.nodes import Kernel
from tilewright.loops.walk import loops_of
from tilewright.schedule.legality import check_steps, check_tiles
from tilewright.schedule.tensorized_block import settled

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Performer(Protocol):
    """What primitives are methods of: it applies them and records that (`Schedule`)."""

    def perform(
        self, primitive: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Apply a primitive; the names that it made."""


class Primitive(Generic[_P, _T]):
    """A rewrite of kernels under its own name. As an attribute of a class, a method.

    Called with a kernel, it gives the new kernel and the names it made: notes of loops that it
    removes go with them, and Units whose bodies it changes are matched with their intrinsics again.
    Steps of a reduction of several results are checked again where these have been parted, and
    loops that rely on overlapping tiles where they have changed.

    As a method it takes the arguments after the kernel, and gives the names.
    options: parameters that a trace writes by name, and only where they differ from their default;
    those that are keyword-only are. as_text: how a trace writes an argument that is neither a name
    nor a number, by the parameter's name.
    """

    __name__: str

    def __init__(
        self,
        rewrite: Callable[Concatenate[Kernel, _P], tuple[Kernel, _T]],
        options: Collection[str] = (),
        as_text: Mapping[str, Callable[[Any], Any]] = {},
    ) -> None:
        update_wrapper(self, rewrite)
        self._rewrite = rewrite
        self._as_text = as_text
        self._signature = signature(rewrite)
        parameters = self._signature.parameters
        keywords = (
            k for k, p in parameters.items() if p.kind is Parameter.KEYWORD_ONLY
        )
        self._options = (*options, *keywords)
        self._exact = None if as_text else _count(parameters, self._options)

    def __call__(
        self, kernel: Kernel, *args: _P.args, **options: _P.kwargs
    ) -> tuple[Kernel, _T]:
        after, made = self._rewrite(kernel, *args, **options)
        after = settled(kernel, after, self.__name__)
        check_steps(after, self.__name__)
        check_tiles(kernel, after, self.__name__)
        return _without_lost_notes(after), made

    @overload
    def __get__(
        self, schedule: None, owner: type
    ) -> Callable[Concatenate[Performer, _P], _T]: ...

    @overload
    def __get__(self, schedule: Performer, owner: type) -> Callable[_P, _T]: ...

    def __get__(self, schedule: Performer | None, owner: type) -> Callable[..., _T]:
        if schedule is None:
            return self._method
        return MethodType(self._method, schedule)

    @cached_property
    def _method(self) -> Callable[Concatenate[Performer, _P], _T]:
        def method(schedule: Performer, /, *args: _P.args, **options: _P.kwargs) -> _T:
            made: _T = schedule.perform(self.__name__, *self._recorded(args, options))
            return made

        update_wrapper(method, self._rewrite)
        return method

    def _recorded(
        self, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as a trace has them: options only where they differ from their default."""
        if len(args) == self._exact and not options:
            return args, options
        try:
            bound = self._signature.bind(None, *args, **options)
        except TypeError:
            return args, options  # reported when they are applied
        bound.apply_defaults()
        for name, write in self._as_text.items():
            bound.arguments[name] = write(bound.arguments[name])
        parameters = self._signature.parameters
        named = {name: bound.arguments.pop(name) for name in self._options}
        given = {k: v for k, v in named.items() if v != parameters[k].default}
        return bound.args[1:], given


def _count(parameters: Mapping[str, Parameter], options: Collection[str]) -> int | None:
    """How many arguments after the kernel, options aside, a trace has; None if that differs."""
    _, *plain = (p for p in parameters.values() if p.name not in options)
    fixed = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in plain)
    return len(plain) if fixed else None


PRIMITIVES: dict[str, Primitive[..., Any]] = {}


def primitive(
    rewrite: Callable[Concatenate[Kernel, _P], tuple[Kernel, _T]],
) -> Primitive[_P, _T]:
    """Register a rewrite under its own name."""
    return _registered(Primitive(rewrite))


def primitive_with(
    options: Collection[str] = (), as_text: Mapping[str, Callable[[Any], Any]] = {}
) -> Callable[
    [Callable[Concatenate[Kernel, _P], tuple[Kernel, _T]]], Primitive[_P, _T]
]:
    """Register a rewrite some of whose arguments a trace writes in their own way."""
    return lambda rewrite: _registered(Primitive(rewrite, options, as_text))


def _registered(found: Primitive[_P, _T]) -> Primitive[_P, _T]:
    PRIMITIVES[found.__name__] = found
    return found


def _without_lost_notes(kernel: Kernel) -> Kernel:
    if not kernel.notes:
        return kernel
    loops = {f.var.name for f in loops_of(kernel.body)}
    kept = {name: said for name, said in kernel.notes.items() if name in loops}
    if len(kept) == len(kernel.notes):
        return kernel
    return replace(kernel, notes=kept)
