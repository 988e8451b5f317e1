"""Damage to protobuf messages that knows their structure: fields, lists, names, numbers, bytes.

A message is looked at by reflection alone, so every part of an ONNX file is reached: attributes,
shapes, element types, edges, nodes, raw data, operator sets, functions, subgraphs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from tilewright.base.dataclass import dataclass

INTEGERS: Final = (
    0, 1, -1, 2, 3, 7, 8, 16, 64, 255, 1000, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 32,
    1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
REALS: Final = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-30,
    1e30,
    float("nan"),
    float("inf"),
    -float("inf"),
)
TEXTS: Final = (
    "",
    "x",
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "a/b",
    "\0",
    "é" * 20,
    "n" * 300,
)


@dataclass(frozen=True)
class ProtoSlot:
    """One value inside a message: field `name`, and its place if the field is a list."""

    message: Any
    name: str
    index: int | None

    @property
    def value(self) -> Any:
        """The current value."""
        found = getattr(self.message, self.name)
        if self.index is None:
            return found
        return found[self.index]

    def put(self, value: Any) -> None:
        """Set another scalar, if it fits the field's type."""
        try:
            if self.index is None:
                setattr(self.message, self.name, value)
            else:
                getattr(self.message, self.name)[self.index] = value
        except (
            ValueError,
            TypeError,
        ):  # out of the range of a 32-bit field, or no UTF-8
            return


def mutated(
    rng: Random,
    message: Any,
    most: int = 3,
) -> tuple[Any, str]:
    """A damaged copy, and the damage."""
    made = type(message)()
    made.CopyFrom(message)
    done = []
    for _ in range(rng.randint(1, most)):
        slots = _slots(made)
        if not slots:
            break
        slot = rng.choice(slots)
        change = rng.choice(_CHANGES[_kind(slot)])
        change(rng, slot, slots)
        done.append(
            f"{change.__name__.strip('_')} {type(slot.message).__name__}.{slot.name}"
        )
    return made, "; ".join(done)


def _slots(message: Any) -> list[ProtoSlot]:
    """Every value that is set, at any depth."""
    found: list[ProtoSlot] = []
    left = [message]
    while left:
        at = left.pop()
        own: list[ProtoSlot] = []
        for field, value in at.ListFields():
            if not isinstance(value, str | bytes) and hasattr(value, "__len__"):
                own += [ProtoSlot(at, field.name, n) for n in range(len(value))]
            else:
                own.append(ProtoSlot(at, field.name, None))
        left += [s.value for s in own if _kind(s) == "message"]
        found += own
    return found


def _kind(slot: ProtoSlot) -> str:
    value = slot.value
    if hasattr(value, "ListFields"):
        return "message"
    return type(value).__name__


# -- scalars


def _number(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """An odd number, one nearby, or one from elsewhere."""
    others = [s.value for s in slots if _kind(s) == "int"]
    near = slot.value + rng.choice((-2, -1, 1, 2))
    odd = rng.choice(INTEGERS)
    other = rng.choice(others)
    slot.put(rng.choice((odd, near, slot.value * 2, other)))


def _real(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    slot.put(rng.choice((*REALS, slot.value * 2, -slot.value, slot.value + 1)))


def _text(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """Replace a name by another one of the model: an edge changes its end, or an operator its
    type."""
    texts = [s for s in slots if _kind(s) == "str"]
    alike = rng.choice([s.value for s in texts if s.name == slot.name])
    other = rng.choice([s.value for s in texts])
    odd = rng.choice(TEXTS)
    slot.put(rng.choice((alike, other, odd)))


def _raw(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """Bytes cut off, added, or overwritten by an odd number."""
    data = bytearray(slot.value)
    dtype = rng.choice(INTEGERS)
    odd = rng.choice((
        struct.pack("<q", dtype),
        struct.pack("<f", rng.choice(REALS)),
        rng.randbytes(rng.choice((1, 4, 8))),
    ))  # fmt: skip
    at = rng.randrange(len(data) + 1)
    change = rng.randrange(4)
    if change == 0:
        del data[at:]
    elif change == 1:
        data += odd
    else:
        at -= at % 8 if change == 2 else at % 4
        data[at : at + len(odd)] = odd
    slot.put(bytes(data))


# -- lists and messages


def _remove(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    if slot.index is None:
        slot.message.ClearField(slot.name)
    else:
        del getattr(slot.message, slot.name)[slot.index]


def _double(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """One more of a list's entries."""
    if slot.index is None:
        return
    entries = getattr(slot.message, slot.name)
    entries.extend([slot.value])


def _swap(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """Two entries of a list change places."""
    if slot.index is None:
        return
    entries = getattr(slot.message, slot.name)
    other = rng.randrange(len(entries))
    if hasattr(slot.value, "ListFields"):
        _exchange(slot.value, entries[other])
    else:
        entries[slot.index], entries[other] = entries[other], entries[slot.index]


def _exchange(a: Any, b: Any) -> None:
    kept = type(a)()
    kept.CopyFrom(a)
    a.CopyFrom(b)
    b.CopyFrom(kept)


def _clear(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """The whole list, or field."""
    slot.message.ClearField(slot.name)


def _copy(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """What another message of the same type holds."""
    alike = [s.value for s in slots if type(s.value) is type(slot.value)]
    kept = type(slot.value)()
    kept.CopyFrom(rng.choice(alike))
    if kept.ByteSize() < 1 << 20:
        slot.value.CopyFrom(kept)


def _option(
    rng: Random,
    slot: ProtoSlot,
    slots: Sequence[ProtoSlot],
) -> None:
    """Add a missing field, copied from a similar message elsewhere."""
    target = slot.value
    absent = [
        f
        for f in target.DESCRIPTOR.fields
        if f not in [g for g, _ in target.ListFields()]
    ]
    if not absent:
        return
    field = rng.choice(absent)
    try:
        if field.cpp_type in (
            field.CPPTYPE_INT32,
            field.CPPTYPE_INT64,
            field.CPPTYPE_ENUM,
        ):
            setattr(target, field.name, rng.choice(INTEGERS[:9]))
        elif field.cpp_type == field.CPPTYPE_STRING:
            others = [s.value for s in slots if _kind(s) == "str"]
            setattr(target, field.name, rng.choice((*others, *TEXTS)))
        elif field.cpp_type == field.CPPTYPE_MESSAGE:
            getattr(target, field.name).SetInParent()
    except (AttributeError, TypeError, ValueError):  # a list, or bytes
        return


Change = Callable[[Random, ProtoSlot, Sequence[ProtoSlot]], None]
_CHANGES: Final[dict[str, tuple[Change, ...]]] = {
    "int": (_number, _number, _number, _remove, _double, _swap, _clear),
    "float": (_real, _real, _remove, _double, _clear),
    "str": (_text, _text, _text, _remove, _double, _swap, _clear),
    "bytes": (_raw, _raw, _raw, _clear),
    "bool": (_remove,),
    "message": (_remove, _double, _swap, _copy, _option, _clear),
}
