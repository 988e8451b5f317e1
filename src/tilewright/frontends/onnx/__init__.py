"""The ONNX importer: `load` returns the Graph of a path, bytes or ModelProto."""

from tilewright.frontends.onnx.load import load

__all__ = ["load"]
