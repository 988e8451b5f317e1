"""The configuration of a decoder: its sizes and its layers, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Final

from tilewright.base import limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError, ModelError, UnsupportedError
from tilewright.frontends.hf.families import FAMILIES, Config, ModelFamily, architecture
from tilewright.frontends.hf.rotary import Rotary

# Settings that would change the result and are not implemented.
_REFUSED: Final = (
    "add_cross_attention",
    "alibi",
    "qk_layernorm",
    "quantization_config",
    "scale_attn_by_inverse_layer_idx",
    "use_bidirectional_attention",
    "use_parallel_residual",
)
LARGEST: Final = 1 << 31  # upper limit of sizes
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class DecoderLayer:
    """window: keys that a query sees, itself included, 0 for all. rotary: None if not rotary."""

    window: int
    rotary: Rotary | None


@dataclass(frozen=True)
class Decoder:
    """Sizes: heads of queries and of keys and values; elements of a head; positions of the cache.

    scale: of scores. score_cap, logit_cap: bounds by tanh, 0 for none. tied: the head is the table
    of embeddings; None: only if there is no head tensor. biased: parts with biases.
    """

    architecture: str
    family: ModelFamily
    vocabulary: int
    width: int
    heads: int
    groups: int
    size: int
    hidden: int
    trained: int
    positions: int
    epsilon: float
    activation: str
    scale: float
    score_cap: float
    logit_cap: float
    tied: bool | None
    biased: frozenset[str]
    layers: tuple[DecoderLayer, ...] = field(repr=False)

    def cache(self, sequences: int = 1) -> tuple[int, int, int, int]:
        """The shape of the cache of one layer's keys, and of its values."""
        return (sequences, self.groups, self.positions, self.size)

    @property
    def caches(self) -> list[str]:
        """The names of the caches; each is returned as `<name>_out`."""
        layers = range(len(self.layers))
        return [f"{what}{n}" for n in layers for what in ("keys", "values")]

    @property
    def settings(self) -> str:
        """A text that identifies the decoder, identical in every process."""
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        # The architecture determines the family; the family has functions, whose text varies.
        return repr(told | {"family": "", "biased": sorted(self.biased)})


def decoder_of(
    config: Config, positions: int | None = None, where: str = "config.json"
) -> Decoder:
    """The decoder of a configuration. positions: of the cache, by default as many as in training.

    Raises UnsupportedError for an unsupported architecture or setting, ModelError for sizes that
    are missing or do not fit, InputError for too many positions.
    """
    name = architecture(config, FAMILIES, where)
    family = FAMILIES[name]
    for key in _REFUSED:
        if config.get(key):
            raise UnsupportedError(
                f"{key}={config[key]!r} is not supported for {name}", where=where
            )
    reader = _Reader({**family.defaults, **_present(config)}, family, where)
    trained = reader.size("positions")
    kept = trained if positions is None else positions
    if not 2 <= kept <= trained:
        raise ArgumentError(
            f"a context of {kept} positions",
            where=where,
            hint=f"give 2 to {trained}, the length that the model was trained with",
        )
    return _decoder(name, reader, trained, kept)


def _present(config: Config) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None} | {
        # A window of null means that there is none.
        key: None
        for key in (
            "sliding_window",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        )
        if key in config and config[key] is None
    }


