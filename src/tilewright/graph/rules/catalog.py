"""All rules of the compiler, in the sets that its passes apply."""

from __future__ import annotations

from tilewright.graph.rules.attention import ATTENTION_RULE
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.block_weights import BLOCK_WEIGHTS
from tilewright.graph.rules.channel_scales import CHANNEL_SCALES, NORM_BY_CONSTANTS
from tilewright.graph.rules.conv_product import CONV_PRODUCT
from tilewright.graph.rules.cropped_convolutions import CROPPED_CONV
from tilewright.graph.rules.eight_bits import EIGHT_BITS
from tilewright.graph.rules.gathered_products import GATHERED_PRODUCTS
from tilewright.graph.rules.group_norm import GROUP_NORM
from tilewright.graph.rules.layer_norm import LAYER_NORM
from tilewright.graph.rules.lower_attention import ATTENTION_OF_BFLOAT16
from tilewright.graph.rules.lower_convolutions import CONVOLUTION
from tilewright.graph.rules.lower_precision import LOWER_PRECISION
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.graph.rules.padding_taps import PADDING_TAPS
from tilewright.graph.rules.quantized import PRODUCTS, QUANTIZED
from tilewright.graph.rules.quantized_concat import CONCAT_OF_BYTES
from tilewright.graph.rules.rms_norm import RMS_NORM
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.filters import PADDING_INTO_CONV
from tilewright.graph.rules.summed_filters import SUMMED_FILTERS
from tilewright.graph.rules.unsigned_data import CONSTANTS_ONCE, UNSIGNED_DATA

CATALOG: tuple[Rule, ...] = (
    *NO_OPS,
    *CHANNEL_SCALES,
    BATCHNORM,
    NORM_BY_CONSTANTS,
    SUMMED_FILTERS,
    PADDING_INTO_CONV,
    CROPPED_CONV,
    PADDING_TAPS,
    CONV_PRODUCT,
    *GATHERED_PRODUCTS,
    *LAYER_NORM,
    *RMS_NORM,
    GROUP_NORM,
    ATTENTION_RULE,
    *QUANTIZED,
    CONCAT_OF_BYTES,
    *PRODUCTS,
    *BLOCK_WEIGHTS,
    *LOWER_PRECISION,
    CONVOLUTION,
    ATTENTION_OF_BFLOAT16,
    EIGHT_BITS,
    UNSIGNED_DATA,
    CONSTANTS_ONCE,
)
