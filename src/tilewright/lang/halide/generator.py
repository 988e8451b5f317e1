"""Generators: pipelines with parameters, inputs and outputs that are declared in a class.

    @hl.generator(name="scale")
    class Scale(hl.Generator):
        factor = hl.GeneratorParam(2)
        image = hl.InputBuffer(hl.UInt(8), 2)
        gain = hl.InputScalar(hl.Float(32))
        result = hl.OutputBuffer(hl.UInt(8), 2)

        def generate(self):
            x, y = hl.vars("x y")
            self.result[x, y] = hl.u8_sat(self.image[x, y] * self.gain * self.factor)

`Scale.call(image, gain, generator_params={"factor": 3})` is the Func of its output on given inputs;
`Scale(generator_params=...)` has a Pipeline to schedule and realize.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from enum import Enum
from typing import Any, ClassVar

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.base.text import plural
from tilewright.lang.function import Function
from tilewright.lang.halide.autoschedule import AutoschedulerParams
from tilewright.lang.halide.func import Func, ImageParam, Pipeline
from tilewright.lang.halide.syntax.expr import Expr, as_expr
from tilewright.lang.halide.syntax.image import Buffer, Image, Param
from tilewright.lang.halide.syntax.types import Bool, Float, Int, Type
from tilewright.lang.halide.target import Target, get_host_target

_PLAIN: dict[Any, Callable[[], Type]] = {
    bool: Bool,
    int: lambda: Int(32),
    float: lambda: Float(32),
}


class GeneratorParam:
    """A parameter of a generator, with its default: a text, number, truth value or Type."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def parsed(self, name: str, value: Any) -> Any:
        """A value of the default's kind. Raises InputError for a text that is none."""
        kind = type(self.value)
        try:
            if isinstance(self.value, Type):
                return value if isinstance(value, Type) else Type(dtype_of(str(value)))
            if isinstance(self.value, Enum):
                return value if isinstance(value, kind) else kind[str(value)]
            if kind is bool and isinstance(value, str):
                return {"true": True, "false": False}[value.lower()]
            return kind(value)
        except (KeyError, ValueError):
            raise InputError(
                f"{value!r} is not of type {kind.__name__}",
                where=f"GeneratorParam {name}",
                hint=f"such as its default, {self.value!r}",
            ) from None


class _Port:
    """An input or output of a generator: its type and dimensions, None where params say them."""

    rank: int | None = None

    def __init__(self, type: Any = None, dimensions: int | None = None) -> None:
        self.type = type
        self.dimensions = self.rank if dimensions is None else dimensions

    def made(self, name: str, value: Any, said: Mapping[str, Any]) -> Any:
        """Its value in `generate`: `value`, or a new object if that is None."""
        raise NotImplementedError

    def described(self, name: str, said: Mapping[str, Any]) -> tuple[list[Type], int]:
        """The types and dimensions, by `name.type` and `name.dim` of the parameters if need be."""
        types = said.get(f"{name}.type", self.type)
        dimensions = said.get(f"{name}.dim", self.dimensions)
        for what, found in (("type", types), ("dim", dimensions)):
            if found is None:
                raise InputError(
                    f"its {what} is not known",
                    where=name,
                    hint=f"say it in the class, or give the generator_param {name}.{what}",
                )
        several = types if isinstance(types, list | tuple) else [types]
        return [_type(t) for t in several], int(dimensions)


def _type(given: Any) -> Type:
    if isinstance(given, str):
        return Type(dtype_of(given))
    return _PLAIN[given]() if given in (bool, int, float) else given


class InputBuffer(_Port):
    """An image that is given: `InputBuffer(UInt(8), 2)`."""

    def made(self, name: str, value: Any, said: Mapping[str, Any]) -> Any:
        """Its value in `generate`: an ImageParam, or the Func that was passed."""
        [type], dimensions = self.described(name, said)
        if value is None:
            return ImageParam(type, dimensions, name)
        found = value if isinstance(value, Image | Func) else Buffer(value)
        if (found.type(), found.dimensions()) != (type, dimensions):
            raise InputError(
                f"expected {type} of {dimensions} dimensions, found {found.type()} of "
                f"{found.dimensions()}",
                where=name,
                hint=f"the generator_params {name}.type and {name}.dim change it",
            )
        if isinstance(found, Buffer):
            image = ImageParam(type, dimensions, name)
            image.set(found)
            return image
        return found


