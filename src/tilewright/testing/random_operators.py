"""Random uses of single operators, judged by ONNX Runtime and by ONNX's reference.

`run(seed)` is one check. It fails if both judges agree and our result differs; if only one of them
runs the model, and our result agrees with it in float64 but not in the model's types; if anything
but a TilewrightError is raised; or if both run it and we reject it. NaN is no judgment where
float64 has a number.

    python -m tilewright.testing.random_operators 0 1000
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import TilewrightError
from tilewright.testing.operator_trials import OperatorTrial, standard_name, trial

Array = np.ndarray[Any, Any]
Outputs = Sequence[Any] | None
UNITS: Final = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-23,
    "float64": 2.0**-48,
}
# The judges use float32 constants, whatever the element type.
COARSE: Final = frozenset({"Gelu"})
# Rejected on purpose, though both judges run it.
MEANT: Final = (
    "does not fit the extent",  # a window that is nowhere inside its input
    "are not 0 and 1",  # the standard's only axes of ReverseSequence
)
# Roundings, times the root of the number of elements that may be added.
SLACK: Final = 32.0


@dataclass(frozen=True, slots=True)
class OperatorFailure:
    """An operator that is wrong, raises, or is rejected. kind: "wrong", "raised" or "refused"."""

    trial: OperatorTrial
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.trial.seed} {self.trial.op}: {self.kind}: {self.message}"


def run(
    seed: int,
    native: bool = True,
    seen: Counter[str] | None = None,
) -> OperatorFailure | None:
    """The failure of the use number `seed` of an operator; None if correct.

    native: as compiled code, else as interpreted. seen: counts what became of it.
    """
    found = trial(seed)
    if found is None:
        how, failure = "no trial", None
    else:
        how, failure = judged(found, native)
    if seen is not None:
        seen[how] += 1
    return failure


def judged(t: OperatorTrial, native: bool = True) -> tuple[str, OperatorFailure | None]:
    """How a trial was judged ("both", "one", "nobody", "open"), and what is wrong."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = [a for a in (_runtime(t), _reference(t)) if a is not None]
        try:
            if native:
                ours = _compiled(t)
            else:
                ours = _interpreted(t)
        except TilewrightError as error:
            meant = any(part in str(error) for part in MEANT)
            if len(theirs) == 2 and not meant and not difference(t, *theirs):
                return "refused", OperatorFailure(
                    t, "refused", f"{type(error).__name__}: {error}"
                )
            return "nobody", None
        except (
            MemoryError
        ):  # a result beyond what this process is given, and not beyond the limit
            return "nobody", None
        except Exception as error:
            return "raised", OperatorFailure(
                t, "raised", f"{type(error).__name__}: {error}"
            )
        if not theirs:
            return "nobody", None
        if len(theirs) == 2 and difference(t, *theirs):
            return "open", None
        line = difference(t, theirs[0], ours, theirs[-1])
        if not line:
            return ("one", "both")[len(theirs) - 1], None
        wide = _wide(t)
        if len(theirs) == 1 and difference(t, theirs[0], wide):
            return "open", None
        settled = _unless_overflown(theirs[0], ours, wide)
        if not difference(t, theirs[0], settled, theirs[-1]):
            return "open", None
        return "wrong", OperatorFailure(t, "wrong", line)


# -------------------------------------------------------------------------------- the engines


def _runtime(t: OperatorTrial) -> Outputs:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        path_or_bytes = t.model.SerializeToString()
        session = onnxruntime.InferenceSession(
            path_or_bytes, options, providers=["CPUExecutionProvider"]
        )
        results: Sequence[Any] = session.run(None, dict(t.inputs))
        return results
    except Exception:
        return None


def _reference(t: OperatorTrial) -> Outputs:
    from onnx.reference import ReferenceEvaluator

    try:
        results: Sequence[Any] = ReferenceEvaluator(t.model).run(None, dict(t.inputs))
        return results
    except Exception:
        return None


def _compiled(t: OperatorTrial) -> Outputs:
    from tilewright.driver import compile

    made = compile(t.model, threads=1, cache=False)(dict(t.inputs))
    if isinstance(made, tuple | list):
        return made
    return [made]


def _interpreted(t: OperatorTrial) -> Outputs:
    return _evaluated(t, float64=False)


def _wide(t: OperatorTrial) -> Outputs:
    try:
        return _evaluated(t, float64=True)
    except TilewrightError:
        return None


