"""A Kernel whose sizes are known only at a call, with the same code for all of them.

The code is compiled once. The rest of the model (shapes, bytes of workspace) is derived for each
set of sizes, without compiling; the most recent ones are kept.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np

from tilewright.base import flags
from tilewright.base.errors import ArtifactError, InputError
from tilewright.base.text import plural
from tilewright.driver.build_kernel import assembled, flops, signature_of
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.guard import validate
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.nodes import Kernel
from tilewright.loops.printer import show_buffer
from tilewright.loops.sizes import at, solve, unknown, with_sizes
from tilewright.loops.verify import verify
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CompiledModel, NativeStep, Tensor
from tilewright.runtime.overrides import Overrides
from tilewright.schedule.full_tiles import full_tiles
from tilewright.targets.base import Artifact, Target

KEPT: Final = 64  # sets of sizes; the least recently used are dropped


class SizedExecutable:
    """A Kernel with sizes as a function on arrays, whose shapes determine the sizes.

    Raises VerifyError for a broken invariant, InputError for a size that is not an extent of any
    parameter, UnsupportedError for a kernel without native code.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        threads: int | None = None,
        sanitize: bool = False,
    ) -> None:
        verify(kernel)
        check_known(kernel)
        self.kernel: Final = kernel
        self._threads = threads
        parted = full_tiles(kernel)
        if flags.DEBUG.get():
            verify(parted)
        self._checked = flags.CHECK.get()
        self._made: Artifact = target.emit(
            parted, kernel.name, {} if sanitize else None
        )
        self._target = target
        self._first: Executable | None = None
        self._kept: OrderedDict[tuple[int, ...], Executable] = OrderedDict()
        self._by_shapes: dict[tuple[tuple[int, ...], ...], Executable] = {}
        self._lock = threading.Lock()
        self.overrides: Final = Overrides({}, "")

    @property
    def defaults(self) -> Mapping[str, str]:
        """Empty: a kernel has no default inputs."""
        return self.overrides.layouts

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each input; None for an extent known only at a call."""
        return tuple(map(_tensor, self.kernel.inputs))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each output."""
        return tuple(map(_tensor, self.kernel.outputs))

    def __call__(self, *args: Any, out: Any = None) -> Any:
        """As `Executable.__call__`; the sizes come from the inputs, and from `out` if given.

        Raises InputError (TW-SHAPE) naming the array and the dimension that does not fit.
        """
        kernel = self.kernel
        outs = out if isinstance(out, list | tuple) else (out,)
        arrays = (*args, *outs) if out is not None else args
        expected = kernel.params if out is not None else kernel.inputs
        if len(arrays) != len(expected):
            raise InputError(
                f"{plural(len(arrays), 'array')} given, {len(expected)} expected: "
                f"{', '.join(map(show_buffer, expected))}",
                where=kernel.name,
            )
        shapes = tuple(np.shape(a) for a in arrays)
        made = self.at(solve(kernel, shapes))
        if len(arrays) == len(kernel.params):
            self._by_shapes[shapes] = made
        return made(*args, out=out)

    def in_place(self, arrays: tuple[Any, ...]) -> bool:
        """The fastest call on (inputs..., outputs...), for shapes seen before; False for others."""
        try:
            made = self._by_shapes[tuple([a.shape for a in arrays])]
        except (KeyError, AttributeError):
            return False
        quick = made.in_place
        return quick is not None and quick(arrays)

    def at(self, sizes: Mapping[Var, int]) -> Executable:
        """The Executable for these sizes. Raises InputError for a size without a value."""
        missing = [v.name for v in self.kernel.sizes if v not in sizes]
        if missing:
            raise InputError(
                f"no array determines {', '.join(missing)}",
                code="TW-SIZE",
                where=self.kernel.name,
                hint="give out= as well",
            )
        key = tuple(sizes[v] for v in self.kernel.sizes)
        with self._lock:
            made = self._kept.get(key)
            if made is None:
                made = self._kept[key] = self._at(dict(sizes))
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
                    self._by_shapes.clear()
            self._kept.move_to_end(key)
        return made

    def _at(self, sizes: Mapping[Var, int]) -> Executable:
        made = self._made
        kernel = with_sizes(self.kernel, sizes)
        workspace = at(made.workspace, sizes)
        thread_workspace = at(made.thread_workspace, sizes)
        values = tuple(sizes[v] for v in self.kernel.sizes)
        arguments = tuple(range(len(kernel.params)))
        code = CompiledGroup(
            made.symbol, arguments, workspace, thread_workspace, (), made.code, ()
        )
        signature = signature_of(kernel)
        if self._checked:
            fixed = [False] * len(arguments)
            validate(signature, code, fixed, sizes=values).require()
        if self._first is None:
            model = assembled(kernel, signature, code, self._target)
        else:
            model = _resized(self._first.model, kernel)
        model = replace(
            model,
            sizes=values,
            workspace=workspace,
            thread_workspace=thread_workspace,
        )
        found = Executable(model, threads=self._threads, code=self._first)
        self._first = self._first or found
        return found

    def specialized(self, inputs: Mapping[str, Any]) -> Executable:
        """The Executable for the sizes of these inputs, by name."""
        shapes = [np.shape(inputs[b.name]) for b in self.kernel.inputs]
        return self.at(solve(self.kernel, shapes))

    def profile(self, *args: Any, **options: Any) -> Any:
        """As `Executable.profile`, at the sizes of these inputs."""
        made = self.at(solve(self.kernel, [np.shape(a) for a in args]))
        return made.profile(*args, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raises ArtifactError: an artifact has fixed shapes."""
        raise ArtifactError(
            f"the sizes of {self.kernel.name} are not known, so {os.fspath(path)!r} "
            "cannot hold it",
            hint="save the result of at(sizes): f.at({n: 64}).save(path)",
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled kernel cannot be pickled: compile it in the other process"
        )

    def release(self) -> None:
        """Free the memory kept between calls."""
        with self._lock:
            self._kept.clear()
            self._by_shapes.clear()


def check_known(kernel: Kernel) -> None:
    """Raise InputError for a size that no call can determine."""
    for v in unknown(kernel):
        raise InputError(
            f"no parameter has {v.name} alone as an extent, so no call determines it",
            code="TW-SIZE",
            where=kernel.name,
            hint="give an array this extent, or give the size a value",
        )


def _resized(model: CompiledModel, kernel: Kernel) -> CompiledModel:
    """The model of one kernel with the shapes of another kernel's parameters."""
    tensors = {b.name: _tensor(b) for b in kernel.params}
    (step,) = model.steps
    assert isinstance(step, NativeStep)
    (record,) = step.kernels
    slots = [replace(s, tensor=tensors[s.tensor.name]) for s in step.values]
    moved = sum(t.nbytes for t in tensors.values())
    record = replace(record, flops=flops(kernel.body), bytes=moved)
    return replace(
        model,
        inputs=tuple(tensors[t.name] for t in model.inputs),
        outputs=tuple(tensors[t.name] for t in model.outputs),
        steps=(NativeStep(step.symbol, tuple(slots), (record,)),),
    )


def _tensor(b: Buffer) -> Tensor:
    shape = tuple(n if isinstance(n, int) else None for n in b.extents)
    return Tensor(b.name, b.dtype.name, shape)
