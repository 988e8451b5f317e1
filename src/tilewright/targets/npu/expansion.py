"""Programs with their operators separated, by renaming addresses.

A program in operators of any size is evaluated once, and so is the expansion of an operator by its
choices. Both are a Recipe: tasks over pieces, which are inputs, constants, and results. A candidate
is the program's recipe with the recipes of its operators substituted; operands that consist only of
inputs are equal in every candidate, so they are made once and shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import const
from tilewright.ir.node import postorder
from tilewright.lift.derive import derive, places
from tilewright.lift.lambdas import key as canonical
from tilewright.lift.match import device_name
from tilewright.lift.nodes import DeviceOp, Lambda, Literal, Param, apply
from tilewright.targets.npu.evaluate import evaluate
from tilewright.targets.npu.mapping_rules import rules, schemas
from tilewright.targets.npu.operator import Key
from tilewright.targets.npu.order import ordered
from tilewright.targets.npu.sizes import Choices, SizedRule
from tilewright.targets.npu.tasks import (
    OFFSET,
    SHIFT,
    Addresses,
    Evaluated,
    NpuValue,
    TaskOperand,
    values_in,
)


@dataclass(frozen=True, slots=True)
class EvenPlaces:
    """Places that are evenly spaced along each axis: the first one, and how far apart they are."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ElementSource:
    """Where elements come from: places in pieces that are laid one after the other.

    A product has thousands of these, nearly all of them at even places.
    """

    pieces: tuple[int, ...]
    places: EvenPlaces | Addresses

    @cached_property
    def key(self) -> bytes:
        """Equal for those of the same elements."""
        places = self.places
        if isinstance(places, EvenPlaces):
            content = repr((self.pieces, places)).encode()
        else:
            about = repr((self.pieces, places.shape)).encode()
            content = about + places.tobytes()
        return blake2b(content, digest_size=16).digest()

    def taken(self, pieces: Sequence[TaskOperand]) -> Addresses:
        """The elements."""
        found = [pieces[n].flat for n in self.pieces]
        alone = len(found) == 1
        flat = found[0] if alone else np.concatenate(found)
        places = self.places
        if not isinstance(places, EvenPlaces):
            return np.asarray(flat[places])
        steps = tuple(flat.itemsize * stride for stride in places.strides)
        there = as_strided(flat[places.start :], places.shape, steps, writeable=False)
        return there if alone else there.copy()

    def operand(self, pieces: Sequence[TaskOperand]) -> TaskOperand:
        """The same as an operand; one that holds inputs and constants only is made once."""
        first, *others = [pieces[n] for n in self.pieces]
        if not first.fixed or any(not piece.fixed for piece in others):
            return TaskOperand(self.taken(pieces), fixed=False)
        key = self.key, *others
        if key not in first.parts:
            first.parts[key] = TaskOperand(self.taken(pieces), fixed=True)
        return first.parts[key]


@dataclass(frozen=True, eq=False)
class TaskRecipe:
    """Tasks in order: operator, sizes and operands of each; and the outputs.

    Pieces are numbered: first what comes in, then the constants, then the results of the tasks.
    """

    constants: tuple[float, ...]
    tasks: tuple[tuple[Key, tuple[ElementSource, ...]], ...]
    outputs: tuple[ElementSource, ...]

    @cached_property
    def key(self) -> bytes:
        """Equal for recipes that make the same of the same pieces."""
        read = chain(*(sources for _, sources in self.tasks), self.outputs)
        operators = repr((self.constants, [key for key, _ in self.tasks])).encode()
        return operators + b"".join(source.key for source in read)


def recipe(made: Evaluated) -> TaskRecipe:
    """How the tasks of a program are made again on other values."""
    used = {number for task in made.tasks for number in task.reads}
    used.update(number for out in made.outputs for number in values_in(out))
    constants = [v for v in made.values if v.constant is not None and v.number in used]
    order = [*made.inputs, *constants, *(task.result for task in made.tasks)]
    number = np.zeros(len(made.values), np.int64)
    number[[v.number for v in order]] = np.arange(len(order))
    sizes = [v.size for v in order]
    known: dict[bytes, ElementSource] = {}  # the rows of a product read the same tiles

    def source(addresses: Addresses, reads: Sequence[int]) -> ElementSource:
        pieces = tuple(sorted({int(number[n]) for n in reads}))
        found = addresses & OFFSET
        if len(pieces) > 1:
            starts = np.zeros(len(order), np.int64)
            starts[list(pieces)] = np.cumsum([0, *(sizes[n] for n in pieces[:-1])])
            found += starts[number[addresses >> SHIFT]]
        one = ElementSource(pieces, _even(found) or found)
        return known.setdefault(one.key, one)

    return TaskRecipe(
        tuple(v.constant for v in constants if v.constant is not None),
        tuple(
            (
                (t.operator, t.sizes),
                tuple(source(x.addresses, x.reads) for x in t.operands),
            )
            for t in made.tasks
        ),
        tuple(source(out, values_in(out)) for out in made.outputs),
    )


