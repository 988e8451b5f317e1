"""The quick `dataclass` does what the standard library's does."""

import copy
import dataclasses
import inspect
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from tilewright.base.dataclass import dataclass

DECORATORS = pytest.mark.parametrize("decorator", [dataclasses.dataclass, dataclass])
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        {},
        {"slots": True},
        {"frozen": True},
        {"frozen": True, "slots": True},
        {"frozen": True, "eq": False},
        {"frozen": True, "kw_only": True},
    ],
    ids=str,
)


def point(decorator: Any, **options: Any) -> Any:
    @decorator(**options)
    class Point:
        x: int
        y: float = 2.0
        tags: list[str] = field(default_factory=list, compare=False, repr=False)
        made: int = field(default=7, init=False)
        note: str = field(default="", hash=False)
        count: ClassVar[int] = 3

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")

    return Point


def _behaviour(cls: Any) -> list[Any]:
    """What one can see of objects of a class."""
    one, same, other = cls(x=1), cls(x=1, tags=["a"]), cls(x=1, y=3.0)
    seen = [one == same, one == other, one == 1, one != other, repr(one)]
    seen += [one.tags, same.tags, one.made, cls.count, cls.__match_args__]
    seen += [hasattr(one, "__dict__"), dataclasses.asdict(same)]
    seen += [dataclasses.replace(other, x=5).x, dataclasses.astuple(one)]
    seen += [getattr(one, "__dict__", None), cls.__init__.__module__]
    for attempt in (
        lambda: hash(one) == hash(same),
        lambda: hash(one) == hash(cls(1, note="other")),
        lambda: setattr(one, "x", 4),
        lambda: delattr(other, "x"),
        lambda: cls(-1),
        lambda: cls(),
        lambda: cls(1, 2.0, [], "", 4),
        lambda: cls(1, 2.5).y,
    ):
        seen.append(_outcome(attempt))
    return seen


def _outcome(attempt: Callable[[], Any]) -> Any:
    try:
        return attempt()
    except Exception as error:
        return type(error)


@SHAPES
def test_objects_behave_as_those_of_the_standard_decorator(
    shape: dict[str, Any],
) -> None:
    assert _behaviour(point(dataclass, **shape)) == _behaviour(
        point(dataclasses.dataclass, **shape)
    )


@DECORATORS
def test_a_missing_argument_is_named(decorator: Any) -> None:
    with pytest.raises(TypeError, match=r"point.*Point.__init__\(\) missing .*'x'"):
        point(decorator)()


@DECORATORS
def test_objects_without_fields_are_equal(decorator: Any) -> None:
    @decorator(frozen=True)
    class Nothing:
        pass

    assert Nothing() == Nothing() and hash(Nothing()) == hash(())
    assert repr(Nothing()).endswith("Nothing()")


@dataclass
class Open:
    a: int


def test_what_is_added_to_an_object_is_pickled() -> None:
    one: Any = Open(1)
    one.b = 2
    assert pickle.loads(pickle.dumps(one)).b == copy.copy(one).b == 2


def test_a_class_without_a_docstring_is_named_in_its_place() -> None:
    assert Kept.__doc__ == "Kept"


@dataclass(frozen=True, slots=True)
class Kept:
    name: str
    others: tuple[int, ...] = ()


def test_frozen_objects_with_slots_are_copied_and_pickled() -> None:
    one = Kept("a", (1, 2))
    assert copy.copy(one) == one == pickle.loads(pickle.dumps(one))
    with pytest.raises(FrozenInstanceError, match="name"):
        pickle.loads(pickle.dumps(one)).name = "b"  # type: ignore[misc]


@DECORATORS
def test_a_derived_class_has_the_fields_of_its_base_first(decorator: Any) -> None:
    @decorator(frozen=True, slots=True)
    class Base:
        a: int
        b: int = 1

    @decorator(frozen=True, slots=True)
    class Derived(Base):
        b: int = 4
        c: int = 5

    one = Derived(1)
    assert (one.a, one.b, one.c) == (1, 4, 5)
    assert Derived(1, 1, 5) != one
    assert Base(1, 4) != one
    assert hash(Derived(1)) == hash(one)


@pytest.mark.parametrize("of_base", [dataclasses.dataclass, dataclass])
@DECORATORS
def test_frozen_classes_derive_from_those_of_either_decorator(
    of_base: Any, decorator: Any
) -> None:
    @of_base(frozen=True, slots=True)
    class Base:
        a: int

    @decorator(frozen=True, slots=True)
    class Derived(Base):
        b: int

    one = Derived(1, 2)
    assert (one.a, one.b, repr(one).endswith("(a=1, b=2)")) == (1, 2, True)
    with pytest.raises(FrozenInstanceError):
        one.a = 3
    with pytest.raises(TypeError, match="cannot inherit"):
        decorator(type("Loose", (Base,), {}))


@DECORATORS
def test_methods_of_the_class_itself_stay(decorator: Any) -> None:
    @decorator(frozen=True)
    class Loud:
        a: float

        def __repr__(self) -> str:
            return "loud"

        def __eq__(self, other: object) -> bool:
            return True

        @cached_property
        def twice(self) -> float:
            return 2 * self.a

    one = Loud(1.0)
    assert (repr(one), one == 7, hash(one), one.twice) == (
        "loud",
        True,
        hash((1.0,)),
        2.0,
    )


