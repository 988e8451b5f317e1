"""What an app is: its definition, its images, the region to compute."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# The lanes of a vector of 512 bits.
F32, U16, U8 = 16, 32, 64


@dataclass(frozen=True)
class App:
    """One app of `examples/halide_apps`.

    build: the scheduled output, of a module and an ImageParam per image. images: their arrays, of a
    generator of random numbers and a size. region: the (min, extent) of each dimension of the
    output, x first, of a size. size: the one that is timed; small: the one that tests take.
    tolerance: the largest difference, relative to the output's peak; 0 where no float is involved.
    """

    build: Callable[..., Any]
    images: Callable[..., tuple[Array, ...]]
    region: Callable[..., tuple[tuple[int, int], ...]]
    size: tuple[int, ...]
    small: tuple[int, ...]
    tolerance: float = 0.0


@dataclass(frozen=True)
class Ready:
    """An app that can run: `call()` fills `out`."""

    call: Callable[[], object]
    out: Array


def names() -> list[str]:
    """All apps: the modules of this folder but this one."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return [m.name for m in found if m.name != "app"]


def load(name: str) -> App:
    """The app of a module of this folder."""
    app = importlib.import_module(f"{__package__}.{name}").APP
    assert isinstance(app, App)
    return app


def built(hl: Any, app: App, images: tuple[Array, ...]) -> tuple[Any, list[Any]]:
    """The output of an app in the words of a module, and its images, holding the arrays."""
    params = []
    for n, array in enumerate(images):
        held = hl.Buffer(array)
        param = hl.ImageParam(held.type(), array.ndim, f"input{n}")
        param.set(held)
        params.append(param)
    return app.build(hl, *params), params


def ours(app: App, size: tuple[int, ...], images: tuple[Array, ...]) -> Ready:
    """The app compiled by this package, for one thread or as many as the process may use."""
    from tilewright import halide as hl

    output, _ = built(hl, app, images)
    function = output.compile_jit(list(app.region(*size)))
    held = {f"input{n}": array for n, array in enumerate(images)}
    inputs = [held[b.name] for b in function.kernel.inputs]
    (result,) = function.kernel.outputs
    out = np.zeros(result.shape, result.dtype.numpy)
    return Ready(lambda: function(*inputs, out), out)


def theirs(
    hl: Any, app: App, size: tuple[int, ...], images: tuple[Array, ...], out: Array
) -> Ready:
    """The app compiled by the `halide` package, into `out`; threads by HL_NUM_THREADS."""
    output, alive = built(hl, app, images)
    output.compile_jit()
    buffer = hl.Buffer(out)
    buffer.set_min([low for low, _ in app.region(*size)])
    return Ready(lambda: (output.realize(buffer), alive), out)


def difference(found: Array, want: Array) -> float:
    """The largest difference relative to the peak."""
    given, wanted = (a.astype(np.float64) for a in (found, want))
    peak = float(np.abs(wanted).max()) or 1.0
    return float(np.abs(given - wanted).max()) / peak
