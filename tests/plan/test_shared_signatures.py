"""Groups that are equal but for the names of tensors have the Computations of the first."""

from __future__ import annotations

import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_
from tilewright.driver.compile import schedules
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr
from tilewright.plan.identity import structure
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import SharedSignatures, kernel_signature
from tilewright.plan.offsets import in_second_place
from tilewright.plan.verify_signature import verify_signature


def tensors(suffix: str) -> tuple[Buffer, Buffer, Buffer]:
    x, inner = (Buffer(f"{n}{suffix}", (1, 4), float32) for n in "xi")
    return x, inner, Buffer(f"y{suffix}", (1, 8), float32)


def layer(
    suffix: str, by: float = 2.0, start: int = 4, name: str = "a"
) -> tuple[FusionGroup, set[Buffer]]:
    """A group that writes the second half of a tensor, and its results."""
    x, inner, y = tensors(suffix)
    group = FusionGroup(
        f"layer{suffix}",
        (
            map_(name, inner, lambda n, i: x[n, i] * by),
            map_(
                "b",
                y,
                lambda n, i: inner[n, i] + 1.0,
                extents=(1, 4),
                index=lambda n, i: (n, i + Const(start, INDEX)),
            ),
        ),
    )
    return group, {y}


def test_equal_groups_share_their_computations() -> None:
    shared = SharedSignatures()
    first, second = (shared.of(*layer(suffix)) for suffix in "12")
    group, live = layer("3")
    third = shared.of(group, live)
    alone = kernel_signature(group, live)
    assert first.computations is second.computations is third.computations
    assert third.values == alone.values == (*group.reads, *live)
    assert third.offsets == alone.offsets == (0, 16)
    assert (third.source, third.group) == (group.computations, "layer3")
    assert structure(third) == structure(alone)
    verify_signature(group, third)


@pytest.mark.parametrize(
    ("other", "also_live"),
    [
        (layer("2", by=3.0), False),
        (layer("2", start=0), False),
        (layer("2", name="c"), False),
        (layer("2"), True),
    ],
    ids=["constant", "place", "name", "result"],
)
def test_other_groups_have_their_own(
    other: tuple[FusionGroup, set[Buffer]], also_live: bool
) -> None:
    shared = SharedSignatures()
    shared.of(*layer("1"))
    group, live = other
    if also_live:
        live = {*live, *group.writes}
    found, alone = shared.of(group, live), kernel_signature(group, live)
    assert repr(found.params) == repr(alone.params)
    assert found.offsets == alone.offsets
    assert structure(found) == structure(alone)
    verify_signature(group, found)


def test_groups_that_fill_other_parts_of_a_tensor_share_their_computations() -> None:
    shared = SharedSignatures()
    first = shared.of(*layer("1", start=4))
    for start in (3, 1, 4):
        group, live = layer("2", start=start)
        found, alone = shared.of(group, live), kernel_signature(group, live)
        assert found.computations is first.computations
        assert found.offsets == alone.offsets == (0, 4 * start)
        assert structure(found) == structure(alone)
        verify_signature(group, found)


def filling(kind: str, start: int, suffix: str = "") -> tuple[FusionGroup, set[Buffer]]:
    """A group that fills a part of a tensor which begins elsewhere than its constants say."""
    x, inner, y = tensors(suffix)
    extents = (1, 2)

    def behind(n: Expr, i: Expr) -> tuple[Expr, Expr]:
        return n, i + Const(start, INDEX)

    def before(n: Expr, i: Expr) -> tuple[Expr, Expr]:
        return n, Const(start, INDEX) - i

    def far(n: Expr, i: Expr) -> tuple[Expr, Expr]:
        return n, i + Const(6, INDEX)

    def value(n: Expr, i: Expr) -> Expr:
        return x[n, i]

    def doubled(n: Expr, i: Expr) -> Expr:
        return y[n, i + Const(start, INDEX)] * 2.0

    first = map_("a", y, value, extents=extents, index=behind)
    made = {
        "reversed": (map_("a", y, value, extents=extents, index=before),),
        "several parts": (first, map_("b", y, value, extents=extents, index=far)),
        "also read": (first, map_("b", inner, doubled, extents=extents)),
    }[kind]
    return FusionGroup(f"layer{suffix}", made), {y, inner}


@pytest.mark.parametrize("kind", ["reversed", "several parts", "also read"])
def test_groups_share_only_where_constants_say_which_part_they_fill(kind: str) -> None:
    shared = SharedSignatures()
    shared.of(*filling(kind, 4))
    for start in (2, 3):
        group, live = filling(kind, start, str(start))
        found, alone = shared.of(group, live), kernel_signature(group, live)
        assert found.offsets == alone.offsets
        assert structure(found) == structure(alone)
        verify_signature(group, found)


def test_a_tensor_with_several_parts_or_reads_keeps_its_places() -> None:
    for kind in ("several parts", "also read"):
        group, _ = filling(kind, 4)
        made = in_second_place(group.computations)
        for one, other in zip(made, group.computations, strict=True):
            assert all(a is b for a, b in zip(one.outputs, other.outputs, strict=True))


def test_a_choice_names_the_tensors_of_its_own_layer() -> None:
    source = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
layers (float[64, 96] x, float[96, 96] v, float[96, 96] w) => (float[64, 96] z) {
    p = MatMul(x, v)
    y = Relu(p)
    q = MatMul(y, w)
    z = Relu(q)
}
""")
    _, second = schedules(source, cache=False)
    name = next(p.name for p in second.parameters if p.name == "pack.w")
    chosen = {second.kernel: {"sketch": second.sketch, name: True}}
    with events.record() as log:
        tw.compile(source, cache=False, schedules=chosen)
    assert len([e for e in log if e.kind == "kernel"]) == 2
