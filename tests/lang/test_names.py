"""Every public name of the originals works here, or says what to write instead.

`names/` has the names, as data: `<class>: name name ...`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tilewright import halide as hl
from tilewright import mdh, te
from tilewright.base.errors import UnsupportedError
from tilewright.base.refused import UnsupportedName


def listed(source: str) -> dict[str, list[str]]:
    """The names in a file of `names/`, by the class that has them."""
    text = Path(__file__).with_name("names").joinpath(f"{source}.txt").read_text()
    rows = [r for r in text.replace("\n  ", " ").splitlines() if r[:1] not in ("#", "")]
    return {head: names.split() for head, _, names in (r.partition(":") for r in rows)}


def check(owner: object, name: str) -> None:
    """It is there; or calling it is refused, with a hint."""
    found = getattr(owner, name)
    if isinstance(found, UnsupportedName):
        with pytest.raises(UnsupportedError, match=name) as caught:
            found()
        assert caught.value.hint


x, y = hl.vars("x y")


def owners() -> dict[str, object]:
    """Something of each class of Halide's."""
    f, r = hl.Func("f"), hl.RDom([(0, 2)] * 4)
    f[x, y] = x + y
    f[x, r.y] += 1
    image = hl.ImageParam(hl.Int(32), 2)
    others = {
        "Buffer": hl.Buffer(hl.Int(32), [2, 2]),
        "BufferDimension": hl.Buffer(hl.Int(32), [2, 2]).dim(0),
        "Dimension": image.dim(0),
        "Expr": x + 1,
        "Func": f,
        "FuncRef": f[x, y],
        "Generator": hl.Generator(),
        "GeneratorContext": hl.GeneratorContext(),
        "ImageParam": image,
        "OutputImageParam": f.output_buffer(),
        "Param": hl.Param(hl.Int(32)),
        "Pipeline": hl.Pipeline([f]),
        "RDom": r,
        "RVar": r.x,
        "Range": hl.Range(0, 1),
        "Stage": f.update(),
        "Type": hl.Int(32),
        "Target": hl.Target(),
        "Var": x,
        "halide": hl,
    }
    enums = {name: hl for name in listed("halide") if name not in others}
    for name in enums:
        found = getattr(hl, name)
        others[name] = (
            next(iter(found)) if isinstance(found, type(hl.Partition)) else found
        )
    return others


HALIDE = owners()


@pytest.mark.parametrize("owner", listed("halide"))
def test_halide(owner):
    for name in listed("halide")[owner]:
        check(HALIDE[owner], name)


def test_names_of_the_installed_halide_are_listed():
    halide = pytest.importorskip("halide")
    for owner, names in listed("halide").items():
        found = halide if owner == "halide" else getattr(halide, owner)
        assert {n for n in dir(found) if n[0] != "_"} <= {*names}, owner


def te_owners() -> dict[str, object]:
    """Something of each class of te's."""
    A, k = te.placeholder((4, 4), name="A"), te.reduce_axis((0, 4), name="k")
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    return {
        "te": te,
        "Schedule": s,
        "Stage": s[B],
        "Tensor": A,
        "TensorSlice": A[0],
        "Operation": A.op,
        "ComputeOp": B.op,
        "IterVar": k,
        "hybrid": te.hybrid,
    }


TE = te_owners()


@pytest.mark.parametrize("owner", listed("te"))
def test_te(owner):
    for name in listed("te")[owner]:
        check(TE[owner], name)


def test_mdh():
    for name in listed("mdh")["mdh"]:
        check(mdh, name)
    assert mdh.scalar_function()(abs) is abs


def test_a_name_that_nobody_has():
    for owner in [*HALIDE.values(), *TE.values()]:
        if not inspect.isclass(owner):
            with pytest.raises(AttributeError, match="tilt"):
                _ = owner.tilt
