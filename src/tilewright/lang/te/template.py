"""Templates: programs of te whose schedules have parameters, as in AutoTVM.

    @te.template("product")
    def product(n):
        ...
        cfg = te.get_config()
        cfg.define_split("tile_y", y, num_outputs=2)
        yo, yi = cfg["tile_y"].apply(s, C, y)
        return s, [A, B, C]

    space = product.space(512)
    s, args = space.at(space.sample(random))
    f = te.build(*product(512)).tune(trials=64)

The template runs once with its defaults to say what its parameters are, and once per candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tilewright.base.errors import InputError, ScheduleError
from tilewright.base.text import listing
from tilewright.lang.te.build import primitives
from tilewright.lang.te.config import Config
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.syntax.nodes import Tensor
from tilewright.schedule import Schedule as Primitives
from tilewright.tune.base import Candidate
from tilewright.tune.space.program_space import ProgramSpace

Program = tuple[Schedule, Sequence[Tensor]]
TEMPLATES: dict[str, Template] = {}  # by the names that they were registered under
_CURRENT: ContextVar[Config] = ContextVar("config")


def get_config() -> Config:
    """The configuration of the template that runs now. Raises InputError outside one."""
    config = _CURRENT.get(None)
    if config is None:
        raise InputError(
            "no template runs",
            where="get_config",
            hint="call it in a function that @te.template registers, and run that by its space",
        )
    return config


def template(name: str) -> Callable[[Callable[..., Program]], Template]:
    """Register a function as a template: it returns a schedule and the arguments for `build`.

    An existing template with the same name is replaced.
    """

    def register(function: Callable[..., Program]) -> Template:
        made = TEMPLATES[name] = Template(name, function)
        return made

    return register


class Template:
    """A function whose schedule has parameters. name: under which `template` registered it."""

    def __init__(self, name: str, function: Callable[..., Program]) -> None:
        self.name = name
        self.function = function
        self.__doc__ = function.__doc__

    def space(self, *args: Any, **options: Any) -> TemplateSpace:
        """The configurations of the program that it makes of these arguments."""
        return TemplateSpace(self, lambda: self.function(*args, **options))

    def __call__(self, *args: Any, **options: Any) -> Program:
        """The schedule with the defaults, or with the configuration of a template around it.

        `build` uses the best recorded configuration instead of the defaults, and its result can be
        tuned. For a specific configuration, use `space.at`.
        """
        if _CURRENT.get(None) is not None:
            return self.function(*args, **options)
        space = self.space(*args, **options)
        s, tensors = space.at(space.default())
        s.template = space
        return s, tensors

    def __repr__(self) -> str:
        return f"Template({self.name!r})"


class TemplateSpace(ProgramSpace):
    """The configurations of a template for one list of arguments.

    operations: those that `cfg.add_flop` states, of the default.
    """

    def __init__(self, of: Template, run: Callable[[], Program]) -> None:
        self._run = run
        config = Config()
        with _configured(config):
            _checked(of, run())
        self.operations = config.flop
        super().__init__(of.name, config.parameters, self._primitives)

    def at(self, candidate: Candidate) -> Program:
        """The schedule of a candidate, and its arguments: what `te.build` takes.

        Raises ScheduleError if the template rejects it or defines different parameters than before,
        InputError for a candidate that is not in the space.
        """
        return self._at(self[self.index(candidate)].values)

    def _at(self, values: Mapping[str, Any]) -> Program:
        config = Config(values)
        with _configured(config):
            made = self._run()
        defined = {p.name for p in config.parameters}
        if defined != values.keys():
            missing = listing(sorted(values.keys() - defined))
            raise ScheduleError(
                f"{missing} is not defined with these values",
                where=f"template {self.name}",
                hint="define all knobs before the first is used",
            )
        return made

    def _primitives(self, values: Mapping[str, Any]) -> Primitives:
        s, args = self._at(values)
        return primitives(s, args)


@contextmanager
def _configured(config: Config) -> Iterator[None]:
    token = _CURRENT.set(config)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _checked(of: Template, made: Any) -> None:
    pair = isinstance(made, tuple) and len(made) == 2
    if not pair or not isinstance(made[0], Schedule):
        raise InputError(
            f"it returned {made!r}",
            where=f"template {of.name}",
            hint="return the schedule and the list of its arguments",
        )
