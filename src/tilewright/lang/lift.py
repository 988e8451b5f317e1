"""Lift for users: typed array patterns, rules and strategies, Computations and loops.

    from tilewright import lift
    from tilewright.lang.lift import Join, Map, Reduce, Zip, add, f32, fun, lengths, mul

    m, n = lengths("m n")

    @fun
    def mv(M: f32[m, n], v: f32[n]):
        return M | Map(lambda row: Zip(row, v) | Map(mul) | Reduce(add, 0.0)) | Join

    f = lift.build(mv, sizes={"m": 64, "n": 32})

A program without low-level patterns says what: it is normalized to Computations, and the target's
default schedule says how. A program with them (MapSeq, MapPar, ReduceSeq, toLocal, ...) says how
itself: its patterns become the loops they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tilewright.base.errors import InputError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Expr
from tilewright.ir.node import postorder
from tilewright.lang.function import Function
from tilewright.lang.function.choosing import by_default, by_lines
from tilewright.lang.function.kept import ProgramCache
from tilewright.lang.function.program import Program
from tilewright.lift import codegen, device, express, macros, strategies
from tilewright.lift import nodes as n
from tilewright.lift.accelerate import accelerate
from tilewright.lift.conditions import SideCondition
from tilewright.lift.cost import Cycles
from tilewright.lift.derive import Derivation, derive, replay
from tilewright.lift.infer import Typing, infer
from tilewright.lift.interp import interpret
from tilewright.lift.nodes import apply, expect_program
from tilewright.lift.normalize import NormalForm
from tilewright.lift.normalize import normalize as _normalize
from tilewright.lift.patterns import SCOPE, as_type, parse
from tilewright.lift.printer import show_lines
from tilewright.lift.rule import Rule
from tilewright.lift.rules import FAMILIES, RULES
from tilewright.lift.rules import vocabulary as holes
from tilewright.lift.rules.device import Accelerator
from tilewright.lift.rules.device import rules as device_rules
from tilewright.lift.search import move, search
from tilewright.lift.sizes import leaves, length_variables, named, sizes_of, specialized
from tilewright.lift.trials import tried
from tilewright.lift.types import Type, length, lengths
from tilewright.lift.work_items import grouped
from tilewright.loops.lower import lower as plain_nests
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.targets import registry
from tilewright.targets.registry import target as find_target

if TYPE_CHECKING:
    from tilewright.runtime.profile import Profile

Sizes = Mapping[Any, int]

# Patterns that say how.
LOW_LEVEL: Final = (
    *(n.MapSeq, n.MapPar, n.MapVec, *n.GROUPS, n.MapSeqSlide),
    *(n.ReduceSeq, n.ReduceSeqUnroll, n.ScanSeq, n.Vectorize, n.To, n.DeviceOp),
)


def is_low_level(program: n.Part) -> bool:
    """Whether some pattern of the program says how it is to be done."""
    return any(isinstance(part, LOW_LEVEL) for part in postorder(program))


def rule(
    name: str,
    left: n.Term,
    right: n.Term,
    when: Sequence[SideCondition] = (),
    reason: str = "",
) -> Rule:
    """A rule of one's own: `left` becomes `right` where all of `when` hold.

    The sides are terms with holes (`lift.match`). It is checked on random programs, as ours are.
    Raises RuleError: with a program and its data on which the sides differ, or if no program was
    found that it applies to.
    """
    return tried(Rule(name, left, right, tuple(when), reason))


def normalize(
    program: n.Lambda, sizes: Sizes | None = None, name: str | None = None
) -> NormalForm:
    """The Computations that say what the program computes, at these sizes (by name or Var)."""
    expect_program(program)
    return _normalize(program, named(program, sizes or {}), name or "lift")


def lower(
    program: n.Lambda,
    sizes: Sizes | None = None,
    *,
    target: str = "cpu",
    name: str | None = None,
) -> Kernel:
    """The loops: those that low-level patterns name, or the plain nests of the Computations.

    target: decides which memory an address space is. Raises InputError for ill-typed programs,
    sizes that are missing or do not fit, and loops that cannot be nested so.
    """
    expect_program(program)
    if not is_low_level(program):
        return _plain(normalize(program, sizes, name))
    found = named(program, sizes or {})
    label = name or "lift"
    if target in ("cpu", "interp"):
        return codegen.lower(program, found, label, codegen.PROCESSOR)
    return grouped(codegen.lower(program, found, label, codegen.DEVICE))


def schedule(
    program: n.Lambda, sizes: Sizes | None = None, *, target: str | None = None
) -> Schedule:
    """A schedule to continue with: nothing done yet, or (target given) that target's default."""
    expect_program(program)
    if target is None or is_low_level(program):
        return Schedule(lower(program, sizes))
    normal = normalize(program, sizes)
    machine = find_target(target)
    return machine.default_schedule(_plain(normal), list(normal.computations), ())


