"""A record is found where all parts of its key are equal: a test for each part."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.base.dtypes import DType, float32, float64, int64
from tilewright.base.errors import InputError
from tilewright.expr.nodes import Buffer, Load
from tilewright.operators import map_, reduce_
from tilewright.plan.decisions import FORM, POOLING
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.runtime.machine import architecture
from tilewright.targets.base import TargetSettings
from tilewright.targets.cpu import target as cpu
from tilewright.targets.registry import target
from tilewright.tune.records.key import Key, digest, key_of, of_decision


def product(
    m: int = 32,
    dtype: DType = float32,
    transposed: bool = False,
    name: str = "matmul",
    tensors: str = "abc",
) -> KernelSignature:
    a = Buffer(tensors[0], (m, 40), dtype)
    b = Buffer(tensors[1], (24, 40) if transposed else (40, 24), dtype)
    c = Buffer(tensors[2], (m, 24), dtype)

    def value(i: Load, j: Load, k: Load) -> Load:
        return a[i, k] * (b[j, k] if transposed else b[k, j])

    made = reduce_(name, c, (40,), "add", value)
    return kernel_signature(FusionGroup(name, [made], []), {c})


def key(
    signature: KernelSignature | None = None,
    constant: bool = True,
    mcpu: str = "native",
    description: dict[str, object] | None = None,
    **more: object,
) -> Key:
    made = target("cpu", mcpu, False, 2, description)
    given = {"threads": 2, "processor": "one"} | more
    return key_of(signature or product(), (False, constant, False), made, **given)  # type: ignore[arg-type]


HERE = key()
OTHERS = {
    "shape": key(product(m=33)),
    "dtype": key(product(dtype=float64)),
    "layout": key(product(transposed=True)),
    "name of its Computations, by which parameters are called": key(
        product(name="gemm")
    ),
    "constants": key(constant=False),
    "processor": key(processor="another"),
    "features": key(mcpu="x86-64-v3"),
    "caches": key(mcpu="cascadelake"),
    "description": key(description={"l2": 1 << 22}),
    "threads": key(threads=1),
    "math": key(math="exact"),
    "schedules": dataclasses.replace(HERE, schedules=HERE.schedules + 1),
    "target": dataclasses.replace(HERE, target="vta"),
}


@pytest.mark.parametrize("part", OTHERS)
def test_each_part_makes_another_key(part: str) -> None:
    assert OTHERS[part].digest != HERE.digest
    assert OTHERS[part].text != HERE.text


def test_all_keys_differ() -> None:
    assert len({k.digest for k in OTHERS.values()}) == len(OTHERS)


def test_every_part_is_in_the_text() -> None:
    for name in Key.__dataclass_fields__:
        value = getattr(HERE, name)
        other = value + 1 if isinstance(value, int) else f"{value}."
        assert dataclasses.replace(HERE, **{name: other}).text != HERE.text


def test_the_names_of_tensors_are_no_part() -> None:
    assert key(product(tensors="xyz")) == HERE


def test_nor_are_those_of_tensors_that_indices_are_read_from() -> None:
    def take(names: str) -> KernelSignature:
        a, rows = Buffer(names[0], (9, 4), float32), Buffer(names[1], (5,), int64)
        y = Buffer(names[2], (5, 4), float32)
        made = map_("take", y, lambda i, j: a[rows[i], j])
        return kernel_signature(FusionGroup("take", [made], []), {y})

    one, other = key(take("ary")), key(take("xyz"))
    assert one == other
    assert "*" in one.layouts


def test_threads_of_the_target_are_no_part_of_the_machine() -> None:
    one, two = (cpu.make(TargetSettings("x86-64-v3", threads=n)) for n in (1, 2))
    assert one.key != two.key
    assert one.fingerprint == two.fingerprint


def test_code_for_a_machine_that_is_not_here_was_measured_by_none() -> None:
    other = target("cpu", "aarch64" if architecture() == "x86_64" else "x86-64-v3")
    assert key_of(product(), (False,) * 3, other, 1).processor == ""
    here = target("cpu")
    assert key_of(product(), (False,) * 3, here, 1).processor != ""


def test_the_parts_that_people_read() -> None:
    assert HERE.family == "matmul(cc cc pw)"
    assert HERE.shapes == "[32, 40] [40, 24] -> [32, 24]"
    assert HERE.dtypes == "float32 float32 -> float32"
    assert HERE.layouts == "[i, k] [k, j] -> [i, j]"
    assert HERE.constants == "-c-"


def test_a_key_is_read_back_from_its_text() -> None:
    assert Key.parse(HERE.text) == HERE
    assert digest(HERE.text) == HERE.digest
    assert str(HERE) == HERE.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not the key of a record"),
        ("[]", "a table of its parts"),
        ("{}", "part 'operator' is None"),
        (
            HERE.text.replace('"threads":2', '"threads":"2"'),
            "'threads' is '2', not int",
        ),
        (HERE.text.replace('"threads":2', '"threads":true'), "'threads' is True"),
        (HERE.text.replace('"math"', '"maths"'), "'math' is None"),
        (HERE.text.replace("{", '{"more":1,', 1), "no part 'more'"),
        ("[" * 100_000, "not the key of a record"),
    ],
)
def test_another_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why.replace("'", ".")):
        Key.parse(text)


def test_a_decision_of_a_plan_has_keys_of_its_own() -> None:
    """Other than those of the site as one kernel, of its schedules."""
    later = dataclasses.replace(POOLING, version=POOLING.version + 1)
    about = [
        HERE,
        of_decision(HERE, FORM, [2, 1]),
        of_decision(HERE, POOLING, [2, 1]),
        of_decision(HERE, POOLING, [1, 2]),
        of_decision(HERE, later, [2, 1]),
        of_decision(HERE, POOLING, [2, 1], 0),
        of_decision(HERE, POOLING, [2, 1], 1),
    ]
    assert len({k.digest for k in about}) == len(about)
    assert of_decision(HERE, POOLING, [2, 1]) == about[2]
    assert about[2].family == f"pooling of {HERE.family}"
