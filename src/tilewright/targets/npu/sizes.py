"""Choosing the machine's sizes for operators of any size: the cheapest of all derivations.

An operator is one of the machine's, or a rule makes smaller ones of it (`cut`), or a larger one
(`pad`), or others (`rows`: a product of matrices is one for each row). The cost of a derivation is
the sum over the operators it ends in, so the cheapest is found exactly by dynamic programming over
operators; every step of it is a rule application.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from math import ceil, inf, prod

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.machine import BINARY, REDUCTIONS, UNARY, NpuMachine
from tilewright.targets.npu.operator import Key


@dataclass(frozen=True, slots=True)
class SizedRule:
    """A rule with its parameters, and the operators that it leaves: how many of each."""

    rule: str
    sizes: tuple[tuple[str, int], ...]
    leaves: tuple[tuple[Key, int], ...]

    @property
    def pads(self) -> bool:
        """Whether it leaves one operator of the machine, larger than the one there was."""
        return self.rule.startswith("pad-")

    @property
    def first(self) -> int | None:
        """The length of the first part of its result, for rules that change that."""
        if self.rule.endswith("columns"):
            return None
        return dict(self.sizes).get("p")


# What is done with each operator; None: it is one of the machine's.
Choices = Mapping[Key, SizedRule | None]


@dataclass(frozen=True, slots=True)
class BestChoice:
    """The cheapest way; `choice` is None where it is an operator of the machine."""

    cost: float
    choice: SizedRule | None


@dataclass(slots=True)
class SizeChoices:
    """The choices for a machine, each made once. fixed: those made by someone else."""

    machine: NpuMachine
    fixed: Choices = field(default_factory=dict)
    known: dict[Key, BestChoice] = field(default_factory=dict)

    def best(self, name: str, sizes: tuple[int, ...]) -> BestChoice:
        """The cheapest way for an operator; its cost is infinite if there is none."""
        key = (name, sizes)
        if key not in self.known:
            self.known[key] = BestChoice(
                inf, None
            )  # an operator is not a way to itself
            self.known[key] = self._best(key)
        return self.known[key]

    def _best(self, key: Key) -> BestChoice:
        own = self.machine.find(*key)
        found = [] if own is None else [BestChoice(cost(self.machine, *key), None)]
        if key in self.fixed:
            choice = self.fixed[key]
            if choice is None:
                return found[0]
            return BestChoice(self.cost(choice), choice)
        found += [BestChoice(self.cost(c), c) for c in self.choices(*key)]
        return min(found, key=lambda best: best.cost, default=BestChoice(inf, None))

    def cost(self, choice: SizedRule) -> float:
        """Of what a choice leaves; what is padded is then used unchanged."""
        if choice.pads:
            return cost(self.machine, *choice.leaves[0][0])
        return sum(count * self.best(*leaf).cost for leaf, count in choice.leaves)

    def choices(self, name: str, sizes: tuple[int, ...]) -> Iterator[SizedRule]:
        """Every rule that brings the operator closer to an operator of the machine."""
        if name in (*BINARY, *UNARY, *REDUCTIONS):
            yield from self._vector(name, *sizes)
        elif name == "MVMul":
            yield from self._product(*sizes)
        elif name == "MMMul":
            yield from self._matrices(*sizes)
        elif name == "MMAdd":
            yield SizedRule("flat-MMAdd", (), _several(("VVAdd", (prod(sizes),))))
        elif name == "MVAdd":
            yield SizedRule("rows-MVAdd", (), ((("VVAdd", sizes[1:]), sizes[0]),))
            for p, q in self.machine.sizes(name):
                if (p, q) != sizes and p >= sizes[0] and q >= sizes[1]:
                    yield SizedRule(
                        "pad-MVAdd", (("p", p), ("q", q)), _several((name, (p, q)))
                    )

    def _vector(self, name: str, n: int) -> Iterator[SizedRule]:
        combine: tuple[tuple[Key, int], ...] = ()
        if name in REDUCTIONS:
            combine = (
                (({"VReduceAdd": "VVAdd", "VReduceMax": "VVMax"}[name], (1,)), 1),
            )
        for (p,) in self.machine.sizes(name):
            if p < n:
                pieces = _several((name, (p,)), (name, (n - p,)))
                yield SizedRule(f"cut-{name}", (("p", p),), pieces + combine)
            elif p > n:
                yield SizedRule(f"pad-{name}", (("p", p),), _several((name, (p,))))
        if name == "VVSub":
            yield SizedRule(
                "vvsub-as-vvadd", (), _several(("VVAdd", (n,)), ("VVMul", (n,)))
            )

    def _product(self, m: int, n: int) -> Iterator[SizedRule]:
        for p, q in self.machine.sizes("MVMul"):
            if p < m:
                pieces = _several(("MVMul", (p, n)), ("MVMul", (m - p, n)))
                yield SizedRule("cut-MVMul-rows", (("p", p),), pieces)
            if q < n:
                pieces = _several(
                    ("MVMul", (m, q)), ("MVMul", (m, n - q)), ("VVAdd", (m,))
                )
                yield SizedRule("cut-MVMul-columns", (("p", q),), pieces)
            if (p, q) != (m, n) and p >= m and q >= n:
                yield SizedRule(
                    "pad-MVMul", (("p", p), ("q", q)), _several(("MVMul", (p, q)))
                )

    def _matrices(self, m: int, n: int, k: int) -> Iterator[SizedRule]:
        for p, q, r in self.machine.sizes("MMMul"):
            if p < m:
                yield _cut("rows", p, (p, n, k), (m - p, n, k))
            if q < n:
                sums = _several(
                    ("MMMul", (m, q, k)), ("MMMul", (m, n - q, k)), ("MMAdd", (m, k))
                )
                yield SizedRule("cut-MMMul-inner", (("p", q),), sums)
            if r < k:
                yield _cut("columns", r, (m, n, r), (m, n, k - r))
            if (p, q, r) != (m, n, k) and p >= m and q >= n and r >= k:
                to = (("p", p), ("q", q), ("r", r))
                yield SizedRule("pad-MMMul", to, _several(("MMMul", (p, q, r))))
        yield SizedRule("rows-MMMul", (), ((("MVMul", (k, n)), m),))


def _several(*keys: Key) -> tuple[tuple[Key, int], ...]:
    return tuple(Counter(keys).items())


def _cut(
    side: str, p: int, first: tuple[int, ...], others: tuple[int, ...]
) -> SizedRule:
    return SizedRule(
        f"cut-MMMul-{side}", (("p", p),), _several(("MMMul", first), ("MMMul", others))
    )


def cost(machine: NpuMachine, name: str, sizes: tuple[int, ...]) -> float:
    """Cycles of an operator that the machine has, with its latency and the vectors that it moves.

    Bringing matrices from DRAM costs the same however they are cut: padding is not brought.
    """
    op = machine.find(name, sizes)
    assert op is not None
    moved = {
        "MVMul": sum(sizes),
        "MMMul": sizes[0] * sum(sizes[1:]),
        "MVAdd": 2 * prod(sizes),
    }
    vectors = moved.get(name, (3 if name in BINARY else 2) * sizes[-1])
    memory = machine.vectors
    transfer = machine.transfer + ceil(vectors * machine.bytes / memory.bandwidth)
    return op.issue + op.interval + op.latency + transfer
