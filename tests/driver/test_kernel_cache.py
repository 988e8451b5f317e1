"""The kernel cache's key: programs that differ in anything that code depends on share nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.base.store import FileStore
from tilewright.compute.build import map_, reduce_
from tilewright.driver import kernels
from tilewright.driver.kernels import KernelCompiler
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.schedule.space.selection import Selection
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.testing import guarded

A, B, Y = (Buffer(n, (24, 24), float32) for n in "aby")
NATIVE: Any = CpuTarget(machine("x86-64-v3"))


def product() -> KernelSignature:
    c = reduce_("product", Y, (24,), "add", lambda i, j, k: A[i, k] * B[k, j])
    return kernel_signature(FusionGroup("product", (c,)), {Y})


def difference() -> KernelSignature:
    return kernel_signature(
        FusionGroup("s", (map_("s", Y, lambda i, j: A[i, j] - B[j, i]),)), {Y}
    )


def right(signature: KernelSignature, code: Any, fixed: tuple[bool, ...]) -> bool:
    """Whether the code gives the product of two random matrices."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((24, 24)).astype(np.float32) for _ in "ab")
    memory = {A: a, B: b, Y: np.zeros((24, 24), np.float32)}
    after, wrong = guarded.call(signature, code, memory, fixed)
    return not wrong and bool(np.allclose(after[Y], a @ b, atol=1e-3))


@pytest.mark.parametrize("first", [True, False])
def test_weights_that_are_known_and_such_that_are_not(
    first: bool, tmp_path: Path
) -> None:
    """Code for known weights takes them packed; nobody packs those of a caller."""
    store = FileStore(tmp_path, 1 << 30)
    for known in (first, not first):
        code = KernelCompiler(NATIVE, NATIVE, store).compile(
            product(), {B} if known else ()
        )
        assert bool(code.preparations) is known
        assert right(product(), code, (False, known, False))


