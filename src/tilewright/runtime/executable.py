"""A compiled model that can be called: checks inputs, owns memory, runs native code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from ctypes import CFUNCTYPE, c_void_p
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from tilewright.base.errors import ArtifactError, InputError
from tilewright.base.text import human_bytes, plural
from tilewright.runtime import abi, device_call, inputs, machine, outputs
from tilewright.runtime.call import CallFrame, CallPlan, run
from tilewright.runtime.device import HOST
from tilewright.runtime.fast_call import InPlace, bound, in_place, shortest
from tilewright.runtime.loader import CodeImage, link
from tilewright.runtime.model import (
    CompiledModel,
    NativeStep,
    SymbolicType,
    Tensor,
    check,
    listed,
)
from tilewright.runtime.nesting import ArgumentNesting
from tilewright.runtime.overrides import Overrides
from tilewright.runtime.pool import Pool, shared
from tilewright.runtime.threads import keep_threads, thread_count

if TYPE_CHECKING:
    from tilewright.runtime.profile import Peaks, Profile

_NATIVE: Final = CFUNCTYPE(None, c_void_p, c_void_p)


class Executable:
    """A model ready to run. Calls from several Python threads at once are safe and independent.

    `threads` is as for `runtime.threads.thread_count`, with the model's `meta`. code: an
    executable with the same code, which differs in sizes only. lazy: open devices at the first
    call, so that a model can be saved on a machine without them. device: the number of the GPU, if
    there are several. Raises ArtifactError if the model is inconsistent or this machine cannot run
    it.
    """

    def __init__(
        self,
        model: CompiledModel,
        *,
        threads: int | None = None,
        code: Executable | None = None,
        lazy: bool = False,
        device: int = 0,
    ) -> None:
        check(model)
        if model.abi != abi.ABI_VERSION:
            raise _wrong_abi(model.abi)
        self.model: Final = model
        self._pool: Pool | None = None
        functions: dict[str, Callable[[int, int], None]] = {}
        image: CodeImage | None = None
        native = [s for s in model.steps if isinstance(s, NativeStep)]
        if native:
            machine.require(model.requirements)
            image = None if code is None else code._plan.image
            image = image or link(model.objects)
            functions = {s.symbol: _NATIVE(image.address(s.symbol)) for s in native}
            if model.support:
                self._pool = shared(model.support[0])
        self._asked: Final = threads
        self.threads: Final = thread_count(threads, model.meta) if self._pool else 1
        self._plan: Final[CallPlan] = CallPlan(
            model, functions, self._pool, self.threads, image, lazy, device
        )
        self._frames: Final[list[CallFrame]] = []
        self.overrides: Final = Overrides.of(model.meta)
        self._names: Final = tuple(t.name for t in model.inputs)
        self._outputs: Final = tuple(t.name for t in model.outputs)
        self.nesting: Final = ArgumentNesting.of(model.meta, self._names, self._outputs)
        self._by_name: Final = {name: n for n, name in enumerate(self._names)}
        self._all_of: Final = _getter(self._names)
        self._direct: Final = shortest(self._plan, self._frames, lambda: self.in_place)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each input, in order."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each output, in order."""
        return self.model.outputs

    @property
    def made(self) -> tuple[SymbolicType, ...]:
        """The outputs, with the model's names for extents that are known only after a call."""
        return self.model.shown_outputs

    @property
    def defaults(self) -> Mapping[str, str]:
        """Inputs with default values, and their types; a call may pass them by name."""
        return self.overrides.layouts

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What was compared when it was compiled, on which data, with which error, or None.

        `tilewright compile --certify` puts it there; see docs/checking.md for its keys.
        """
        found = self.model.meta.get("certificate")
        return found if isinstance(found, Mapping) else None

    @property
    def placements(self) -> tuple[tuple[str, str, str, str], ...]:
        """Of a model for an accelerator: for each part the device, the operators, the tensor that
        they make, and how it is done there, or why the device does not do it."""
        rows = self.model.meta.get("placements", ())
        return tuple((str(a), str(b), str(c), str(d)) for a, b, c, d in rows)

    @cached_property
    def in_place(self) -> InPlace | None:
        """The quickest call on (inputs..., outputs...); see `runtime.fast_call.in_place`."""
        return in_place(self._plan, self._frames)

    def bound(self, arrays: Sequence[Any]) -> Callable[[], object] | None:
        """A call on these arrays without any checks; see `runtime.fast_call.bound`."""
        return bound(self._plan, arrays)

    def stay_awake(self, seconds: float | None) -> None:
        """Have idle threads of all programs wait so long before they sleep; None: the usual time.

        Waking one takes tens of microseconds; one that waits keeps a core busy. Nobody waits if
        there are more threads than cores. Raises ArgumentError for another value.
        """
        from tilewright.base.arguments import expect

        expect(seconds=seconds)
        if self._pool is not None:
            self._pool.stay_awake(seconds)

    @property
    def peak_bytes(self) -> int:
        """Bytes of one running call: arena, workspaces, constants, inputs and outputs.

        Of a model for devices also their arenas, and their copies of constants.
        """
        ends = (*self.model.inputs, *self.model.outputs)
        return (
            self.model.memory(self.threads)
            + len(self.model.constants)
            + sum(map(self.model.memory_on, self.model.devices))
            + sum(t.nbytes for t in ends if t.is_static)
        )

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run on inputs given in order, by name, or as one mapping from names.

        Inputs: NumPy arrays, anything with `__dlpack__` or `__array__`, Python numbers and lists.
        Returns one array, or a tuple if the model has several outputs (PyTorch tensors if an input
        was one); they own their memory. A PyTorch module with nested arguments or results is
        called as it was traced, or by the names of its tensors, and returns the same structure.
        `out`: an array or CPU tensor (or a sequence or mapping of them, None for new ones) that
        receives the outputs and is returned in their place.
        Tensors on the model's own GPU, by DLPack, are read and written in their own memory, and
        results stay there if an input is there (see `runtime.device_tensor.DeviceTensor`).
        For `aliases` of the compiled model, the input's array is overwritten and returned.
        The first call that passes a given set of `defaults` compiles a variant with these inputs.
        Raises InputError for a wrong name, dtype or shape, ExecutionError if a kernel refuses a
        value such as an index out of range.
        """
        if self.nesting is None:
            return self._call(args, named, out)
        found = self._call((), self.nesting.bind(args, named), out)
        return self.nesting.restore(dict(zip(self._outputs, self._listed(found))))

    def run(self, feeds: Mapping[str, Any], out: Any = None) -> list[Any]:
        """Run on tensors by name: a list of all outputs in order, however a module nests them.

        out, errors: as for a call.
        """
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise InputError(
                f"feeds: expected a mapping, got {type(feeds).__name__}",
                hint=f"give the inputs by name: {listed(self.model.inputs)}",
            )
        return self._listed(self._call((), feeds, out))

    def _listed(self, found: Any) -> list[Any]:
        return [found] if len(self._outputs) == 1 else list(found)

    def _call(self, args: tuple[Any, ...], named: Mapping[str, Any], out: Any) -> Any:
        if self._direct is not None:
            given = self._in_order(args, named) if named or len(args) == 1 else args
            result = None if given is None else self._direct(given, out)
            if result is not None:
                return result
        return self._general(args, named, out)

    def _in_order(
        self, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        """All inputs in order; None where names are odd: that is for the general way."""
        if not named:
            (mapping,) = args
            if type(mapping) is not dict:
                return args
            args, named = (), mapping
        if len(args) + len(named) != len(self._names):
            return None
        try:
            if not args:
                return self._all_of(named)
            return (*args, *(named[name] for name in self._names[len(args) :]))
        except KeyError:
            return None

    def profile(
        self,
        *args: Any,
        repeat: int = 20,
        peak_gflops: float | None = None,
        peak_gbs: float | None = None,
        device_peaks: Mapping[str, Peaks] | None = None,
        **named: Any,
    ) -> Profile:
        """Time each kernel over `repeat` runs on these inputs; see `runtime.profile.Profile`.

        With the machine's peaks given, the table has each kernel's share of the roofline.
        device_peaks: by device, 10^9 operations and bytes per second.
        """
        from tilewright.base.arguments import expect
        from tilewright.runtime.profile import measure

        expect(
            repeat=repeat,
            peak_gflops=peak_gflops,
            peak_gbs=peak_gbs,
            device_peaks=device_peaks,
        )
        if self.nesting is None:
            values, others = self._bind(args, named)
        else:
            values, others = self._bind((), self.nesting.bind(args, named))
        if others:
            form, given = self._overridden(values, others)
            found: Profile = form.profile(
                given,
                repeat=repeat,
                peak_gflops=peak_gflops,
                peak_gbs=peak_gbs,
                device_peaks=device_peaks,
            )
            return found
        converted = [inputs.convert(v, t) for v, t in zip(values, self.model.inputs)]
        outputs.donate(
            self.model, values, converted, *outputs.targets(None, self.model.outputs)
        )
        frame = self._frame()
        try:
            peaks = {**(device_peaks or {}), HOST: (peak_gflops, peak_gbs)}
            return measure(self._plan, frame, converted, repeat, peaks)
        finally:
            self._frames.append(frame)

    def launch_seconds(self, arrays: Sequence[Any], out: Sequence[Any]) -> float:
        """Run on arrays of the inputs' types, in order, and return the seconds of its launches.

        By the clocks of its devices: copies, and steps on the host, are left out. out: an array for
        each output.
        """
        from tilewright.runtime.device_time import LaunchWatch

        frame, watch = self._frame(), LaunchWatch()
        try:
            run(self._plan, frame, arrays, out, watch)
        finally:
            self._frames.append(frame)
        return watch.seconds

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an artifact that `load` reads, whole or not at all."""
        from tilewright.runtime import bundle
        from tilewright.runtime.own_constants import with_own_constants

        meta = keep_threads(self.model.meta, self._asked)
        bundle.save(replace(with_own_constants(self.model), meta=meta), path)

    def release(self) -> None:
        """Give back the memory kept between calls; the next call allocates it again."""
        self._frames.clear()
        self.overrides.clear()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Executable is code and memory of this process and cannot be pickled: save() it, "
            "and tw.load() the file in the other process"
        )

    def __repr__(self) -> str:
        ends = (", ".join(map(str, t)) for t in (self.inputs, self.made))
        more = f", defaults=({self.overrides})" if self.defaults else ""
        return f"Executable({' -> '.join(f'({e})' for e in ends)}, threads={self.threads}{more})"

    def _repr_html_(self) -> str:
        """For notebooks: inputs and outputs, threads, memory, kernels."""
        from tilewright.base.html import element, join, table

        ends = [
            (kind, t.name, str(t).removeprefix(f"{t.name}: "))
            for kind, tensors in (("input", self.inputs), ("output", self.made))
            for t in tensors
        ]
        kernels = plural(len(self.model.kernels), "kernel")
        threads = plural(self.threads, "thread")
        said = f"{kernels}, {threads}, {human_bytes(self.peak_bytes)} of memory"
        title = element("p", element("b", "Executable"), f": {said}")
        return join([title, table(("", "tensor", "type"), ends)])

    def _frame(self) -> CallFrame:
        try:
            return self._frames.pop()
        except IndexError:
            return CallFrame(self._plan)

    def _general(
        self, args: tuple[Any, ...], named: Mapping[str, Any], out: Any
    ) -> Any:
        values, others = self._bind(args, named)
        if others:
            form, given = self._overridden(values, others)
            return form(given, out=out)
        if device_call.is_on_device(self._plan, values, out):
            frame = self._frame()
            try:
                results = device_call.call(self._plan, frame, values, out)
            finally:
                self._frames.append(frame)
            return results[0] if len(results) == 1 else tuple(results)
        converted = [inputs.convert(v, t) for v, t in zip(values, self.model.inputs)]
        wanted, arrays = outputs.targets(out, self.model.outputs)
        if self.model.aliases:
            outputs.donate(self.model, values, converted, wanted, arrays)
        targets = [outputs.writable(array, converted) for array in arrays]
        frame = self._frame()
        try:
            results = run(self._plan, frame, converted, targets)
        finally:
            self._frames.append(frame)
        torch = any(map(inputs.is_torch, values))
        for n, target in enumerate(wanted):
            if target is None:
                results[n] = outputs.to_torch(results[n]) if torch else results[n]
                continue
            if targets[n] is None and arrays[n] is not results[n]:
                np.copyto(arrays[n], results[n])
            outputs.count_change(target)
            results[n] = target
        return results[0] if len(results) == 1 else tuple(results)

    def _overridden(
        self, values: list[Any], others: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The executable for a call that overrides the defaults `others`, and all its inputs by
        name."""
        return self.overrides.form(others), dict(zip(self._by_name, values)) | others

    def _bind(
        self, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The inputs in order, and the overridden defaults by name."""
        expected = self.model.inputs
        only = args[0] if len(args) == 1 else None
        if isinstance(only, Mapping) and not named:
            args, named = (), only
        if len(args) > len(expected):
            given, has = plural(len(args), "input"), len(expected)
            raise InputError(
                f"{given} given, the model has {has}: {listed(expected)}",
                hint=inputs.PASS_INPUTS,
            )
        values: list[Any] = [*args, *[_MISSING] * (len(expected) - len(args))]
        others: dict[str, Any] = {}
        for name, value in named.items():
            number = self._by_name.get(name)
            if number is None and name in self.defaults:
                others[name] = value
                continue
            if number is None:
                also = f", with defaults {self.overrides}" if self.defaults else ""
                raise InputError(
                    f"no input is called {name!r}: expected {listed(expected)}{also}",
                    hint=inputs.PASS_INPUTS,
                )
            if values[number] is not _MISSING:
                raise InputError(f"input {name!r} is given twice")
            values[number] = value
        missing = [t for t, v in zip(expected, values) if v is _MISSING]
        if missing:
            raise InputError(
                f"missing inputs: {listed(missing)}", hint=inputs.PASS_INPUTS
            )
        return values, others


def load(
    path: str | os.PathLike[str], *, threads: int | None = None, verify: bool = False
) -> Executable:
    """The artifact at `path`, ready to run, without any compiler.

    threads: if None, those that it was compiled for, if `compile` was given a number.
    verify: check the constants' checksum even where they are large. Raises ArtifactError.
    """
    from tilewright.runtime import bundle

    return Executable(bundle.load(path, verify=verify), threads=threads)


_MISSING: Final = object()


def _getter(
    names: Sequence[str],
) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """The values of a mapping under these names; an `itemgetter` of one name has no tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda named: tuple([named[name] for name in names])


def _wrong_abi(found: int) -> ArtifactError:
    return ArtifactError(
        f"the artifact has the calling convention {found}, this version {abi.ABI_VERSION}",
        code="TW-VERSION",
        hint="Compile the model again with this version",
    )
