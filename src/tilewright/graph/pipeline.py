"""The graph passes as a named pipeline: each step timed, traced, and verified on request."""

from __future__ import annotations

from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.graph.bounded.data_dependent import depends_on_data, over_bodies
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.passes import simplify
from tilewright.graph.passes.decompose import decompose
from tilewright.graph.passes.round_once import round_once
from tilewright.graph.rules import registry
from tilewright.graph.rules.attention import ATTENTION_RULE
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.block_weights import block_rules
from tilewright.graph.rules.channel_scales import CHANNEL_SCALES, NORM_BY_CONSTANTS
from tilewright.graph.rules.cropped_convolutions import CROPPED_CONV
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.eight_bits import EIGHT_BITS
from tilewright.graph.rules.gathered_products import GATHERED_PRODUCTS
from tilewright.graph.rules.group_norm import GROUP_NORM
from tilewright.graph.rules.layer_norm import LAYER_NORM
from tilewright.graph.rules.lower_attention import ATTENTION_OF_BFLOAT16
from tilewright.graph.rules.lower_convolutions import CONVOLUTION
from tilewright.graph.rules.lower_precision import precision_rules
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.graph.rules.padding_taps import PADDING_TAPS
from tilewright.graph.rules.quantized import PRODUCTS, QUANTIZED
from tilewright.graph.rules.quantized_concat import CONCAT_OF_BYTES
from tilewright.graph.rules.rms_norm import RMS_NORM
from tilewright.graph.rules.substitutions.filters import PADDING_INTO_CONV
from tilewright.graph.rules.summed_filters import SUMMED_FILTERS
from tilewright.graph.rules.unsigned_data import CONSTANTS_ONCE, UNSIGNED_DATA
from tilewright.graph.specialize import specialize
from tilewright.graph.verify import verify
from tilewright.ir.passes import Pass, Pipeline


@dataclass(frozen=True)
class Inline(Pass[Graph]):
    """Replace an If of known condition by its branch, and unroll short loops."""

    fallback: FallbackProvider | None = field(default=None, repr=False)

    def run(self, program: Graph) -> Graph:
        if not any(op.subgraphs for op in program.operations):
            return program
        return specialize(program, fallback=self.fallback)


@dataclass(frozen=True)
class BoundExtents(Pass[Graph]):
    """Turn tensors with data-dependent extents into bounded ones with counts."""

    fallback: FallbackProvider | None = field(default=None, repr=False)

    def run(self, program: Graph) -> Graph:
        if not depends_on_data(program):
            return program
        from tilewright.graph.bounded.bound import bound

        return bound(program, self.fallback)


@dataclass(frozen=True)
class FoldConstants(Pass[Graph]):
    """Fold operations on constants."""

    fallback: FallbackProvider | None = field(default=None, repr=False)

    def run(self, program: Graph) -> Graph:
        return simplify.fold_constants(program, self.fallback)


@dataclass(frozen=True)
class IntegerProducts(Pass[Graph]):
    """Turn products of dequantized bytes into products of bytes."""

    def run(self, program: Graph) -> Graph:
        return rewrite(rewrite(program, [*QUANTIZED, CONCAT_OF_BYTES]), PRODUCTS)


@dataclass(frozen=True)
class KeepBlocks(Pass[Graph]):
    """Keep weights that are dequantized block by block packed.

    in_bytes: the target multiplies bytes faster than floats. fast: use bytes even if the model does
    not ask for it.
    """

    in_bytes: bool
    fast: bool

    def run(self, program: Graph) -> Graph:
        return rewrite(program, block_rules(self.in_bytes, self.fast))


@dataclass(frozen=True)
class LowerPrecision(Pass[Graph]):
    """Store constant matrices of products in float16 or bfloat16.

    pairs: the target multiplies pairs of bfloat16.
    """

    precision: str
    pairs: bool

    def run(self, program: Graph) -> Graph:
        return rewrite(program, precision_rules(self.precision, self.pairs))


@dataclass(frozen=True)
class LowerConvolutions(Pass[Graph]):
    """Multiply pairs of bfloat16 in convolutions."""

    def run(self, program: Graph) -> Graph:
        lowered = rewrite(program, [CONVOLUTION])
        return program if lowered is program else round_once(lowered)


@dataclass(frozen=True)
class LowerAttention(Pass[Graph]):
    """Multiply pairs of bfloat16 in attention."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, [ATTENTION_OF_BFLOAT16])


@dataclass(frozen=True)
class FoldEmpty(Pass[Graph]):
    """Replace tensors without elements by constants."""

    def run(self, program: Graph) -> Graph:
        return simplify.fold_empty(program)


@dataclass(frozen=True)
class RemoveNoOps(Pass[Graph]):
    """Remove identities of every kind."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, NO_OPS)


@dataclass(frozen=True)
class UserRules(Pass[Graph]):
    """Apply the rules that a user registered. exact: only those that preserve every bit."""

    exact: bool = False

    def run(self, program: Graph) -> Graph:
        rules = [r for r in registry.registered() if r.same_bits or not self.exact]
        return rewrite(program, rules) if rules else program


@dataclass(frozen=True)
class FoldBatchnorm(Pass[Graph]):
    """Fold what scales BatchNormalization on constants into it, and it into the convolution before
    it."""

    def run(self, program: Graph) -> Graph:
        return rewrite(rewrite(program, CHANNEL_SCALES), [BATCHNORM])


