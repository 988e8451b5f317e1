"""Errors are part of the notations: each says where it is, and what to do."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright.base.errors import InputError, ScheduleError
from tilewright.lang import lift, mdh, te
from tilewright.lang.mdh.syntax import parse as parse_mdh

SOURCE = Path(tilewright.__file__).parent
PLACES = [
    "lang/te/syntax",
    "lang/mdh/syntax",
    "lift",
    "lang/te",
    "lang/mdh.py",
    "lang/lift.py",
]
ERRORS = {"InputError", "UnsupportedError", "ScheduleError"}


def files(place: str) -> list[Path]:
    path = SOURCE / place
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("place", PLACES)
def test_every_refusal_says_where_and_what_to_do(place: str) -> None:
    bare = [
        f"{path.relative_to(SOURCE)}:{call.lineno} lacks {', '.join(sorted(missing))}"
        for path in files(place)
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ERRORS
        and (missing := {"where", "hint"} - {k.arg for k in call.keywords})
    ]
    assert not bare, "\n".join(bare)


@pytest.mark.parametrize(
    "given", [3, None, b"x", ["x"]], ids=["int", "none", "bytes", "list"]
)
@pytest.mark.parametrize(
    "parse",
    [te.parse, lift.parse, parse_mdh, lift.computation],
    ids=["te", "lift", "mdh", "one"],
)
def test_only_text_is_parsed(parse: Any, given: Any) -> None:
    with pytest.raises(InputError) as raised:
        parse(given)
    assert raised.value.hint


NARROW: dict[str, Any] = {
    "te": lambda op: te.compute((4,), lambda i: op(te.placeholder((4,), "uint8")[i])),
    "mdh": lambda op: (
        mdh.out_view[mdh.uint8](y=[lambda i: i])
        @ mdh.md_hom[4](op, (mdh.cc,))
        @ mdh.inp_view[mdh.uint8](x=[lambda i: i])
    ),
    "lift": lambda op: lift.userfun("f", op, lift.u8),
}
BEYOND: dict[str, Any] = {
    "sum": lambda x: x + 300,
    "difference": lambda x: -1 - x,
    "comparison": lambda x: x < 300,
    "equality": lambda x: x.eq(-1),
    "bits": lambda x: x & 256,
}


@pytest.mark.parametrize("case", BEYOND)
@pytest.mark.parametrize("notation", NARROW)
def test_a_number_that_the_dtype_lacks(notation: str, case: str) -> None:
    with pytest.raises(
        InputError, match=r"(300|256|-1) is out of the range of uint8, 0 to 255"
    ):
        NARROW[notation](BEYOND[case])


def test_a_literal_that_the_dtype_lacks() -> None:
    with pytest.raises(InputError, match=r"300 is out of the range of uint8"):
        lift.u8(300)


A = te.placeholder((4,), name="A")
C = te.compute((4,), lambda i: A[i], name="C")
K = te.reduce_axis((0, 4), "k")
NO_INPUT: dict[str, Any] = {
    "te-compute": lambda: te.compute(3, 5),
    "te-domain": lambda: te.reduce_axis(("a", "b")),
    "te-name": lambda: te.placeholder((2,), name=3),
    "te-size": lambda: te.var("n", "float32"),
    "te-var": lambda: te.var(3),
    "te-scan": lambda: te.scan(3, 4, 5),
    "te-cache": lambda: te.create_schedule(C).cache_read("A", "stack"),
    "te-show": lambda: te.show(3),
    "te-sizes": lambda: te.lower(te.create_schedule(C), [A, C], sizes=3),
    "te-identity": lambda: te.comm_reducer(lambda a, b: a + b, 0),
    "te-result": lambda: te.compute(
        (1,),
        lambda i: te.comm_reducer(lambda a, b: (a, b), lambda t: te.const(0, t))(
            A[K], axis=K
        ),
    ),
    "te-bits": lambda: te.compute((4,), lambda i: A[i] & 1),
    "lift-vector": lambda: lift.Vec(3, 4),
    "lift-width": lambda: lift.Vec(lift.f32, "a"),
    "lift-array": lambda: lift.array(3, 3),
    "lift-get": lambda: lift.Get("a"),
    "lift-as-vector": lambda: lift.asVector(0),
    "lift-iterate": lambda: lift.Iterate("x", lift.exp),
    "lift-let": lambda: lift.let(1.0, lambda a, b: a),
    "lift-schedule": lambda: lift.schedule(3),
    "lift-lower": lambda: lift.lower(3),
    "lift-normalize": lambda: lift.normalize(3),
    "lift-build": lambda: lift.build(3),
    "lift-derive": lambda: lift.derive(3, lift.RULES),
    "lift-replay": lambda: lift.replay("x", lift.RULES),
    "lift-gather": lambda: lift.infer(
        lift.fun(lambda x: x | lift.Gather("bad"), lift.f32[8])
    ),
    "mdh-name": lambda: mdh.md_hom[4](mdh.mul, (mdh.cc,), name=3),
    "mdh-buffer": lambda: mdh.buffer(mdh.float32, "a"),
    "mdh-lower": lambda: mdh.lower(3),
    "mdh-fuse": lambda: mdh.fuse(3),
    "mdh-equal": lambda: mdh.equal(3, 4),
    "mdh-build": lambda: mdh.build(3),
    "mdh-add": lambda: mdh.add(1, 2),
}


@pytest.mark.parametrize("case", NO_INPUT)
def test_what_is_no_input_is_refused_by_name(case: str) -> None:
    with pytest.raises((InputError, ScheduleError)) as raised:
        NO_INPUT[case]()
    assert raised.value.where and raised.value.hint