def test_equal_means_the_same_or_equal_fields() -> None:
    """As the standard library's did before Python 3.13."""

    @dataclass(eq=True)
    class One:
        a: float

    nan = float("nan")
    assert One(nan) == One(nan)
    assert One(nan) != One(float("nan"))


@DECORATORS
def test_an_object_in_itself_is_shown_once(decorator: Any) -> None:
    @decorator
    class Loop:
        inside: list[Any]

    one = Loop([])
    one.inside.append(one)
    assert repr(one).endswith("Loop(inside=[...])")


def _without_a_default_last(decorator: Any) -> Any:
    @decorator
    class Late:
        a: int = 1
        b: int

    return Late(5)


def _own_setter(decorator: Any) -> Any:
    @decorator(frozen=True)
    class Own:
        a: int

        def __setattr__(self, name: str, value: object) -> None: ...

    return Own(1)


def _own_hash(decorator: Any) -> Any:
    @decorator(frozen=True)
    class Own:
        a: int
        __hash__ = None  # type: ignore[assignment]

    return hash(Own(1))


def _own_equality_and_hash(decorator: Any) -> Any:
    @decorator(frozen=True)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    return hash(Own(1))


def _of_one_that_is_not_frozen(decorator: Any) -> Any:
    @decorator
    class Loose:
        a: int

    @decorator(frozen=True)
    class Frozen(Loose):
        b: int

    return Frozen(1, 2)


def _of_an_abstract_one(decorator: Any) -> Any:
    class Shown(ABC):
        @abstractmethod
        def __repr__(self) -> str: ...

    @decorator
    class Made(Shown):
        a: int

    return Made(1).a


@pytest.mark.parametrize(
    "use",
    [
        _without_a_default_last,
        _own_setter,
        _own_hash,
        _own_equality_and_hash,
        _of_one_that_is_not_frozen,
        _of_an_abstract_one,
    ],
)
def test_odd_classes_are_made_or_refused_as_by_the_standard_decorator(use: Any) -> None:
    assert _outcome(lambda: use(dataclass)) == _outcome(
        lambda: use(dataclasses.dataclass)
    )


@DECORATORS
def test_a_derived_class_without_the_decorator_may_have_more(decorator: Any) -> None:
    @decorator(frozen=True)
    class Base:
        a: int

    class More(Base):
        def __init__(self) -> None:
            super().__init__(1)
            self.b = 2

    one = More()
    assert (one.a, one.b) == (1, 2)
    with pytest.raises(FrozenInstanceError):
        one.a = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.a
    del one.b
    assert not hasattr(one, "b")


@DECORATORS
def test_the_signature_has_types_and_defaults(decorator: Any) -> None:
    @decorator
    class Many:
        a: int
        b: list[int] = field(default_factory=list)
        c: float = field(default=2.0, kw_only=True)

    signature = "(a: int, b: list[int] = <factory>, *, c: float = 2.0) -> None"
    assert str(inspect.signature(Many)) == signature


def test_a_constructor_is_made_when_it_is_first_asked_for() -> None:
    @dataclass
    class Base:
        a: int

    @dataclass(slots=True)
    class Derived(Base):
        b: int = 2

    def made(cls: type) -> bool:
        return inspect.isfunction(cls.__dict__["__init__"])

    assert not made(Base) and not made(Derived)
    first = Derived.__init__
    assert made(Derived) and Derived.__init__ is first and not made(Base)
    assert Base(1).a == 1 and made(Base)


def test_a_constructor_that_has_been_replaced_stays_so() -> None:
    @dataclass
    class One:
        a: int

    lazy = One.__dict__["__init__"]
    One.__init__ = lambda self: setattr(self, "a", 5)  # type: ignore[method-assign,assignment]
    lazy.__get__(None, One)(One(), 3)
    assert One().a == 5  # type: ignore[call-arg]


@pytest.mark.parametrize("last", [{"a": int}, {"a": int, "b": int}])
def test_a_default_before_a_field_without_is_refused_at_the_definition(
    last: dict[str, type],
) -> None:
    namespace = {"__annotations__": {"z": int, **last}, "z": 1}
    with pytest.raises(TypeError, match="'a' follows default argument"):
        dataclass(type("Late", (), namespace))


@DECORATORS
@SHAPES
def test_types_in_text_are_kept_and_what_is_no_field_is_none(
    decorator: Any, shape: dict[str, bool]
) -> None:
    """As in a module with `from __future__ import annotations`."""

    @decorator(**shape)
    class Base:
        a: "int"
        b: "list[int]" = field(default_factory=list)

    @decorator(**shape)
    class Shared(Base):
        count: "ClassVar[int]" = 3
        c: "float" = 2.0

    @decorator(**shape)
    class Named(Base):
        _: "KW_ONLY"
        c: "float" = 2.0

    @decorator(**shape)
    class Given(Base):
        seed: "InitVar[int]" = 3
        c: "float" = 2.0

    kept = {"a": "int", "b": "list[int]"}
    assert Base.__annotations__ == kept
    assert Base.__init__.__annotations__ == {**kept, "return": None}
    for cls in (Shared, Named, Given):
        found = {f.name: f.type for f in dataclasses.fields(cls)}
        assert found == {**kept, "c": "float"}
    assert [f.kw_only for f in dataclasses.fields(Named)][-1]
    assert Shared.count == 3
