"""The effect of a cost constant: the kernels and their times under several values of it.

    python -m benchmarks.sweep far_piece
    python -m benchmarks.sweep tile_rows --values 7,14,28

The kernels are those of the constant's row of `cost_cases.CASES`. A machine description sets the
value; everything else has its default. A bar separates values with different kernels. Values with
equal kernels share a row of the table: its results are compared with a reference, and rows are
timed interleaved, so that other work on the machine slows all of them.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import cost_cases
from benchmarks.harness import chosen, rounds_option
from benchmarks.turns import batch_seconds, by_turns
from tilewright.loops.nodes import Kernel
from tilewright.runtime.executable import Executable
from tilewright.targets.cpu.cost import Constant, constants

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the default: the values that are tried
BATCH = 1e-3  # seconds of calls that are timed as one
TOLERANCE = 1e-3  # of the largest result: sums are added up in other orders

Arrays = list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Setting:
    """The setting of a case. costs: constants that differ from the defaults."""

    mcpu: str = "native"
    threads: int | None = None
    costs: Mapping[str, float] = field(default_factory=dict)

    def options(self, folder: Path) -> dict[str, Any]:
        """Those of `tw.compile`; the description that they name is written into `folder`."""
        file = folder / "machine.toml"
        lines = (f"{name} = {value}\n" for name, value in self.costs.items())
        file.write_text("[costs]\n" + "".join(lines), encoding="utf-8")
        return {"mcpu": self.mcpu, "threads": self.threads, "machine": file}


def kernels(name: str, setting: Setting) -> str:
    """The scheduled kernels of a case; of one by hand what code generation makes of it."""
    if name in cost_cases.SCHEDULED:
        from tilewright.targets.cpu.compile import finished

        return str(finished(cost_cases.SCHEDULED[name](), _cpu(setting).machine))
    if name in cost_cases.PROGRAMS:
        return str(_program(name, setting))
    from tilewright.driver import text

    with tempfile.TemporaryDirectory() as folder:
        options = setting.options(Path(folder))
        return text(cost_cases.model(name), "kernel", **options)


def executable(name: str, setting: Setting) -> Executable:
    """The case, compiled."""
    import tilewright as tw

    with tempfile.TemporaryDirectory() as folder:
        options = setting.options(Path(folder))
        source: Any
        if name in cost_cases.SCHEDULED:
            source = cost_cases.SCHEDULED[name]()
        elif name in cost_cases.PROGRAMS:
            source = _program(name, setting)
        else:
            source = cost_cases.model(name)
        made = tw.compile(source, cache=False, **options)
    assert isinstance(made, Executable)
    return made


def _program(name: str, setting: Setting) -> Kernel:
    """The kernel of a program, by the default schedule."""
    from tilewright.testing.random_kernels import plain

    computations = cost_cases.PROGRAMS[name]()
    cpu = _cpu(setting)
    kernel: Kernel = cpu.default_schedule(plain(computations), computations, ()).kernel
    return kernel


def _cpu(setting: Setting) -> Any:
    """The target of a setting."""
    from tilewright.targets.registry import target

    description = {"costs": dict(setting.costs)}
    return target("cpu", setting.mcpu, threads=setting.threads, description=description)


def reference(name: str, inputs: Arrays) -> Arrays:
    """The results of a case: of a model by ONNX's own, of a program by its plain loops, of a
    kernel by hand by the interpreter."""
    if name in cost_cases.SCHEDULED:
        from tilewright.loops.interp import run

        kernel = cost_cases.SCHEDULED[name]()
        results = [np.zeros(b.shape, b.dtype.numpy) for b in kernel.outputs]
        run(kernel, dict(zip(kernel.params, (*inputs, *results), strict=True)))
        return results
    if name in cost_cases.PROGRAMS:
        import tilewright as tw
        from tilewright.testing.random_kernels import plain

        exe = tw.compile(plain(cost_cases.PROGRAMS[name]()), threads=1)
        return _listed(exe(*inputs))
    from onnx.reference import ReferenceEvaluator

    model = cost_cases.model(name)
    names = (value.name for value in model.graph.input)
    found = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return list(found)


def _listed(results: Any) -> Arrays:
    return list(results) if isinstance(results, list | tuple) else [results]


def values(constant: Constant, factors: Sequence[float] = FACTORS) -> list[float]:
    """Multiples of the default, in order; for an integer constant, integers of at least 1."""
    found = (constant.value * f for f in factors)
    if constant.whole:
        found = (max(1, round(v)) for v in found)
    return sorted(set(found))


@dataclass
class Row:
    """Values of a constant that lead to the same kernels, and what these take in seconds."""

    values: list[float]
    exe: Executable | None = None
    times: list[float] = field(default_factory=list)

    @property
    def listed(self) -> str:
        """The values, commas between them."""
        return ", ".join(f"{v:g}" for v in self.values)

    @property
    def median(self) -> float:
        """Seconds of a call."""
        return statistics.median(self.times)


def rows(constant: str, tried: Sequence[float], name: str, at: Setting) -> list[Row]:
    """The values by the kernels that they lead to, in the order given."""
    found: dict[str, Row] = {}
    for value in tried:
        costs = {**at.costs, constant: value}
        text = kernels(name, Setting(at.mcpu, at.threads, costs))
        found.setdefault(text, Row([])).values.append(value)
    return list(found.values())


def measure(
    constant: str, name: str, at: Setting, of: Sequence[Row], rounds: int
) -> None:
    """Compile, check and time the rows, interleaved.

    Raises AssertionError for wrong results.
    """
    for row in of:
        costs = {**at.costs, constant: row.values[0]}
        row.exe = executable(name, Setting(at.mcpu, at.threads, costs))
    assert of[0].exe is not None
    rng = np.random.default_rng(1)
    inputs: Arrays = []
    for t in of[0].exe.inputs:
        shape = [n for n in t.shape or () if n is not None]
        inputs.append(cost_cases.contents(shape, np.dtype(t.dtype), rng))
    expected = reference(name, inputs)
    for row in of:
        assert row.exe is not None
        for found, right in zip(_listed(row.exe(*inputs)), expected, strict=True):
            most = TOLERANCE * max(1.0, float(np.abs(right).max()))
            what = f"{name} with {constant} = {row.values[0]:g}"
            np.testing.assert_allclose(found, right, atol=most, err_msg=what)
    calls = [partial(row.exe, *inputs) for row in of if row.exe is not None]
    timed = {n: partial(batch_seconds, call, BATCH) for n, call in enumerate(calls)}
    for row, times in zip(of, by_turns(timed, rounds).values(), strict=True):
        row.times += times


def groups(of: Sequence[Row]) -> str:
    """The values, those with the same kernels together."""
    return " | ".join(row.listed for row in of)


def table(constant: Constant, of: Sequence[Row]) -> str:
    """The rows with their times; which is the default's, and which is the fastest."""
    best = min(of, key=lambda row: row.median)
    lines: list[str] = []
    for row in of:
        notes = [
            "default" if constant.value in row.values else "",
            "best" if row is best else "",
        ]
        shown = ", ".join(filter(None, notes))
        ratio = row.median / best.median
        lines.append(
            f"  {row.listed:28} {row.median * 1e6:10.1f} us {ratio:6.2f}  {shown}"
        )
    return "\n".join(lines)


