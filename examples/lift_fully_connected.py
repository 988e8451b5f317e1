"""A fully connected layer, from the functional expression to device operators, rule by rule.

Three derivations of one program: by hand onto an accelerator whose operators work on 32 elements
at a time, found by search onto the same one, and by hand onto the cores and lanes of this
processor. Every rule application is printed, every result compared with NumPy.

python examples/lift_fully_connected.py
"""

import numpy as np

from tilewright import lift
from tilewright.lang.lift import (
    Derivation,
    Join,
    Map,
    Reduce,
    Zip,
    add,
    f32,
    fun,
    mul,
    relu,
)
from tilewright.lift.memory import resident
from tilewright.lift.strategies import bottom_up, rule, top_down

OUT, IN = 128, 64


@fun
def layer(W: f32[OUT, IN], b: f32[OUT], x: f32[IN]):
    def neuron(ws, bn):
        return Zip(x, ws) | Map(mul) | Reduce(add, bn) | Map(relu)

    return Zip(W, b) | Map(neuron) | Join


# Vector operators of 32 elements, a matrix-vector product of 32 by 32, 4 KiB on the chip.
MACHINE = lift.Accelerator(vector=32, rows=32, columns=32, chip=4096)

ON_THE_DEVICE = """
    zip-commute, map-fission, map-join, reduce-init, map-fission-capture, zip-first, map-join-one,
    zip-flatten-left, zip-drop-first, recognize-MVMul, recognize-VVAdd, recognize-VVRelu,
    tile-VVRelu p=32, tile-VVAdd p=32, join-cancel, chain,
    tile-MVMul-rows p=32, join-cancel, zip-map-right, chain, tile-MVMul-columns q=32,
    issue, to-chip-1, to-chip-reduce, to-chip-2, to-output-1
"""
ON_CORES_AND_LANES = """
    split-join m=16, map-par, map-seq, reduce-init, reduce-columns m=8, reduce-map, map-vec inmost,
    reduce-seq, reduce-seq
"""


def apply(start: Derivation, steps: str) -> Derivation:
    """Each step at the first place where it applies, or at the inmost of those."""
    now = start
    for step in steps.split(","):
        name, *words = step.split()
        sizes = {k: int(v) for k, v in (w.split("=") for w in words if "=" in w)}
        walk = bottom_up if "inmost" in words else top_down
        now = lift.strategies.run(walk(rule(name, **sizes)), now)
    return now


def main() -> None:
    rng = np.random.default_rng(0)
    W, b, x = (rng.standard_normal(s, dtype=np.float32) for s in ((OUT, IN), OUT, IN))
    expected = np.maximum(W @ x + b, 0)

    def agrees(got: np.ndarray) -> None:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        print("equal to NumPy")

    def run(kernel: object, target: str) -> None:
        y = np.empty(OUT, np.float32)
        lift.build(kernel, target=target)(W, b, x, y)
        agrees(y)

    table = {**lift.RULES, **lift.device_rules(MACHINE)}
    cycles = lift.Cycles(MACHINE.has)

    print("# by hand, onto device operators")
    mapped = apply(lift.derive(layer, table), ON_THE_DEVICE)
    print(mapped)
    agrees(lift.interpret(mapped.program, W, b, x)[0])
    kernel = lift.lower(mapped.program, target="device", name="layer")
    print(kernel)
    run(kernel, "interp")
    print(
        f"{resident(mapped.program)} bytes on the chip, {cycles(mapped.program):.0f} cycles"
    )

    print("\n# found by search, onto the same operators")
    found = lift.accelerate(layer, MACHINE)
    print(found.derivation)
    run(lift.lower(found.derivation.program, target="device"), "interp")
    before = cycles(found.derivation.start)
    print(
        f"{before:.0f} cycles became {found.cost:.0f}; {found.seen} programs were looked at"
    )

    print("\n# by hand, onto cores and lanes")
    native = apply(lift.derive(layer, lift.RULES), ON_CORES_AND_LANES)
    print(native)
    print(lift.lower(native.program))
    run(native.program, "cpu")


if __name__ == "__main__":
    main()
