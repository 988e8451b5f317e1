"""How many kernels per second feature extraction handles, and where the time goes.

python -m benchmarks.feature_rate --networks unet,bert

The kernels are those of networks with default schedules, and random schedules of a product. Seconds
are processor time of this process, the best of several rounds; a loop of plain Python timed in
between shows the core's current speed.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import rounds_option
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import reduce_
from tilewright.driver.compilation import optimize
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.plan.normalize import kernel_signature
from tilewright.testing.machines import MACHINES
from tilewright.testing.networks import NETWORKS
from tilewright.tune.features import Facts, Fast, FeatureSet, feature_sets
from tilewright.tune.features import program as walk

USUAL = "resnet_basic,mobilenet_v2,unet,bert,lstm,yolo_v8"
GOAL = 5000  # kernels a second, of the fast set
PLAIN = 200_000  # additions of the loop of plain Python
PRODUCT = "random schedules of a product"


def of_network(network: str, machine: str) -> Iterator[Kernel]:
    """The kernels of a network as code is generated from them."""
    target = MACHINES[machine].target()
    plan = make_plan(optimize(NETWORKS[network]().graph, Options(), target), target)
    compiler = KernelCompiler(target, target, None)
    for stage in plan.groups:
        signature = kernel_signature(stage, plan.live[stage])
        fixed = tuple(b in plan.data for b in signature.values)
        yield compiler.hoisted(signature, fixed).kernel


def of_product(machine: str, count: int) -> Iterator[Kernel]:
    """Random schedules of a product of matrices, as a search draws them."""
    target = MACHINES[machine].target()
    x, w = Buffer("x", (256, 512), float32), Buffer("w", (512, 384), float32)
    y = Buffer("y", (256, 384), float32)
    product = reduce_("m", y, (512,), "add", lambda i, j, k: x[i, k] * w[k, j])
    plain = lower("product", [product], [x, w, y], [y])
    sketches = target.sketches(plain, [product], [])
    r = random.Random(0)
    while count:
        try:
            yield r.choice(sketches).random(r).schedule.kernel
        except ScheduleError:
            continue
        count -= 1


@dataclass(frozen=True)
class Rate:
    """Microseconds per kernel: of the walk, of the touched memory, of the rest of `fast`; of all of
    it if every nest is cached. plain: nanoseconds of an addition in plain Python."""

    what: str
    kernels: int
    walk: float
    touched: float
    rest: float
    again: float
    plain: float

    @property
    def per_second(self) -> float:
        """Kernels that are not in the cache."""
        return 1e6 / (self.walk + self.touched + self.rest)


def measure(what: str, kernels: Sequence[Kernel], fast: Fast, rounds: int) -> Rate:
    """The rate of the fast set; nothing is kept from one round to the next."""

    def touch() -> None:
        for kernel in kernels:
            for line in walk.program(kernel).lines:
                _ = line.touches

    steps: list[Callable[[], object]] = [
        lambda: [walk.program(kernel) for kernel in kernels],
        touch,
        walk.forget,
        lambda: fast.extract_all(kernels),
        lambda: fast.extract_all(kernels),
        _plain,
    ]
    best = [float("inf")] * len(steps)
    for _ in range(rounds):
        walk.forget()
        gc.collect()
        for n, step in enumerate(steps):
            start = time.process_time()
            step()
            best[n] = min(best[n], time.process_time() - start)
    walked, touched, _, new, again = (1e6 * s / len(kernels) for s in best[:5])
    plain = 1e9 * best[5] / PLAIN
    rest = new - walked - touched
    return Rate(what, len(kernels), walked, touched, rest, again, plain)


def _plain() -> int:
    total = 0
    for n in range(PLAIN):
        total += n
    return total


def others(kernels: Sequence[Kernel], sets: Sequence[FeatureSet]) -> dict[str, float]:
    """Kernels a second of the other sets, nests kept."""
    found = {}
    for features in sets:
        start = time.process_time()
        for kernel in kernels:
            features.extract(kernel)
        found[features.name] = len(kernels) / (time.process_time() - start)
    return found


@click.command(epilog="Example: python -m benchmarks.feature_rate --networks unet,bert")
@click.option(
    "--networks", default=USUAL, show_default=True, help="Of testing/networks."
)
@click.option("--machine", default="skylake-server", type=click.Choice(list(MACHINES)))
@rounds_option(15)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
def main(networks: str, machine: str, rounds: int, as_json: bool) -> None:
    """Time the features of the kernels of networks."""
    facts = Facts.of(MACHINES[machine].target())
    fast = Fast(facts)
    groups = {name: list(of_network(name, machine)) for name in networks.split(",")}
    groups[PRODUCT] = list(of_product(machine, 60))
    every = [kernel for kernels in groups.values() for kernel in kernels]
    rows = [measure(what, kernels, fast, rounds) for what, kernels in groups.items()]
    rows.append(measure("all", every, fast, rounds))
    if as_json:
        for row in rows:
            click.echo(json.dumps(asdict(row) | {"per_second": row.per_second}))
        return
    view = Table(title=f"`fast`, microseconds per kernel; the goal is {GOAL} a second")
    headings = "walk,touched,rest,nests kept,per second,plain ns".split(",")
    view.add_column("kernels of")
    view.add_column("kernels", justify="right")
    for heading in headings:
        view.add_column(heading, justify="right")
    for row in rows:
        numbers = (row.walk, row.touched, row.rest, row.again, row.per_second)
        cells = (f"{n:.0f}" for n in numbers)
        view.add_row(row.what, str(row.kernels), *cells, f"{row.plain:.0f}")
    Console().print(view)
    found = others(every, [s for s in feature_sets(facts) if s.name != fast.name])
    texts = (f"{name} {rate:.0f}" for name, rate in found.items())
    click.echo(f"a second, nests kept: {', '.join(texts)}")


if __name__ == "__main__":
    main()
