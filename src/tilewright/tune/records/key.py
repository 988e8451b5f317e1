"""What a record belongs to: everything that decides which schedule of a kernel is the fastest.

A record is used where all parts are equal and nowhere else. They are kept one by one as well, so
that one can ask for the same operator on another machine, or for the same machine and other shapes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.printer import show
from tilewright.ir.node import postorder
from tilewright.plan.identity import structure
from tilewright.plan.normalize import KernelSignature
from tilewright.runtime.machine import processor_name
from tilewright.targets.base import Target

# Rises when a value of a parameter comes to mean another schedule than it did, so that records
# from before are not used any more. It stays when parameters or sketches are added.
SCHEDULES: Final = 1

_DIGEST: Final = 32  # letters
_LONGEST: Final = 160  # letters of a part that is for people


@dataclass(frozen=True)
class Key:
    """The parts; equal ones have equal texts.

    operator: a digest of all that the kernel computes. family: for people, its Computations and how
    their dimensions combine: `matmul(cc cc pw) relu(cc cc)`. shapes, dtypes: of the parameters.
    layouts: how they are read and written. constants: `c` for those known when compiling, else `-`.
    target: by name. machine: features, caches and description. processor: which one measured;
    empty where code is for a machine that is not at hand. schedules: SCHEDULES as it was.
    """

    operator: str
    family: str
    shapes: str
    dtypes: str
    layouts: str
    constants: str
    target: str
    machine: str
    processor: str
    threads: int
    math: str
    schedules: int = SCHEDULES

    @cached_property
    def text(self) -> str:
        """The key as JSON, which `Task.key` is and every record carries."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """A short name for it."""
        return digest(self.text)

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def parse(text: str) -> Key:
        """The key of a text. Raises InputError for anything else."""
        try:
            return Key.of(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{text[:80]!r} is not the key of a record: {error}"
            ) from None

    @staticmethod
    def of(given: Any) -> Key:
        """The key of its parts by name. Raises InputError for a part that is missing or wrong."""
        if not isinstance(given, dict):
            raise InputError(f"a key is a table of its parts, not {given!r:.80}")
        types = {f.name: int if f.name in _NUMBERS else str for f in fields(Key)}
        for name in (*types, *given):
            value = given.get(name)
            if name not in types:
                raise InputError(f"a key has no part {name!r}")
            if type(value) is not types[name]:
                expected = types[name].__name__
                raise InputError(f"its part {name!r} is {value!r:.80}, not {expected}")
        return Key(**given)


_NUMBERS: Final = ("threads", "schedules")


def digest(text: str) -> str:
    """A short name for a key's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def key_of(
    signature: KernelSignature,
    fixed: Sequence[bool],
    target: Target,
    threads: int,
    math: str = "default",
    processor: str | None = None,
) -> Key:
    """The key of a kernel. The names of its tensors play no part: search `anonymous(signature)`.

    fixed: which of its values are constants. processor: which one measures, where it is another
    than this.
    """
    if processor is None:
        processor = _here() if target.runs_here else ""
    return Key(
        hashlib.sha256(structure(signature).encode()).hexdigest()[:_DIGEST],
        _short(" ".join(map(_family, signature.computations)) or signature.name),
        _short(_sides(signature, [str(list(b.extents)) for b in signature.params])),
        _short(_sides(signature, [str(b.dtype) for b in signature.params])),
        _short(_layouts(signature)),
        "".join("c" if known else "-" for known in fixed),
        target.name,
        target.fingerprint,
        processor,
        threads,
        math,
    )


@cache
def _here() -> str:
    return processor_name()


def _family(c: Computation) -> str:
    return f"{c.name}({' '.join(d.combine for d in c.dims)})"


def _sides(signature: KernelSignature, parts: Sequence[str]) -> str:
    """Parts of the parameters, results behind an arrow."""
    results = len(signature.outputs)
    return f"{' '.join(parts[:-results])} -> {' '.join(parts[-results:])}"


def _layouts(signature: KernelSignature) -> str:
    """The index by which each parameter is met first: `[i, k] [k, j] -> [i, j]`.

    An index that is read from a tensor is `*`.
    """
    if signature.kernel is not None:
        return ""
    found: dict[Buffer, tuple[Expr, ...]] = {}
    for c in signature.computations:
        for access in c.accesses:
            found.setdefault(access.buffer, access.index)
        for output in c.outputs:
            found.setdefault(output.tensor, output.index)
    shown = [", ".join(map(_index, found.get(b, ()))) for b in signature.params]
    return _sides(signature, [f"[{text}]" for text in shown])


def _index(e: Expr) -> str:
    if isinstance(e, Var):
        return e.name
    reads = any(isinstance(n, Load) for n in postorder(e))
    return "*" if reads else show(e)


def _short(text: str) -> str:
    """A part that is for people: of a long one the rest is in the digest of the operator."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
