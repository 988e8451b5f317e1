"""The identity of records: everything that decides which schedule of a kernel is fastest.

A record applies only where all parts are equal. The parts are also stored separately, for queries
such as the same operator on another machine, or other shapes on the same machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import cache, cached_property
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.expr.printer import show
from tilewright.ir.node import postorder
from tilewright.plan.decisions import Decision
from tilewright.plan.identity import structure
from tilewright.plan.normalize import KernelSignature
from tilewright.runtime.device import HOST
from tilewright.runtime.machine import processor_name
from tilewright.targets.base import Target

# Increase this when the schedule that a parameter value stands for changes, so that older records
# are ignored. Adding parameters or sketches does not change it.
SCHEDULES: Final = 1

_DIGEST: Final = 32  # characters
_LONGEST: Final = 160  # characters of a part for display


@dataclass(frozen=True)
class Key:
    """The parts of a key; equal keys have equal texts.

    operator: a digest of everything that the kernel computes. family: for display, its Computations
    and how their dimensions combine: `matmul(cc cc pw) relu(cc cc)`. shapes, dtypes: of the
    parameters. layouts: their index expressions. constants: `c` for parameters known at compile
    time, else `-`. target: its name. machine: features, caches and description. processor: what
    measured, a device for code of one; empty if the code is for a machine that is not present.
    schedules: SCHEDULES at that time.
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
        """The key as JSON: the value of `Task.key`, stored in every record."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """A short name of the key."""
        return digest(self.text)

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def parse(text: str) -> Key:
        """Parse the text of a key. Raises InputError for anything else."""
        try:
            return Key.of(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{text[:80]!r} is not the key of a record: {error}"
            ) from None

    @staticmethod
    def of(given: Any) -> Key:
        """Build a key from its parts by name. Raises InputError for a missing or invalid part."""
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
    """A short name of a key's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def key_of(
    signature: KernelSignature,
    fixed: Sequence[bool],
    target: Target,
    threads: int,
    math: str = "default",
    processor: str | None = None,
) -> Key:
    """The key of a kernel. Tensor names do not matter: pass `anonymous(signature)` to the search.

    fixed: which of its values are constants. processor: the one that measures, if not this one.
    """
    if processor is None:
        processor = _measuring(target)
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


def of_decision(
    key: Key, decision: Decision, groups: Sequence[int], tensor: int | None = None
) -> Key:
    """The key for a decision about a site of a plan. key: that of the site as one kernel, whose own
    records are of its schedules and have another digest. groups: how many Computations each has.
    tensor: which of those they write is decided about."""
    about = f"{decision.name} {decision.version} {[*groups]} {tensor}"
    whole = hashlib.sha256(f"{about}\n{key.operator}".encode())
    family = _short(f"{decision.name} of {key.family}")
    return replace(key, operator=whole.hexdigest()[:_DIGEST], family=family)


def _measuring(target: Target) -> str:
    """What times the code of a target on this machine."""
    if target.device != HOST:
        return target.device_here
    return _here() if target.runs_here else ""


@cache
def _here() -> str:
    return processor_name()


def _family(c: Computation) -> str:
    return f"{c.name}({' '.join(d.combine for d in c.dims)})"


def _sides(signature: KernelSignature, parts: Sequence[str]) -> str:
    """Join parts of the parameters, with the results after an arrow."""
    results = len(signature.outputs)
    return f"{' '.join(parts[:-results])} -> {' '.join(parts[-results:])}"


def _layouts(signature: KernelSignature) -> str:
    """The first index expression of each parameter: `[i, k] [k, j] -> [i, j]`.

    An index that reads a tensor is shown as `*`.
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
    """Truncate a part for display: the digest of the operator covers the rest."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