@dataclass(frozen=True)
class NormsByConstants(Pass[Graph]):
    """Turn BatchNormalization on constants into a product and a sum."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, [NORM_BY_CONSTANTS])


@dataclass(frozen=True)
class SumFilters(Pass[Graph]):
    """Turn sums of convolutions of one image into one convolution."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, [SUMMED_FILTERS])


@dataclass(frozen=True)
class PadWindows(Pass[Graph]):
    """Make Pad before a convolution and Slice behind it its own padding."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, [PADDING_INTO_CONV, CROPPED_CONV])


@dataclass(frozen=True)
class ChosenMatrices(Pass[Graph]):
    """Multiply by constant matrices that are chosen at run time without copying them."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, GATHERED_PRODUCTS)


@dataclass(frozen=True)
class TrimWindows(Pass[Graph]):
    """Remove window positions of convolutions that only reach padding."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, [PADDING_TAPS])


@dataclass(frozen=True)
class RecognizeIdioms(Pass[Graph]):
    """Turn operators that exporters spelled out back into one operator."""

    def run(self, program: Graph) -> Graph:
        norms = [*LAYER_NORM, *RMS_NORM, GROUP_NORM]
        return rewrite(rewrite(program, norms), [ATTENTION_RULE])


@dataclass(frozen=True)
class Decompose(Pass[Graph]):
    """Decompose operators without a native form into others that have one."""

    def run(self, program: Graph) -> Graph:
        return decompose(program)


@dataclass(frozen=True)
class EightBitProducts(Pass[Graph]):
    """Multiply tensors of float8 as they are, before constant ones become float32."""

    def run(self, program: Graph) -> Graph:
        return rewrite(program, [EIGHT_BITS])


@dataclass(frozen=True)
class UnsignedData(Pass[Graph]):
    """Turn products of int8 by int8 into products of uint8 by int8."""

    fallback: FallbackProvider | None = field(default=None, repr=False)

    def run(self, program: Graph) -> Graph:
        found = rewrite(program, [UNSIGNED_DATA])
        if found is program:
            return program
        found = simplify.fold_constants(found, self.fallback)
        return rewrite(found, [CONSTANTS_ONCE])


@dataclass(frozen=True)
class MergeRepeated(Pass[Graph]):
    """Compute common subexpressions once. merged: as for `simplify.merge_repeated`."""

    merged: simplify.Merged | None = field(default=None, repr=False)

    def run(self, program: Graph) -> Graph:
        return simplify.merge_repeated(program, self.merged)


@dataclass(frozen=True)
class RemoveUnused(Pass[Graph]):
    """Remove unused operations."""

    def run(self, program: Graph) -> Graph:
        return simplify.remove_unused(program)


@dataclass(frozen=True)
class OptimizeBodies(Pass[Graph]):
    """Run the graph passes on the bodies of control flow that runs natively."""

    passes: tuple[Pass[Graph], ...] = field(repr=False)

    def run(self, program: Graph) -> Graph:
        inner = Pipeline("body", (*self.passes, self), verify)
        return over_bodies(program, inner.run)


def graph_pipeline(
    math: str,
    fallback: FallbackProvider | None,
    byte_products: bool = True,
    lower: LowerPrecision | None = None,
    fusion: bool = True,
    less: Pass[Graph] | None = None,
    signed: bool = False,
    eight_bits: bool = False,
    merged: simplify.Merged | None = None,
) -> Pipeline[Graph]:
    """The passes before lowering.

    math: "exact" keeps every operator as written. byte_products: whether the target multiplies
    bytes faster than floats; signed: int8 by int8 as well as uint8 by int8; eight_bits:
    float8 by float8. lower: the precision that weights are stored in, if another. fusion: whether
    floating-point operators may become one: those that an exporter spelled out, and
    normalizations, padding, cuts and sums of convolutions. less: substitutions, applied after
    BatchNorm is folded and while integers are still packed. merged: as for
    `simplify.merge_repeated`.
    """
    fold = FoldConstants(fallback)
    passes: list[Pass[Graph]] = [] if lower is None else [lower]
    if math != "exact":
        passes.append(KeepBlocks(byte_products, math == "fast"))
        if byte_products:
            passes.append(IntegerProducts())
        if eight_bits:
            passes.append(EightBitProducts())
    opened: list[Pass[Graph]] = [fold, Inline(fallback), BoundExtents(fallback)]
    passes += opened
    passes += [FoldEmpty(), RemoveNoOps(), UserRules(math == "exact")]
    if math != "exact" and fusion:
        # What is cut must be gone before what follows joins the convolution.
        passes += [PadWindows(), FoldBatchnorm(), SumFilters(), NormsByConstants()]
    if math != "exact":
        passes += [TrimWindows(), ChosenMatrices()]
    if less is not None:
        passes.append(less)
    in_pairs = lower is not None and lower.pairs and lower.precision == "bfloat16"
    if in_pairs:
        passes.append(LowerConvolutions())
    passes.append(Decompose())
    if not signed:
        passes.append(UnsignedData(fallback))
    passes += [fold, FoldEmpty(), RemoveNoOps(), MergeRepeated(merged)]
    if math != "exact" and fusion:
        passes.append(RecognizeIdioms())
        if in_pairs:
            passes.append(LowerAttention())
    passes.append(RemoveUnused())
    once = [*opened[1:], less]
    passes.append(OptimizeBodies(tuple(p for p in passes if p not in once)))
    return Pipeline("graph", tuple(passes), verify)