@click.command(epilog="Example: python -m benchmarks.sweep tile_rows --values 7,14,28")
@click.argument("names", metavar="CONSTANT", nargs=-1, required=True)
@click.option("--values", "given", help="Commas between them. Default: 1/4 to 4 times.")
@click.option("--case", help="Another case than the constant's own.")
@click.option(
    "--mcpu", help="Default: this one, or the case's where it decides nothing."
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Default: the cores available to this process.",
)
@rounds_option(30)
@click.option("--kernels-only", is_flag=True, help="Compile and time nothing.")
def main(
    names: Sequence[str],
    given: str | None,
    case: str | None,
    mcpu: str | None,
    threads: int | None,
    rounds: int,
    kernels_only: bool,
) -> None:
    """Kernels and times under several values of each CONSTANT of cost (or pattern)."""
    from tilewright.targets.registry import target

    known = {c.name: c for c in constants()}
    for constant in chosen(",".join(names), list(known)):
        found, own = known[constant], cost_cases.CASES[constant]
        tried = values(found)
        if given is not None:
            tried = [int(v) if found.whole else float(v) for v in given.split(",")]
        name = own.name if case is None else case
        made: list[Row] = []
        for processor in ("native", own.mcpu) if mcpu is None else (mcpu,):
            at = Setting(processor, threads)
            made = rows(constant, tried, name, at)
            if len(made) > 1:
                break
        click.echo(f"{constant}: {found.meaning} [{found.unit}]")
        click.echo(f"  {name}, {at.mcpu}: {groups(made)}")
        timed = not kernels_only and target("cpu", at.mcpu).runs_here
        if len(made) > 1 and timed:
            measure(constant, name, at, made, rounds)
            click.echo(table(found, made))


if __name__ == "__main__":
    main()
