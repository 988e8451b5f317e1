"""Post-training quantization: from a float Graph and data to a Graph in ONNX's QDQ form.

affine       integers for real numbers: scales and zero points
observers    ranges of tensors: min-max, percentile, entropy, squared error
statistics   what methods for weights need to know of the data
calibrate    data through the model, batch by batch
data         calibration data, checked
layers       what is quantized, and why something is not
places       where tensors are bytes
migrate      moving factors from data into weights
factors      which ones: equalization, SmoothQuant, AWQ's search
rounding     GPTQ
bias         bias correction
insert       writing QuantizeLinear and DequantizeLinear
recipe       the options
model        all of it, in order
metrics      agreement with the float model
sensitivity  the layers to keep in floats
report       what it came to
"""

from tilewright.graph.quantize.pipeline import quantize
from tilewright.graph.quantize.recipe import QuantizationRecipe
from tilewright.graph.quantize.report import QuantizationReport, Quantized

__all__ = ["Quantized", "QuantizationRecipe", "QuantizationReport", "quantize"]