def _evaluated(t: OperatorTrial, float64: bool) -> Sequence[Any]:
    """Evaluates our definition's own Computations if it has them, not ONNX's reference again."""
    from tilewright.frontends.onnx import load
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.graph import interp

    graph = load(t.model)
    fallback = OnnxFallback()
    inputs: dict[str, Any] = dict(t.inputs)
    if float64:
        graph = interp.as_float64(graph, fallback)
        for name, a in inputs.items():
            if a.dtype == np.float32:
                inputs[name] = a.astype(np.float64)
    values: dict[Any, Any] = dict(graph.constants)
    values |= {v: inputs[v.name] for v in graph.inputs}
    for op in graph.operations:
        operands = [None if v is None else values[v] for v in op.inputs]
        found = interp.run_natively(op, operands)
        if found is None:
            found = interp.run(op, values, fallback)
        values |= {
            v: a for v, a in zip(op.outputs, found, strict=False) if v is not None
        }
    return [values[v] for v in graph.outputs]


# ------------------------------------------------------------------------------ what is the same


def difference(
    t: OperatorTrial,
    want: Outputs,
    got: Outputs,
    other: Outputs = None,
) -> str:
    """How results differ beyond rounding; empty if not. other: a second opinion on `want`."""
    if want is None or got is None:
        return "no result"
    others = want if other is None else other
    if len(want) != len(got):
        return f"{len(got)} outputs, expected {len(want)}"
    for n, (a, b, c) in enumerate(zip(want, got, others, strict=True)):
        line = _differs(t, np.asarray(a), np.asarray(b), np.asarray(c))
        if line:
            return f"output {n}: {line}"
    return ""


def _unless_overflown(want: Outputs, got: Outputs, wide: Outputs) -> Outputs:
    """Our results, NaN where the judges have NaN only because their own numbers overflowed.

    That is where float64 has a number: the true result is finite, and NaN is inf - inf on the way
    to it. What the model's types should give there, nobody says.
    """
    if want is None or got is None or wide is None:
        return got
    if len({tuple(np.shape(a) for a in r) for r in (want, got, wide)}) > 1:
        return got
    found = list(got)
    for n, (a, w) in enumerate(zip(want, wide, strict=True)):
        if a.dtype.name in UNITS:
            found[n] = np.where(np.isnan(a) & np.isfinite(w), a, found[n])
    return found


@np.errstate(invalid="ignore")
def _differs(
    t: OperatorTrial,
    want: Array,
    got: Array,
    other: Array,
) -> str:
    if want.shape != got.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if want.dtype == object or want.dtype.kind in "USO":
        if (want == got).all():
            return ""
        return "other strings"
    name = want.dtype.name
    a, b, c = (_plain(x) for x in (want, got, other))
    if name not in UNITS:
        wrong = a != b
    else:
        finite = np.abs(a[np.isfinite(a)])
        scale = max(float(finite.max(initial=1.0)), _largest(t))
        noise = np.abs(a - c)
        coarse = standard_name(t.model.graph.node[0]) in COARSE
        if coarse:
            unit = max(UNITS[name], UNITS["float32"])
        else:
            unit = UNITS[name]
        bar = SLACK * unit * scale * np.sqrt(1 + _longest(t))
        bar = bar + 8 * float(noise[np.isfinite(noise)].max(initial=0.0))
        both_nan = np.isnan(a) & np.isnan(b)
        wrong = ~((np.abs(a - b) <= bar) | (a == b) | both_nan)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} wrong, first {b[at]} at {at}, expected {a[at]}"


def _plain(a: Array) -> Array:
    exact = a.dtype.kind in "iub" or a.dtype.kind == "c"
    if exact:
        return a
    return a.astype(np.float64)


def _arrays(t: OperatorTrial) -> Sequence[Array]:
    constants = [onnx.numpy_helper.to_array(x) for x in t.model.graph.initializer]
    return [*t.inputs.values(), *constants]


def _largest(t: OperatorTrial) -> float:
    """Of ordinary values: those at the end of a type would hide every difference."""
    found = 1.0
    for a in _arrays(t):
        if a.dtype.name in UNITS and a.size:
            values = np.abs(a.astype(np.float64))
            found = max(found, float(values[values < 1e4].max(initial=1.0)))
    return found


def _longest(t: OperatorTrial) -> int:
    """Elements that a result may be the sum of."""
    return max((a.size for a in _arrays(t)), default=1)


def main(first: int, count: int) -> int:
    """Run trials and print the failures; how many there were."""
    seen: Counter[str] = Counter()
    failures = 0
    for seed in range(first, first + count):
        failure = run(seed, True, seen)
        if failure is not None:
            failures += 1
            print(failure, flush=True)
    print(f"{count} operators from {first}: {failures} failures; {dict(seen)}")
    return failures


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2])) else 0)
