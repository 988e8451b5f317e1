"""From a Stage to object code, through the kernel cache.

A kernel is found again by the canonical text of its Computations, which parameters are constants,
the target and this version: names in the model play no part, so layers of one shape share one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from tilewright.base import events
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import CompileError, TilewrightError
from tilewright.base.store import Store
from tilewright.compute.canonical import canonical
from tilewright.compute.digits import detached, separate_digits
from tilewright.compute.joined import join_digits
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.driver.offsets import from_zero
from tilewright.driver.processes import share, workers
from tilewright.driver.version import compiler
from tilewright.expr.nodes import Buffer
from tilewright.graph.stages import Stage
from tilewright.ir.node import postorder
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel, Update
from tilewright.loops.passes.hoist import Hoisted, hoist
from tilewright.loops.passes.in_place import overwritable
from tilewright.loops.printer import show_kernel, show_units
from tilewright.schedule import Schedule
from tilewright.targets.base import Target


@dataclass(frozen=True, slots=True)
class Preparation:
    """Work on constants done by the compiler: `symbol(inputs..., result)`.

    inputs: indices into the interface, or -1 - n for the result of preparation n.
    """

    symbol: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    workspace: int

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class CompiledStage:
    """A kernel and how to call it.

    arguments: per parameter its index in the interface, or -1 - n for the result of preparation n.
    code, prepare_code: object files, the latter for the machine that compiles. in_place: indices
    in the interface of inputs whose memory the last output may take (see `overwritable`).
    """

    symbol: str
    arguments: tuple[int, ...]
    workspace: int
    thread_workspace: int
    preparations: tuple[Preparation, ...]
    code: bytes
    prepare_code: tuple[bytes, ...]
    in_place: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """For the cache: a line of JSON, then the object files."""
        header = {
            "symbol": self.symbol,
            "arguments": self.arguments,
            "workspace": self.workspace,
            "thread_workspace": self.thread_workspace,
            "preparations": [asdict(p) for p in self.preparations],
            "in_place": self.in_place,
            "sizes": [len(c) for c in (self.code, *self.prepare_code)],
        }
        return b"\n".join([json.dumps(header).encode(), self.code + b"".join(self.prepare_code)])

    @staticmethod
    def from_bytes(data: bytes) -> CompiledStage:
        """The inverse of `to_bytes`. Raises ValueError, KeyError or TypeError for other data."""
        line, _, blobs = data.partition(b"\n")
        h = json.loads(line)
        codes, at = [], 0
        for size in h["sizes"]:
            codes.append(blobs[at : at + size])
            at += size
        preparations = tuple(
            Preparation(
                p["symbol"], tuple(p["inputs"]), tuple(p["shape"]), p["dtype"], p["workspace"]
            )
            for p in h["preparations"]
        )
        return CompiledStage(
            h["symbol"],
            tuple(h["arguments"]),
            h["workspace"],
            h["thread_workspace"],
            preparations,
            codes[0],
            tuple(codes[1:]),
            tuple(h["in_place"]),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Interface:
    """A Stage ready to compile: its Computations or Kernel on buffers of the kernel's own.

    params: what the kernel sees, in the order of `values`, the model's buffers; outputs come last.
    offsets: bytes into each value at which the kernel gets it.
    """

    name: str
    computations: tuple[Computation, ...]
    kernel: Kernel | None
    values: tuple[Buffer, ...]
    params: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    offsets: tuple[int, ...]

    def plain(self) -> Kernel:
        """The kernel before any schedule."""
        if self.kernel is not None:
            return self.kernel
        return lower(self.name, self.computations, self.params, self.outputs)


def interface(stage: Stage, live: Collection[Buffer]) -> Interface:
    """The Stage with unique names and merged dimensions; `live`: buffers used elsewhere."""
    if stage.kernel is not None:
        k = stage.kernel
        return Interface(k.name, (), k, k.params, k.params, k.outputs, (0,) * len(k.params))
    names: dict[str, int] = {}
    named = []
    for c in stage.computations:
        count = names[c.name] = names.get(c.name, 0) + 1
        named.append(c if count == 1 else replace(c, name=f"{c.name}{count}"))
    outputs = [b for b in stage.writes if b in live]
    joined, seen = join_digits(named)
    live = {seen.get(b, b) for b in live}
    computations, views = merge_dims(detached(separate_digits(joined, live)))
    values = (*stage.reads, *outputs)
    params = tuple(views.get(seen.get(b, b), seen.get(b, b)) for b in values)
    name = re.sub(r"\W", "_", "_".join(dict.fromkeys(c.name for c in stage.computations)))[:48]
    outs = params[len(stage.reads) :]
    computations, off = from_zero(computations, outs)
    offsets = tuple(off.get(p, 0) for p in params)
    return Interface(name, computations, None, values, params, outs, offsets)


def _operators(kernel: Kernel) -> str:
    """What the reducers do that a kernel's text has by name only."""
    used = dict.fromkeys(n.reducer for n in postorder(kernel.body) if isinstance(n, Update))
    return "\n".join(f"{r} {r.lhs} {r.rhs} {r.dtypes} {r.result} {r.identity}" for r in used)


