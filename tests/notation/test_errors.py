"""Errors are part of the notations: each says where it is, and what to do."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright.base.errors import InputError
from tilewright.lang import lift, mdh, te
from tilewright.notation.mdh import parse as parse_mdh

SOURCE = Path(tilewright.__file__).parent
PLACES = ["notation/te", "notation/mdh", "notation/lift", "lang/te", "lang/mdh.py", "lang/lift.py"]
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


@pytest.mark.parametrize("given", [3, None, b"x", ["x"]], ids=["int", "none", "bytes", "list"])
@pytest.mark.parametrize(
    "parse", [te.parse, lift.parse, parse_mdh, lift.computation], ids=["te", "lift", "mdh", "one"]
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
    with pytest.raises(InputError, match=r"(300|256|-1) is out of the range of uint8, 0 to 255"):
        NARROW[notation](BEYOND[case])


def test_a_literal_that_the_dtype_lacks() -> None:
    with pytest.raises(InputError, match=r"300 is out of the range of uint8"):
        lift.u8(300)
