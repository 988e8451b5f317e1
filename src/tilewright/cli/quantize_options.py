"""The options of `tilewright quantize`: one table, with the results that each applies to."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

import click

from tilewright.base.dataclass import dataclass
from tilewright.cli.options import PATH, refuse

BITS: Final = {"int4": 4, "int8": 8}
_METHODS: Final = ("min-max", "percentile", "entropy", "mse")
_SUMS: Final = ("shift", "multiplier", "channel")


class QuantizeUse(Enum):
    """The kinds of results: a model in 8 bits, scales for an accelerator, or low-bit weights."""

    HOST = auto()
    ACCELERATOR = auto()
    WEIGHTS = auto()


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option, the name of its parameter, and the results that it applies to."""

    name: str
    uses: frozenset[QuantizeUse]
    option: Callable[..., Any]


def _row(uses: set[QuantizeUse], *flags: str, **how: Any) -> OptionRow:
    named = [f for f in flags if not f.startswith("-")]
    name = named[0] if named else flags[0].lstrip("-").replace("-", "_")
    return OptionRow(name, frozenset(uses), click.option(*flags, **how))


def _share(text: str) -> float:
    """`0.5%` or `0.005`."""
    number = text.removesuffix("%")
    try:
        value = float(number) / (1 if number == text else 100)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{text!r}: expected a share, such as 0.5% or 0.005")
    return value


_share.__name__ = "share"


def _one_of(*names: str) -> dict[str, Any]:
    """A choice, the first of which is the default."""
    return {
        "type": click.Choice(list(names)),
        "default": names[0],
        "show_default": True,
    }


_HOST: Final = {QuantizeUse.HOST}
_SAMPLES: Final = {QuantizeUse.HOST, QuantizeUse.ACCELERATOR}
_WEIGHTS: Final = {QuantizeUse.WEIGHTS}

# In the order of --help. Options for the host, except for layers and samples, are fields of
# `Recipe`.
OPTIONS: Final = (
    _row(
        _WEIGHTS,
        "--weights",
        type=click.Choice(list(BITS)),
        help="Quantize the weights of matrix products alone.",
    ),
    _row(
        _WEIGHTS,
        "--group",
        type=int,
        default=32,
        show_default=True,
        help="With --weights: number of weights per scale.",
    ),
    _row(
        _WEIGHTS,
        "--form",
        **_one_of("nbits", "qdq"),
        help="With --weights: MatMulNBits, or DequantizeLinear (opset 21).",
    ),
    _row(
        _WEIGHTS,
        "--asymmetric",
        is_flag=True,
        help="With --weights: also store a zero point per group.",
    ),
    _row(
        _SAMPLES,
        "--for",
        "--target",
        "machine",
        metavar="TARGET",
        default="cpu",
        show_default=True,
        help="Where the model will run: cpu, or an 8-bit accelerator such as vta.",
    ),
    _row(
        _SAMPLES,
        "--calibrate",
        "archive",
        type=PATH,
        help="Samples by input name, several along the first axis (.npz).",
    ),
    _row(
        _SAMPLES,
        "--sample",
        "samples",
        multiple=True,
        type=PATH,
        help="One sample by input name (.npz); may be given several times.",
    ),
    _row(
        _SAMPLES,
        "--method",
        **_one_of(*_METHODS),
        help="How ranges are chosen from the samples.",
    ),
    _row(
        _HOST,
        "--max-drop",
        type=_share,
        help="Keep layers in float until the loss is at most this, such as 0.5%.",
    ),
    _row(
        _HOST,
        "--metric",
        **_one_of("both", "cosine"),
        help="both: top-1 and cosine; use cosine if outputs are not class scores.",
    ),
    _row(_HOST, "--keep", multiple=True, help="Keep this layer in float."),
    _row(_HOST, "--percentile", type=float, help="For --method percentile; 99.99."),
    _row(
        _HOST,
        "--activations",
        **_one_of("uint8", "int8"),
        help="uint8 is asymmetric, int8 symmetric.",
    ),
    _row(
        _HOST,
        "--rounding",
        **_one_of("nearest", "gptq"),
        help="How weights are rounded.",
    ),
    _row(_HOST, "--equalize", is_flag=True, help="Equalize ranges across layers."),
    _row(_HOST, "--smooth", type=float, help="SmoothQuant's strength, such as 0.5."),
    _row(
        _HOST,
        "--search",
        is_flag=True,
        help="Search weight scales as in AWQ.",
    ),
    _row(
        _HOST,
        "--correct-bias",
        is_flag=True,
        help="Correct the mean rounding error in biases.",
    ),
    _row(
        {QuantizeUse.ACCELERATOR},
        "--by",
        type=click.Choice(_SUMS),
        help="With --for vta, how sums are rescaled: shift (scales are powers of two; default), "
        "multiplier, or channel (one multiplier per output channel).",
    ),
)
# Declared with the options of compiling.
_THREADS: Final = _row(_HOST, "--threads")

# By kind of result: why an option that does not apply to it is rejected, and what to do.
_WHY: Final = {
    QuantizeUse.WEIGHTS: ("not with --weights", "weights need no samples"),
    QuantizeUse.HOST: ("it is for accelerators", "leave it out, or give --for vta"),
}


def quantize_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of the table to a command."""
    for row in reversed(OPTIONS):
        verb = row.option(verb)
    return verb


def check(use: QuantizeUse, machine: str) -> None:
    """Raise InputError for a given option that has no effect on the result."""
    rows = (*OPTIONS, _THREADS)
    if use is not QuantizeUse.WEIGHTS:
        own = [r.name for r in rows if r.uses == _WEIGHTS]
        refuse(own, "it is for --weights", "give --weights int4 or int8")
    hint = f"not with --for {machine}", "these are for the host"
    refuse([r.name for r in rows if use not in r.uses], *_WHY.get(use, hint))


def taken(use: QuantizeUse, given: dict[str, Any]) -> dict[str, Any]:
    """The values of the options that apply only to this kind of result."""
    return {r.name: given[r.name] for r in OPTIONS if r.uses == {use}}