def _decoder(name: str, reader: _Reader, trained: int, kept: int) -> Decoder:
    config = reader.config
    family = reader.family
    width = reader.size("width")
    heads = reader.size("heads")
    size = reader.size("size", width // heads)
    groups = reader.size("groups", heads)
    if heads % groups:
        raise ModelError(f"{heads} heads for {groups} of keys", where=reader.where)
    over = reader.setting("query_pre_attn_scalar", size)
    vocabulary = reader.size("vocabulary")
    hidden = reader.size("hidden", 4 * width)
    epsilon = reader.number("epsilon", 1e-6)
    activation = reader.text("activation")
    scale = 1 / math.sqrt(over)
    score_cap = reader.setting("attn_logit_softcapping")
    logit_cap = reader.setting("final_logit_softcapping")
    tied = reader.tied()
    biased = frozenset(
        part for part, key in family.biases.items() if not key or config.get(key)
    )
    layers = reader.layers(size, kept)
    return Decoder(
        name,
        family,
        vocabulary,
        width,
        heads,
        groups,
        size,
        hidden,
        trained,
        kept,
        epsilon,
        activation,
        scale,
        score_cap,
        logit_cap,
        tied,
        biased,
        layers,
    )


def positive(found: Any, name: str, where: str, least: float | None = None) -> float:
    """A number above 0, or at least `least`. Raises ModelError for anything else."""
    right = isinstance(found, int | float) and not isinstance(found, bool)
    if right and (0 < found < math.inf or found == least):
        return float(found)
    raise ModelError(f"{name} is {found!r}, not a number above 0", where=where)


@dataclass(frozen=True)
class _Reader:
    """A configuration with its family's defaults; sizes are looked up by the family's names."""

    config: Config
    family: ModelFamily
    where: str

    def _found(self, what: str) -> tuple[str, Any]:
        names = self.family.keys.get(what, ())
        for name in names:
            if name in self.config:
                return name, self.config[name]
        return (names[0] if names else what), None

    def size(self, what: str, default: int | None = None) -> int:
        name, found = self._found(what)
        if found is None and default is not None:
            return default
        if type(found) is not int or not 0 < found < LARGEST:
            raise ModelError(f"{name} is {found!r}, not a number", where=self.where)
        return found

    def number(self, what: str, default: float) -> float:
        name, found = self._found(what)
        if found is None:
            return default
        return positive(found, name, self.where, 0)

    def setting(self, name: str, default: float = 0.0) -> float:
        """A number above 0 by its name in the configuration, or the default if it is missing."""
        found = self.config.get(name)
        return positive(default if found is None else found, name, self.where, default)

    def tied(self) -> bool | None:
        found = self.config.get("tie_word_embeddings")
        if found not in (None, True, False):
            raise ModelError(f"tie_word_embeddings is {found!r}", where=self.where)
        return found

    def text(self, what: str) -> str:
        name, found = self._found(what)
        if not isinstance(found, str):
            raise ModelError(f"{name} is {found!r}, not a name", where=self.where)
        return found

    def layers(self, size: int, kept: int) -> tuple[DecoderLayer, ...]:
        """Raises LimitError for more layers than a model may have nodes."""
        count = self.size("layers")
        most = limits.NODES.flag.get()
        if count > most:
            what = f"{self.where}: {count:,} layers, over the limit of {most:,} nodes"
            raise limits.exceeded(limits.NODES, what, "TW-LIMIT")
        return tuple(self.layer(n, size, kept) for n in range(count))

    def windowed(self, n: int) -> bool:
        try:
            return self.family.windowed(self.config, n)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ModelError(
                f"the layers with a window are unknown: {error}", where=self.where
            ) from None

    def layer(self, n: int, size: int, kept: int) -> DecoderLayer:
        kinds = self.config.get("layer_types")
        if kinds is None:
            slides = self.windowed(n)
        elif not isinstance(kinds, list) or len(kinds) <= n:
            raise ModelError(f"layer_types has no entry {n}", where=self.where)
        elif kinds[n] not in (_SLIDING, _FULL):
            raise UnsupportedError(f"a layer of {kinds[n]!r}", where=self.where)
        else:
            slides = kinds[n] == _SLIDING
        if slides:
            window = int(self.setting("sliding_window"))
        else:
            window = 0
        if not self.family.rotary:
            return DecoderLayer(window, None)
        rotary = self._rotary(size, kept, slides)
        return DecoderLayer(window, rotary)

    def _rotary(self, size: int, kept: int, slides: bool) -> Rotary:
        """A layer's rotary settings: rope_parameters, or the older rope_theta and rope_scaling."""
        config = self.config
        given = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(given, Mapping):
            raise ModelError("rope_parameters is not an object", where=self.where)
        if _FULL in given:
            given = given.get(_SLIDING if slides else _FULL)
            if not isinstance(given, Mapping):
                raise ModelError("rope_parameters lacks a kind", where=self.where)
        elif slides and "rope_local_base_freq" in config:
            given = {"rope_theta": config["rope_local_base_freq"]}
        more = {
            "original_max_position_embeddings": config.get(
                "original_max_position_embeddings"
            ),
            "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
            "rope_theta": config.get("rope_theta", 10_000.0),
        } | dict(given)
        share = positive(
            more["partial_rotary_factor"], "partial_rotary_factor", self.where
        )
        turned = int(size * share)
        if not 0 < turned <= size or turned % 2:
            raise ModelError(
                f"{turned} of {size} elements of a head are rotated: not an even number",
                where=self.where,
            )
        kind = more.get("rope_type") or more.get("type") or "default"
        trained = self.size("positions")
        # LongRoPE's earlier name.
        kind = {"su": "longrope"}.get(str(kind), str(kind))
        theta = positive(more["rope_theta"], "rope_theta", self.where)
        return Rotary(turned, theta, kind, more, trained, kept)
