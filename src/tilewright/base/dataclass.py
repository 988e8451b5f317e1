"""`dataclass`: the standard library's, but quick to define and to construct.

The standard decorator writes and compiles each method of a class, half a millisecond for a frozen
one, and a compilation loads 300 classes. The constructor of a frozen object then finds the place of
each field by its name. Here only constructors are compiled, one for all classes whose fields are
set alike, and they write into slots directly. A constructor is made when it is first asked for: a
compilation makes no object of nearly half of the classes.

`field`, `fields`, `replace`, `asdict` and `astuple` are the standard library's. A class that needs
other options (`order`, `unsafe_hash`, `init`) or an `InitVar` uses the standard decorator; classes
of either may derive from those of the other.
"""

from __future__ import annotations

import dataclasses
from abc import update_abstractmethods
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, FrozenInstanceError
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, cast

Field = dataclasses.Field[Any]

_NO_FIELD: Final = ("ClassVar", "InitVar", "KW_ONLY")  # in the text of a type


class _MadeByFactory:
    """The default of a parameter whose value a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


FACTORY: Final = _MadeByFactory()


def _dataclass(
    cls: type | None = None,
    *,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,
    slots: bool = False,
    kw_only: bool = False,
) -> Any:
    """As `dataclasses.dataclass`, with some of its options."""

    def decorated(cls: type) -> type:
        if cls.__doc__ is None:  # else the standard decorator writes the signature
            cls.__doc__ = cls.__name__
        own = _own_methods(cls, frozen)
        decorator = dataclasses.dataclass(
            init=False,
            repr=False,
            eq=False,
            slots=slots,
            kw_only=kw_only,
            frozen=frozen and hasattr(cls, "__dataclass_params__"),  # checks the bases
        )
        made: Any = _with_fields(cls, decorator)
        made.__dataclass_params__.frozen = frozen
        fields = dataclasses.fields(made)
        methods = dict(_methods(made, fields, frozen, eq))
        if repr:
            methods["__repr__"] = _shown
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return cast(type, update_abstractmethods(made))

    return decorated if cls is None else decorated(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def _with_fields(cls: type, decorator: Callable[[type], Any]) -> Any:
    """The class as the standard decorator makes it, which does not see what its types are.

    In a type that is text it looks for what is no field, three times, which is a third of its time.
    It has to where there may be one, under the name that `typing` or `dataclasses` gives it.
    """
    # Types that are not text are not evaluated here.
    types = cls.__dict__.get("__annotations__", {})  # noqa: RUF063
    if not types or not all(map(_is_field, types.values())):
        return decorator(cls)
    cls.__annotations__ = dict.fromkeys(types, object)
    made = decorator(cls)
    made.__annotations__ = types
    for name, text in types.items():
        made.__dataclass_fields__[name].type = text
    return made


def _is_field(text: object) -> bool:
    """Whether this is the type of a field for sure."""
    return isinstance(text, str) and not any(word in text for word in _NO_FIELD)


def _own_methods(cls: type, frozen: bool) -> set[str]:
    """The names that a class defines itself, which stay."""
    own = set(cls.__dict__)
    for name in ("__setattr__", "__delattr__"):
        if frozen and name in own:
            raise TypeError(
                f"Cannot overwrite attribute {name} in class {cls.__name__}"
            )
    if "__eq__" in own and cls.__dict__["__hash__"] is None:
        own.remove("__hash__")  # which Python has set
    return own


def _methods(
    cls: type, fields: Sequence[Field], frozen: bool, eq: bool
) -> Iterator[tuple[str, Any]]:
    """The methods that depend on the fields, or on whether they may be set."""
    _check_order(fields)
    yield "__init__", _Constructor(cls, fields, frozen)
    if frozen:
        yield "__setattr__", _refuse_to_set
        yield "__delattr__", _refuse_to_delete
    if eq:
        yield "__eq__", _equality([f.name for f in fields if f.compare])
        hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
        yield "__hash__", _hash(hashed) if frozen else None


class _Constructor:
    """`__init__` of a class until it is first asked for, which puts the function in its place."""

    __slots__ = ("cls", "fields", "frozen")

    def __init__(self, cls: type, fields: Sequence[Field], frozen: bool) -> None:
        self.cls = cls
        self.fields = fields
        self.frozen = frozen

    def __get__(self, one: object, owner: type | None = None) -> Any:
        made = _constructor(self.cls, self.fields, self.frozen)
        if self.cls.__dict__.get("__init__") is self:  # else one has replaced it
            setattr(self.cls, "__init__", made)  # noqa: B010
        return made.__get__(one, owner)


def _check_order(fields: Sequence[Field]) -> None:
    """Raise TypeError for a parameter without a default behind one with a default."""
    positional = [f for f in fields if f.init and not f.kw_only]
    values = {n for n, _ in _defaults(positional)}
    for n, after in enumerate(positional[1:]):
        if n in values and n + 1 not in values:
            raise TypeError(
                f"non-default argument {after.name!r} follows default argument"
            )


def _constructor(cls: type, fields: Sequence[Field], frozen: bool) -> Any:
    """`__init__`, which sets the fields and calls `__post_init__`, if there is one.

    Classes whose fields are set alike share its code, in which field 2 is called `field_2`.
    """
    lines = tuple(_line(cls, f, frozen) for f in fields)
    positional = tuple(n for n, f in enumerate(fields) if f.init and not f.kw_only)
    keyword = tuple(n for n, f in enumerate(fields) if f.init and f.kw_only)
    code = _code(lines, positional, keyword, hasattr(cls, "__post_init__"))
    names = {f"field_{n}": f.name for n, f in enumerate(fields)}
    code = code.replace(
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(names.get(value, value) for value in code.co_consts),
    )
    scope: dict[str, Any] = {"store": object.__setattr__, "FACTORY": FACTORY}
    for n, f in enumerate(fields):
        scope[f"make_{n}"], scope[f"default_{n}"] = f.default_factory, f.default
        if _is_slot(cls, f.name):
            scope[f"set_{n}"] = getattr(cls, f.name).__set__
    made = FunctionType(code, scope)
    values = dict(_defaults(fields))
    made.__defaults__ = tuple(values[n] for n in positional if n in values)
    made.__kwdefaults__ = {fields[n].name: values[n] for n in keyword if n in values}
    types = {f.name: f.type for f in fields if f.init}
    made.__annotations__ = {**types, "return": None}
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


@cache
def _code(
    lines: Sequence[str], positional: Sequence[int], keyword: Sequence[int], post: bool
) -> CodeType:
    """A constructor of these lines, in which `#` is a field's number."""
    parameters = ["self", *(f"field_{n}" for n in positional)]
    if keyword:
        parameters += ["*", *(f"field_{n}" for n in keyword)]
    body = [line.replace("#", str(n)) for n, line in enumerate(lines) if line]
    if post:
        body.append("self.__post_init__()")
    head = f"def __init__({', '.join(parameters)}):"
    scope: dict[str, Any] = {}
    exec("\n ".join([head, *body, "return None"]), scope)
    return cast(CodeType, scope["__init__"].__code__)