TARGETS: dict[str, Any] = {
    "level": CpuTarget(machine("x86-64-v2")),
    "exact": replace(NATIVE, exact=True),
    "first cache": replace(NATIVE, machine=replace(NATIVE.machine, l1=2 << 10)),
    "second cache": replace(NATIVE, machine=replace(NATIVE.machine, l2=64 << 10)),
    "last cache": replace(NATIVE, machine=replace(NATIVE.machine, l3=128 << 10)),
    "cores": replace(NATIVE, machine=replace(NATIVE.machine, cores=64)),
    "a feature": replace(
        NATIVE, machine=replace(NATIVE.machine, features=NATIVE.machine.features[:-1])
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_share_no_code(name: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1 << 30)
    other = TARGETS[name]
    KernelCompiler(NATIVE, NATIVE, store).compile(product(), ())
    compiler = KernelCompiler(other, NATIVE, store)
    made: list[Any] = []
    real = compiler._made
    compiler._made = lambda wanted: made.append(wanted) or real(wanted)  # type: ignore[method-assign, func-returns-value]
    found = compiler.compile(product(), ())
    assert made
    again = KernelCompiler(other, NATIVE, store)
    again._made = None  # type: ignore[assignment, method-assign]
    assert again.compile(product(), ()) == found


def named(name: str) -> KernelSignature:
    c = reduce_(name, Y, (24,), "add", lambda i, j, k: A[i, k] * B[k, j])
    return kernel_signature(FusionGroup("product", (c,)), {Y})


def chosen(**values: Any) -> KernelCompiler:
    selection = Selection("tiled", values)
    return KernelCompiler(NATIVE, NATIVE, None, choose=lambda signature: selection)


def test_all_that_code_depends_on_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler, what runs here, names, checks, weights, the schedule that is asked for."""
    plain = KernelCompiler(NATIVE, NATIVE, None)
    compilers = {
        "as it was": plain,
        "prepared elsewhere": KernelCompiler(NATIVE, TARGETS["level"], None),
        "checked": KernelCompiler(NATIVE, NATIVE, None, sanitize=True),
        "chosen": chosen(),
        "chosen otherwise": chosen(tile=8),
    }
    nothing = (False, False, False)
    keys = {k: c._key(product(), nothing) for k, c in compilers.items()}
    keys["of known weights"] = plain._key(product(), (False, True, False))
    keys["of another name"] = plain._key(named("other"), nothing)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "compiler", lambda: "another version")
        keys["of another compiler"] = plain._key(product(), nothing)
    assert len(set(keys.values())) == len(keys), keys
    assert keys["as it was"] == KernelCompiler(NATIVE, NATIVE, None)._key(
        named("product"), nothing
    )


def test_each_operand_is_packed_into_its_own_place() -> None:
    c, middle = Buffer("c", (24, 24), float32), Buffer("m", (24, 24), float32)
    one = reduce_("one", middle, (24,), "add", lambda i, j, k: A[i, k] * B[k, j])
    two = reduce_("two", Y, (24,), "add", lambda i, j, k: middle[i, k] * c[k, j])
    signature = kernel_signature(FusionGroup("two", (one, two)), {Y})
    fixed = tuple(v in (B, c) for v in signature.values)
    code = KernelCompiler(NATIVE, NATIVE, None).compile(signature, {B, c})
    assert len(code.preparations) == 2
    rng = np.random.default_rng(0)
    memory = {v: rng.standard_normal((24, 24)).astype(np.float32) for v in (A, B, c)}
    memory[Y] = np.zeros((24, 24), np.float32)
    after, wrong = guarded.call(signature, code, memory, fixed)
    assert not wrong
    want = memory[A] @ memory[B] @ memory[c]
    np.testing.assert_allclose(after[Y], want, rtol=1e-3, atol=1e-3)


def test_the_first_operand_may_be_overwritten() -> None:
    doubled = map_("twice", Y, lambda i, j: A[i, j] * 2.0)
    signature = kernel_signature(FusionGroup("twice", (doubled,)), {Y})
    code = KernelCompiler(NATIVE, NATIVE, None).compile(signature, ())
    assert code.in_place == (signature.values.index(A),) == (0,)


def test_only_new_kernels_are_shared_among_processes_and_only_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared: list[int] = []

    def share(jobs: Any, count: int) -> list[bytes]:
        shared.append(len(jobs))
        return [job() for job in jobs]

    monkeypatch.setattr(kernels, "share", share)
    compiler = KernelCompiler(NATIVE, NATIVE, None)
    several = [product(), difference(), named("other"), product()]
    monkeypatch.setattr(kernels, "workers", lambda jobs, processors: 1)
    assert len(list(compiler.compile_all(several[:1], (), 2))) == 1 and not shared
    monkeypatch.setattr(kernels, "workers", lambda jobs, processors: 2)
    first, *others, again = compiler.compile_all(several, (), 2)
    assert shared == [2] and first is again and first not in others


@pytest.mark.parametrize("group", ["", "of the model"])
def test_a_choice_is_told_under_the_name_of_the_group(group: str) -> None:
    signature = replace(product(), group=group)
    with events.record() as log:
        KernelCompiler(NATIVE, NATIVE, None).point(signature, (False,) * 3)
    told = {e.fields["kernel"] for e in log if e.kind == "sketch-chosen"}
    assert told == {group or signature.name}


def test_the_order_of_values_and_which_are_outputs(tmp_path: Path) -> None:
    compiler = KernelCompiler(NATIVE, NATIVE, FileStore(tmp_path, 1 << 30))
    one = difference()
    back = replace(
        one, values=(B, A, Y), params=(one.params[1], one.params[0], one.params[2])
    )
    keys = {compiler._key(f, (False,) * 3) for f in (one, back, product())}
    keys.add(compiler._key(replace(one, outputs=one.params[1:]), (False,) * 3))
    assert len(keys) == 4


def test_layers_that_say_the_same_share_their_code() -> None:
    compiler = KernelCompiler(NATIVE, NATIVE, None)
    a, b, y = (Buffer(n, (24, 24), float32) for n in ("other", "names", "here"))
    c = reduce_("product", y, (24,), "add", lambda i, j, k: a[i, k] * b[k, j])
    other = kernel_signature(FusionGroup("x", (c,)), {y})
    assert compiler.compile(product(), ()) is compiler.compile(other, ())