def _fixed(face: Interface, constants: Collection[Buffer]) -> tuple[bool, ...]:
    return tuple(b in constants for b in face.values)


def _cost(face: Interface) -> int:
    """How long a kernel takes to compile, roughly: what there is to write down."""
    values = (o.value for c in face.computations for o in c.outputs)
    return sum(1 for value in values for _ in postorder(value))


class KernelCompiler:
    """Compiles Stages for a target, each distinct one once.

    store: the cache on disk, or None. host: the target that runs on this machine.
    """

    def __init__(self, target: Target, host: Target, store: Store | None) -> None:
        self.target = target
        self.host = host
        self.store = store
        self.known: dict[str, CompiledStage] = {}

    def compile(self, face: Interface, constants: Collection[Buffer]) -> CompiledStage:
        """Object code for a Stage; `constants` are those of its values known now."""
        fixed = _fixed(face, constants)
        key = self._key(face, fixed)
        found = self._found(key)
        if found is None:
            found = self.known[key] = self._made(face, fixed, key)
            self._keep(key, found.to_bytes())
        return found

    def compile_ahead(
        self, faces: Iterable[Interface], constants: Collection[Buffer], processors: int
    ) -> None:
        """Compile what `compile` would have to make of these, several at a time where it pays."""
        missing: dict[str, tuple[Interface, tuple[bool, ...]]] = {}
        for face in faces:
            fixed = _fixed(face, constants)
            key = self._key(face, fixed)
            if key not in missing and self._found(key) is None:
                missing[key] = (face, fixed)
        count = workers(len(missing), processors)
        if count == 1:
            return
        keys = sorted(missing, key=lambda k: -_cost(missing[k][0]))
        jobs = [lambda k=k: self._made(*missing[k], k).to_bytes() for k in keys]
        for key, data in zip(keys, share(jobs, count), strict=True):
            if data is not None:
                self._keep(key, data)
                self.known[key] = CompiledStage.from_bytes(data)

    def _keep(self, key: str, data: bytes) -> None:
        if self.store is not None:
            self.store.put(key, data)

    def _made(self, face: Interface, fixed: Sequence[bool], key: str) -> CompiledStage:
        with events.span("kernel", name=face.name):
            return self._make(face, fixed, key)

    def schedule(self, face: Interface, fixed: Sequence[bool]) -> Schedule:
        """The default schedule of a Stage."""
        plain = face.plain()
        if face.kernel is not None:
            return Schedule(plain)
        constants = {p for p, known in zip(face.params, fixed, strict=True) if known}
        return self.target.default_schedule(plain, face.computations, constants)

    def hoisted(self, face: Interface, fixed: Sequence[bool]) -> Hoisted:
        """The scheduled kernel, its work on constants apart."""
        scheduled = self.schedule(face, fixed).kernel
        return hoist(scheduled, {p for p, known in zip(face.params, fixed, strict=True) if known})

    def _key(self, face: Interface, fixed: Sequence[bool]) -> str:
        if face.kernel is not None:
            kernel = face.kernel
            program = f"{show_kernel(kernel)}\n{show_units(kernel)}\n{_operators(kernel)}"
        else:
            program = canonical(face.computations, face.params)
        names = " ".join(c.name for c in face.computations)
        text = "\n".join(
            [
                compiler(),
                self.target.key,
                self.host.key,
                names,
                str(fixed),
                str([face.params.index(o) for o in face.outputs]),
                program,
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def _found(self, key: str) -> CompiledStage | None:
        """The kernel of this model that is the same, or the one in the cache."""
        if key in self.known:
            return self.known[key]
        data = None if self.store is None else self.store.get(key)
        if data is None:
            return None
        try:
            found = self.known[key] = CompiledStage.from_bytes(data)
        except (ValueError, KeyError, TypeError, IndexError):
            return None
        return found

    def _make(self, face: Interface, fixed: Sequence[bool], key: str) -> CompiledStage:
        try:
            work = self.hoisted(face, fixed)
            symbol = f"{face.name}_{key[:12]}"
            made = self.target.emit(work.kernel, symbol)
            position = {p: n for n, p in enumerate(face.params)}
            preparations: list[Preparation] = []
            codes: list[bytes] = []
            for n, kernel in enumerate(work.prepare):
                part = self.host.emit(kernel, f"{symbol}_p{n}")
                result = kernel.outputs[0]
                inputs = tuple(position[b] for b in kernel.inputs)
                preparations.append(
                    Preparation(
                        part.symbol, inputs, result.shape, result.dtype.name, part.workspace
                    )
                )
                codes.append(part.code)
                position[result] = -1 - n
            arguments = tuple(position[b] for b in work.kernel.params)
        except TilewrightError as error:
            raise error.at(f"kernel {face.name}") from error.__cause__
        except RecursionError as error:
            raise CompileError("the expression is nested too deeply", where=face.name) from error
        return CompiledStage(
            symbol,
            arguments,
            made.workspace,
            made.thread_workspace,
            tuple(preparations),
            made.code,
            tuple(codes),
            tuple(position[b] for b in overwritable(work.kernel) if position[b] >= 0),
        )
