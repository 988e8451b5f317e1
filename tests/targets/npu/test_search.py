"""The search against every mapping there is, on small layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

import pytest

from tests.targets.npu.programs import chain, example, layer
from tilewright.lang.lift import f32, fun
from tilewright.lift.derive import derive
from tilewright.lift.nodes import Lambda
from tilewright.targets import npu
from tilewright.targets.npu.candidate import NpuCandidate
from tilewright.targets.npu.exhaustive import combinations
from tilewright.targets.npu.expansion import OperatorForm
from tilewright.targets.npu.levels import to_operators
from tilewright.targets.npu.mapping import mapped
from tilewright.targets.npu.search import search

SMALL = {
    "layer": lambda: layer(96, 64),
    "fused": lambda: example().dense(40, 24),
    "im2col": lambda: example().conv_im2col(4, 2, 5),
    "stencil": lambda: example().conv_stencil(4, 2, 5),
    "lstm": lambda: example().lstm(12),
    "gru": lambda: example().gru(12),
    "attention": lambda: example().attention(2, 40),
}
QUICK = [("layer", "bytes"), ("im2col", "full"), ("attention", "wide")]
# Attention has 5832 mappings on `full`.
ALL = [
    (name, m)
    for name in SMALL
    for m in npu.MACHINES
    if (name, m) != ("attention", "full")
]


def near(name: str, machine: str) -> npu.MappingSurvey:
    found = npu.survey(SMALL[name](), npu.MACHINES[machine])
    assert found.best <= found.found <= 1.05 * found.best
    return found


@pytest.mark.parametrize(("name", "machine"), QUICK, ids=map("-".join, QUICK))
def test_the_mapping_is_within_5_percent_of_the_optimum(
    name: str, machine: str
) -> None:
    near(name, machine)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "machine"), ALL, ids=map("-".join, ALL))
def test_all_of_them_are(name: str, machine: str) -> None:
    near(name, machine)


def test_choices_matter() -> None:
    """There is something to find: the worst is far off."""
    found = near("stencil", "full")
    assert found.count > 4 and found.worst > 1.5 * found.best


def test_there_can_be_too_many_mappings() -> None:
    with pytest.raises(npu.NPUError, match="more than 10 mappings"):
        npu.survey(chain(40), npu.MACHINES["full"], limit=10)


@pytest.mark.parametrize(
    ("program", "machine"),
    [(chain(96), "full"), (layer(40, 100), "bytes"), (layer(40, 24), "small")],
    ids=["chain-full", "layer-bytes", "layer-small"],
)
def test_a_candidate_takes_what_its_derivation_takes(
    program: Lambda, machine: str
) -> None:
    """Rules evaluated where operators are met make the instructions that the derivation makes."""
    on = npu.MACHINES[machine]
    (derivation,) = to_operators(derive(program, npu.rules(0)))
    form = OperatorForm(derivation.program)
    every = list(combinations(on, tuple(form.operators)))
    for choices in every[:: max(len(every) // 3, 1)]:
        candidate = NpuCandidate(form, choices)
        made = mapped(derivation, candidate, on)
        assert made.program.instructions == candidate.assembled(on).program.instructions
        assert made.timing.cycles == candidate.cycles(on)


def test_candidates_of_one_key_make_the_same_instructions() -> None:
    """Among them cuts of a product, first by rows or first by columns."""
    on = npu.MACHINES["bytes"]
    product = fun(example().product, f32[100, 100], f32[100])
    (derivation,) = to_operators(derive(product, npu.rules(0)))
    form = OperatorForm(derivation.program)
    made = defaultdict[Hashable, list[NpuCandidate]](list)
    for choices in combinations(on, tuple(form.operators)):
        made[form.key(choices)].append(NpuCandidate(form, choices))
    same = [group for group in made.values() if len(group) > 1]
    for first, *others in same:
        program = first.assembled(on).program
        assert all(other.assembled(on).program == program for other in others)
    rules = [[c.choices["MVMul", (100, 100)] for c in group] for group in same]
    assert any(len(set(found)) > 1 for found in rules)
    different = {group[0].assembled(on).program.instructions for group in made.values()}
    assert len(different) > 1


def test_the_search_is_deterministic() -> None:
    derivations = to_operators(derive(layer(96, 64), npu.rules(0)))
    forms = [OperatorForm(derivation.program) for derivation in derivations]
    first, second = (search(forms, npu.MACHINES["full"]) for _ in range(2))
    assert first == second