def _line(cls: type, f: Field, frozen: bool) -> str:
    """The line that sets a field, of a frozen object without asking it; "" if there is none."""
    value = _value(cls, f)
    if value is None:
        return ""
    if not frozen:
        return f"self.field_# = {value}"
    return (
        f"set_#(self, {value})"
        if _is_slot(cls, f.name)
        else f"store(self, 'field_#', {value})"
    )


def _value(cls: type, f: Field) -> str | None:
    """What the constructor sets a field to; None if it does not."""
    if f.default_factory is not MISSING:
        return "make_#() if field_# is FACTORY else field_#" if f.init else "make_#()"
    if f.init:
        return "field_#"
    # Else it is left unset, or the class has the default.
    has_default = f.default is not MISSING and _is_slot(cls, f.name)
    return "default_#" if has_default else None


def _defaults(fields: Sequence[Field]) -> Iterator[tuple[int, Any]]:
    """The default of each parameter that has one."""
    for n, f in enumerate(fields):
        if f.default is not MISSING:
            yield n, f.default
        elif f.default_factory is not MISSING:
            yield n, FACTORY


def _is_slot(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), MemberDescriptorType)


def _key(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The values of the named fields of an object."""
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda one: (get(one),)


def _equality(names: Sequence[str]) -> Any:
    key = _key(names)

    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return key(self) == key(other)

    return __eq__


def _hash(names: Sequence[str]) -> Any:
    key = _key(names)

    def __hash__(self: Any) -> int:
        return hash(key(self))

    return __hash__


def _is_frozen(one: object, name: str) -> bool:
    """Not what a derived class without the decorator adds."""
    cls: Any = type(one)
    return "__dataclass_params__" in cls.__dict__ or name in cls.__dataclass_fields__


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


@recursive_repr()
def _shown(self: Any) -> str:
    shown = [f.name for f in dataclasses.fields(self) if f.repr]
    parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({parts})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