def build(
    program: n.Lambda | Schedule | Kernel,
    target: str = "cpu",
    sizes: Sizes | None = None,
    threads: int | None = None,
    records: Any = None,
) -> Function | SizeGenericProgram | MappedProgram:
    """A function on arrays: one per leaf, inputs first, outputs last, written in place.

    target: a target's name, "interp" for the interpreter, or a machine that programs are brought to
    by rewriting ("npu"). sizes: of the lengths, by name;
    where some are missing, they are found from the arrays, and each combination is built once.
    records: as for `tilewright.compile`, for programs that do not say how.
    """
    if isinstance(program, Schedule):
        return by_lines(program, target, threads, records=records)
    if isinstance(program, Kernel):
        return Function(program, target, threads, records=records)
    expect_program(program)
    given = named(program, sizes or {})
    if any(v not in given for v in length_variables(program)):
        return SizeGenericProgram(program, target, threads, records)
    if registry.programs(target) == "lift":
        return MappedProgram(specialized(program, given)[0], target)
    if is_low_level(program) or target == "interp":
        loops = lower(program, given, target=target)
        return Function(loops, target, threads, records=records)
    normal = normalize(program, given)
    computations = list(normal.computations)
    return by_default(_plain(normal), computations, target, threads, records=records)


class MappedProgram(Program):
    """A program on a machine that it is brought to by rewriting, as a function on arrays."""

    def __init__(self, program: n.Lambda, target: str) -> None:
        self.program: Final = program
        self.target: Final = target
        self._loaded: Final = registry.target(target).load(program)

    def __call__(self, *arrays: Any) -> object:
        """Run; what the machine did. Raises InputError for a wrong number or shape."""
        return self._loaded(arrays)

    @property
    def functions(self) -> tuple[Function, ...]:
        """None: the machine runs no kernels."""
        return ()

    def profile(self, *arrays: Any, repeat: int = 20, **peaks: float) -> Profile:
        """Raises InputError: a call itself returns the cycles."""
        raise InputError(
            f"a program for {self.target} has no native code to time",
            where="profile",
            hint="what a call returns has the machine's cycles",
        )

    def source(self, kind: str = "asm") -> str:
        """The machine's instructions, as `asm`: the only text there is of it."""
        if kind != "asm":
            raise InputError(
                f"no {kind!r} text of a program for {self.target}",
                where="source",
                hint="known: asm; show() prints the program itself",
            )
        return self._loaded.text

    def why(self) -> str:
        """The program that was brought to the machine."""
        return show_lines(self.program)


class SizeGenericProgram(Program):
    """A program as a function on arrays of any fitting sizes; built on first use of each."""

    def __init__(
        self,
        program: n.Lambda,
        target: str,
        threads: int | None,
        records: Any = None,
    ) -> None:
        self.program: Final = program
        self._types: Final = infer(program).params
        self._count: Final = sum(len(leaves(t)) for t in self._types)
        self._kept: Final = ProgramCache()
        self._build: Final = partial(
            build, program, target, threads=threads, records=records
        )

    def __call__(self, *arrays: Any) -> object:
        """Run; what the function of these sizes returns (see `MappedProgram`; None of a
        `Function`).

        Raises InputError for shapes that do not fit the types.
        """
        return self._fitting(arrays)(*arrays)

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those of the sizes of the last calls."""
        return self._kept.functions

    def profile(self, *arrays: Any, repeat: int = 20, **peaks: float) -> Profile:
        """See `Program`: of the function for the sizes of these arrays."""
        return self._fitting(arrays).profile(*arrays, repeat=repeat, **peaks)

    def _fitting(self, arrays: tuple[Any, ...]) -> Program:
        shapes = [getattr(a, "shape", ()) for a in arrays[: self._count]]
        sizes = sizes_of(self._types, shapes)
        key = tuple(sizes.items())
        function = self._kept.get(key, lambda: self._build(sizes=sizes))
        if isinstance(function, SizeGenericProgram):
            missing = ", ".join(
                v.name for v in length_variables(self.program) if v not in sizes
            )
            raise InputError(
                f"the arrays do not tell {missing}",
                hint="give build its sizes=",
                where="build",
            )
        return function


def array(item: Any, *lengths: int | str | Expr) -> Type:
    """`array(f32, m, n)`, or `f32[m, n]`: m arrays of n items of a type.

    Raises InputError for what is not a type, and for a length that is none or negative.
    """
    return as_type(item)[lengths]


def show(what: n.Part | Computation, width: int = 100) -> str:
    """A program, term or function as text that `parse` reads; a Computation as a program.

    Raises UnsupportedError for a Computation that has no form in Lift.
    """
    if isinstance(what, Computation):
        return express.show(what)
    return show_lines(what if isinstance(what, n.Part) else expect_program(what), width)


def computation(what: str | n.Lambda) -> Computation:
    """The one Computation of a program without length variables, or of its text.

    Raises UnsupportedError for a program that is several.
    """
    return express.parse(show_lines(what) if isinstance(what, n.Part) else what)


def _plain(normal: NormalForm) -> Kernel:
    params = (*normal.inputs, *normal.outputs)
    return plain_nests(normal.name, list(normal.computations), params, normal.outputs)


__all__ = [
    "FAMILIES",
    "RULES",
    "Accelerator",
    "Cycles",
    "Derivation",
    "Function",
    "MappedProgram",
    "NormalForm",
    "SizeGenericProgram",
    "Typing",
    "accelerate",
    "apply",
    "array",
    "build",
    "computation",
    "derive",
    "device",
    "device_rules",
    "holes",
    "infer",
    "interpret",
    "is_low_level",
    "length",
    "lengths",
    "lower",
    "macros",
    "move",
    "normalize",
    "parse",
    "replay",
    "rule",
    "schedule",
    "search",
    "show",
    "strategies",
]
_WORDS: Final = {name: value for name, value in SCOPE.items() if name not in __all__}
__all__.extend(_WORDS)


def __getattr__(name: str) -> Any:
    if name not in _WORDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _WORDS[name]