class InputScalar(_Port):
    """A number that is given: `InputScalar(Float(32))`."""

    rank = 0

    def made(self, name: str, value: Any, said: Mapping[str, Any]) -> Any:
        """Its value in `generate`: a Param, or the expression that was passed."""
        [type], _ = self.described(name, said)
        if value is None:
            return Param(type, name)
        if isinstance(value, Expr):
            return value
        return Param(type, name, value)


class OutputBuffer(_Port):
    """A Func that `generate` defines: `OutputBuffer(UInt(8), 2)`."""

    def made(self, name: str, value: Any, said: Mapping[str, Any]) -> Func:
        """The Func to define, or the one that was assigned."""
        types, dimensions = self.described(name, said)
        if value is None:
            return Func(types, dimensions, name)
        made: Func = value
        if isinstance(value, Expr):
            made = Func(name)
            made[()] = as_expr(value)
        if (made.types(), made.dimensions()) != (types, dimensions):
            raise InputError(
                f"{dimensions} dimensions of {', '.join(map(str, types))} are declared, the Func "
                f"has {made.dimensions()} of {', '.join(map(str, made.types()))}",
                where=name,
            )
        return made


class OutputScalar(OutputBuffer):
    """A number that `generate` defines: `OutputScalar(Float(32))`."""

    rank = 0