def _even(places: Addresses) -> EvenPlaces | None:
    """The same places where they are evenly spaced, forwards; there is at least one."""
    steps = [np.diff(places, axis=axis) for axis in range(places.ndim)]
    strides = tuple(int(step.flat[0]) if step.size else 0 for step in steps)
    even = all((step == s).all() for step, s in zip(steps, strides, strict=True))
    if even and min(strides, default=0) >= 0:
        return EvenPlaces(int(places.flat[0]), places.shape, strides)
    return None


class OperatorForm:
    """A program in operators of any size, of which choices make candidates.

    Raises as `evaluate`.
    """

    def __init__(self, program: Lambda) -> None:
        self.program = program
        made = evaluate(program)
        self._recipe = recipe(made)
        self._known = Evaluated()
        for v in made.inputs:
            self._known.inputs.append(self._known.new(v.name, v.shape, v.space))
        numbers = {repr(x): x for x in (*self._recipe.constants, *_numbers())}
        self._constants = {
            name: _fixed(self._known.new(name, (), "dram", x))
            for name, x in numbers.items()
        }
        self._inputs = [_fixed(v) for v in self._known.inputs]
        self.operators: Mapping[Key, int] = Counter(
            (task.operator, task.sizes) for task in ordered(made)
        )

    def tasks(self, choices: Choices) -> Evaluated:
        """Its tasks after these choices; operators without one stay unchanged."""
        known = self._known
        made = Evaluated(
            values=list(known.values),
            tasks=[],
            inputs=known.inputs,
            outputs=[],
        )
        pieces = self._pieces(self._inputs, self._recipe)
        for key, sources in self._recipe.tasks:
            operands = tuple(source.operand(pieces) for source in sources)
            if choices.get(key) is None:
                pieces.append(_applied(made, key, operands))
                continue
            steps = _expanded(key, choices)
            inner = self._pieces(operands, steps)
            for leaf, parts in steps.tasks:
                taken = tuple(part.operand(inner) for part in parts)
                inner.append(_applied(made, leaf, taken))
            pieces += [source.operand(inner) for source in steps.outputs]
        made.outputs = [source.taken(pieces) for source in self._recipe.outputs]
        return made

    def key(self, choices: Choices) -> Hashable:
        """Equal for choices that make the same tasks, such as the same cuts in another order."""
        return frozenset(
            (key, _expanded(key, choices).key)
            for key in self.operators
            if choices.get(key) is not None
        )

    def _pieces(
        self, given: Sequence[TaskOperand], steps: TaskRecipe
    ) -> list[TaskOperand]:
        """What the tasks of a recipe may read before the first of them."""
        return [*given, *(self._constants[repr(x)] for x in steps.constants)]


def _applied(
    made: Evaluated, key: Key, operands: tuple[TaskOperand, ...]
) -> TaskOperand:
    """The result of one more task."""
    return TaskOperand(made.apply(*key, operands, "dram").addresses, fixed=False)


def _fixed(value: NpuValue) -> TaskOperand:
    return TaskOperand(value.addresses, fixed=True)


@lru_cache(maxsize=1)
def _numbers() -> tuple[float, ...]:
    """The numbers that rules may put into a program."""
    literals = (
        part.value
        for rule in rules(0).values()
        for part in postorder(rule.right)
        if isinstance(part, Literal)
    )
    return tuple(sorted({float(x) for x in literals}))


def _expanded(key: Key, choices: Choices) -> TaskRecipe:
    """The operator after these choices, down to operators without one."""
    made = dict[Key, SizedRule]()
    pending = [key]
    while pending:
        choice = choices.get(one := pending.pop())
        if choice is not None and one not in made:
            made[one] = choice
            pending += [leaf for leaf, _ in choice.leaves]
    return _chosen(key, tuple(made.items()))


@lru_cache(maxsize=4096)
def _chosen(key: Key, choices: tuple[tuple[Key, SizedRule], ...]) -> TaskRecipe:
    (_, choice), *_ = choices
    made = _way(key, choice).tasks(dict(choices))
    made.tasks = ordered(made)
    return recipe(made)


@lru_cache(maxsize=4096)
def _way(key: Key, choice: SizedRule) -> OperatorForm:
    """The operator after the rule, on its operands."""
    name, sizes = key
    schema = schemas()[name]
    lengths = tuple(map(const, sizes))
    operands = tuple(Param(f"x{i}", t) for i, t in enumerate(schema.operands(*lengths)))
    op = DeviceOp(
        device_name(name, sizes), sizes, canonical(schema.at(*lengths).meaning)
    )
    start = derive(Lambda(operands, apply(op, *operands)), rules(0))
    place, *_ = places(start.program)
    return OperatorForm(start.at(place, choice.rule, dict(choice.sizes)).program)
