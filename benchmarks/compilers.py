"""The compilers that `make bench-all` probes, each as a function of the inputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.cli.engines import Feeds, Runner


def jax(path: Path) -> Runner:
    """An ONNX file under XLA's CPU backend; its pool is as wide as the processors allowed.

    Weights are arguments: XLA folds constants for minutes. Raises KeyError of an operator that
    no float32 row uses.
    """
    import jax
    import onnx
    from onnx import helper, numpy_helper

    from benchmarks.jax_ops import OPERATORS

    graph = onnx.load(path).graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    weights = {
        k: jax.numpy.asarray(v) for k, v in constants.items() if v.dtype.kind == "f"
    }
    integers = {k: v for k, v in constants.items() if v.dtype.kind != "f"}

    def compute(weights: dict[str, Any], feeds: dict[str, Any]) -> list[Any]:
        known: dict[str, Any] = {"": None, **integers, **weights, **feeds}
        for node in graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            inputs = [known[name] for name in node.input]
            known[node.output[0]] = OPERATORS[node.op_type](inputs, attributes)
        return [known[output.name] for output in graph.output]

    compiled = jax.jit(compute)
    return lambda feeds: [np.asarray(y) for y in compiled(weights, feeds)]


def iree(path: Path, threads: int) -> Runner:
    """An ONNX file under IREE's CPU backend, for this processor."""
    import tempfile

    import iree.compiler as compiler
    from iree import runtime
    from iree.compiler.tools.import_onnx import __main__ as importer

    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "model.mlir"
        importer.main(importer.parse_arguments([str(path), "-o", str(text)]))
        flags = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
        module = compiler.compile_file(
            str(text), input_type="onnx", target_backends=["llvm-cpu"], extra_args=flags
        )
    runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    config = runtime.Config("local-task")
    loaded = runtime.load_vm_module(
        runtime.VmModule.copy_buffer(config.vm_instance, module), config
    )
    names = [
        name for name in loaded.vm_module.function_names if not name.startswith("__")
    ]
    entry = loaded[next(name for name in names if not name.endswith("$async"))]

    def run(feeds: Feeds) -> list[Any]:
        result = entry(*feeds.values())
        return [
            y.to_host()
            for y in (result if isinstance(result, tuple | list) else (result,))
        ]

    return run


def tvm(path: Path, threads: int) -> Runner:
    """An ONNX file under TVM's Relax with its default pipeline for this processor, not tuned."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    target = tvm.target.Target(
        {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
    )
    machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())

    def run(feeds: Feeds) -> list[Any]:
        result = machine["main"](*map(tvm.runtime.tensor, feeds.values()))
        many = not hasattr(result, "numpy")
        return [y.numpy() for y in (result if many else (result,))]

    return run