class GeneratorContext:
    """For which target the generators made in a `with` of it are."""

    def __init__(
        self,
        target: Target | None = None,
        autoscheduler_params: AutoschedulerParams | None = None,
    ) -> None:
        self._target = target or get_host_target()
        self._params = autoscheduler_params or AutoschedulerParams()
        self._tokens: list[Token[GeneratorContext | None]] = []

    def target(self) -> Target:
        """The target."""
        return self._target

    def autoscheduler_params(self) -> AutoschedulerParams:
        """What schedules; without a name, `generate` does."""
        return self._params

    def __enter__(self) -> GeneratorContext:
        self._tokens.append(_context.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _context.reset(self._tokens.pop())


_context: ContextVar[GeneratorContext | None] = ContextVar("context", default=None)


def active_generator_context() -> GeneratorContext:
    """The innermost context, or one for this machine."""
    return _context.get() or GeneratorContext()


class Generator:
    """A pipeline with declared parameters, inputs and outputs; `generate` defines the outputs.

    `configure`, if there is one, is called before, when the parameters have their values; it may
    call `add_input` and `add_output`. Raises InputError for a parameter or input that there is not.
    """

    _registered: ClassVar[dict[str, type[Generator]]] = {}

    def __init__(
        self,
        generator_params: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self._context = active_generator_context()
        self._ports: dict[str, _Port] = {}
        self._requirements: list[tuple[Any, tuple[Any, ...]]] = []
        self._pipeline: Pipeline | None = None
        self._inputs = dict(inputs or {})
        self._said = dict(generator_params or {})
        params = self._members(GeneratorParam)
        for name, param in params.items():
            value = self._said.get(name, param.value)
            setattr(self, name, param.parsed(name, value))
        self._ports |= self._members(_Port)
        self.configure()
        self._check_known("generator_params", self._said, [*params, *self._described()])
        self._check_known("inputs", self._inputs, self.input_names())
        for name, port in self._ports.items():
            if not isinstance(port, OutputBuffer):
                value = self._inputs.get(name)
                setattr(self, name, port.made(name, value, self._said))
            else:
                setattr(self, name, port.made(name, None, self._said))

    @classmethod
    def _members(cls, kind: Any) -> dict[str, Any]:
        """The declarations of a kind, in order, base classes first."""
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            found |= {k: v for k, v in vars(base).items() if isinstance(v, kind)}
        return found

    def _described(self) -> list[str]:
        return [f"{name}.{part}" for name in self._ports for part in ("type", "dim")]

    def _check_known(
        self, what: str, given: Mapping[str, Any], known: Sequence[str]
    ) -> None:
        for name in given:
            if name not in known:
                raise InputError(
                    f"there is no {name!r} among its {what}",
                    where=type(self).__name__,
                    hint=f"it has {', '.join(known) or 'none'}",
                )

    def configure(self) -> None:
        """Add inputs and outputs that depend on the parameters."""

    def generate(self) -> None:
        """Define the outputs."""
        raise NotImplementedError(f"{type(self).__name__}.generate")

    def add_input(self, name: str, port: _Port) -> None:
        """Another input, in `configure`."""
        self._ports[name] = port

    def add_output(self, name: str, port: _Port) -> None:
        """Another output, in `configure`."""
        self._ports[name] = port

    def add_requirement(self, condition: Any, *message: Any) -> None:
        """Compute only where a condition of Params holds; else `realize` raises the message."""
        self._requirements.append((condition, message))

    def allow_out_of_order_inputs_and_outputs(self) -> bool:
        """Whether outputs may be declared before inputs: they may."""
        return True

    def context(self) -> GeneratorContext:
        """Where it was made."""
        return self._context

    def target(self) -> Target:
        """What it is for."""
        return self._context.target()

    def natural_vector_size(self, type: Any) -> int:
        """Elements of a type in one vector register of the target."""
        return self.target().natural_vector_size(_type(type))

    def autoscheduler(self) -> AutoschedulerParams:
        """What schedules; without a name, `generate` does."""
        return self._context.autoscheduler_params()

    def using_autoscheduler(self) -> bool:
        """Whether something else than `generate` schedules."""
        return bool(self.autoscheduler().name)

    def input_names(self) -> list[str]:
        """The inputs, in the order of their declaration."""
        ports = self._ports.items()
        return [name for name, p in ports if not isinstance(p, OutputBuffer)]

    def outputs(self) -> list[Func]:
        """The Funcs of the outputs, defined."""
        return list(self.pipeline()._outputs)  # type: ignore[arg-type]

    def pipeline(self) -> Pipeline:
        """What computes the outputs."""
        if self._pipeline is None:
            self.generate()
            outputs = []
            for name, port in self._ports.items():
                if isinstance(port, OutputBuffer):
                    outputs.append(port.made(name, getattr(self, name), self._said))
            self._pipeline = Pipeline(outputs)
            for condition, message in self._requirements:
                self._pipeline.add_requirement(condition, *message)
            if self.using_autoscheduler():
                self._pipeline.apply_autoscheduler(self.target(), self.autoscheduler())
        return self._pipeline

    def compile_to_callable(self, sizes: Any) -> Function:
        """A function on arrays, of the sizes of the outputs."""
        return self.pipeline().compile_jit(sizes, self.target())

    @classmethod
    def call(
        cls, *args: Any, generator_params: Mapping[str, Any] | None = None, **named: Any
    ) -> Any:
        """The Func of the output (a tuple of several) on inputs: Buffers, Funcs, numbers, Exprs."""
        shape = cls(generator_params)
        names = shape.input_names()
        if len(args) > len(names) or len(args) + len(named) != len(names):
            raise InputError(
                f"{plural(len(args) + len(named), 'input')} given, {len(names)} expected",
                where=cls.__name__,
                hint=", ".join(names),
            )
        found = dict(zip(names, args, strict=False)) | named
        outputs = cls(generator_params, found).outputs()
        if len(outputs) == 1:
            return outputs[0]
        return tuple(outputs)


def generator(name: str = "") -> Callable[[type[Generator]], type[Generator]]:
    """Register a generator under a name (default: the class's)."""

    def register(made: type[Generator]) -> type[Generator]:
        Generator._registered[name or made.__name__] = made
        return made

    return register


def alias(**names: Mapping[str, Any]) -> Callable[[type[Generator]], type[Generator]]:
    """Register a generator under more names, each with values of its parameters."""

    def register(made: type[Generator]) -> type[Generator]:
        for name, params in names.items():
            Generator._registered[name] = _preset(made, name, params)
        return made

    return register


def _preset(
    base: type[Generator], name: str, params: Mapping[str, Any]
) -> type[Generator]:
    defaults = {}
    for key, value in params.items():
        param = getattr(base, key, None)
        if not isinstance(param, GeneratorParam):
            raise InputError(f"there is no GeneratorParam {key!r}", where=name)
        defaults[key] = GeneratorParam(param.parsed(key, value))
    return type(name, (base,), defaults)


def create_callable_from_generator(
    target: Target | GeneratorContext,
    name: str,
    generator_params: Mapping[str, Any] | None = None,
) -> Callable[[Any], Function]:
    """A registered generator as a function of the sizes of its outputs, which compiles it.

    Raises InputError for a name that none is registered under.
    """
    if name not in Generator._registered:
        raise InputError(
            f"no generator is called {name!r}",
            hint=f"there are {', '.join(Generator._registered) or 'none'}",
        )
    context = GeneratorContext(target) if isinstance(target, Target) else target
    with context:
        made = Generator._registered[name](generator_params)
    return made.compile_to_callable
