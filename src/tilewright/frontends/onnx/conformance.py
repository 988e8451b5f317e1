"""ONNX's backend test cases as plain data: models with inputs and expected outputs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.files import write_whole

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


@dataclass(frozen=True)
class ConformanceCase:
    """One test. data: (inputs, expected outputs) per data set, in the model's order.

    An input may be an array, a NumPy scalar, a list (sequence), None (optional) or a dict (map).
    random: its outputs cannot be compared.
    """

    name: str
    kind: str
    model: Any
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def random(self) -> bool:
        """Whether the model draws random numbers."""
        from tilewright.frontends.onnx.protos import qualified

        kinds = {qualified(node) for node in self.model.graph.node}
        return bool(
            kinds & {"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial"}
        ) or (bool(kinds & {"RandomNormalLike", "RandomUniformLike"}))


def keep_node_cases(folder: Path) -> None:
    """Make ONNX's loader read its node cases from `folder`, or write them there.

    ONNX computes their expected outputs in Python, which takes seconds in every process. Files
    depend on the versions of onnx and NumPy; if several processes start at once, one of them writes
    a file.
    """
    from onnx.backend.test import loader

    make = loader.load_node_model_tests
    if make.__module__ == loader.__name__:
        loader.load_node_model_tests = lambda: _kept(folder, make)


def _kept(folder: Path, make: Callable[[], list[Any]]) -> list[Any]:
    import numpy as np
    import onnx
    from filelock import FileLock

    name = f"node-cases-onnx-{onnx.__version__}-numpy-{np.__version__}"
    path = folder / f"{name}.pickle"
    with FileLock(folder / f"{name}.lock"):
        if not path.exists():
            whole = pickle.dumps(make())
            write_whole(path, lambda file: file.write(whole))
    return list(pickle.loads(path.read_bytes()))


@cache
def cases(kind: str) -> tuple[ConformanceCase, ...]:
    """The test cases of a kind (see KINDS); those of kind "real" come without data."""
    return tuple(_cases(kind))


def _cases(kind: str) -> Iterator[ConformanceCase]:
    import onnx
    from onnx.backend.test.loader import load_model_tests

    for test in load_model_tests(kind=kind):
        model = test.model
        data = test.data_sets
        if model is None and test.model_dir:
            model = onnx.load(f"{test.model_dir}/model.onnx")
            data = list(_data_sets(test.model_dir, model))
        if model is not None:
            sets = [
                ([_plain(x) for x in i], [_plain(x) for x in o]) for i, o in data or ()
            ]
            yield ConformanceCase(test.name, kind, model, sets, test.rtol, test.atol)


def _plain(x: Any) -> Any:
    """The contents of a protobuf message among the data."""
    import onnx

    readers = {
        onnx.TensorProto: onnx.numpy_helper.to_array,
        onnx.SequenceProto: onnx.numpy_helper.to_list,
        onnx.OptionalProto: onnx.numpy_helper.to_optional,
    }
    if type(x) in readers:
        return readers[type(x)](x)
    return x


def _data_sets(folder: str, model: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(Path(folder).glob("test_data_set_*")):
        yield (
            _read_all(data, "input", model.graph.input),
            _read_all(data, "output", model.graph.output),
        )


def _read_all(folder: Any, stem: str, infos: Sequence[Any]) -> list[Any]:
    files = sorted(
        folder.glob(f"{stem}_*.pb"), key=lambda p: int(p.stem.rsplit("_", 1)[1])
    )
    return [_read(path, info.type) for path, info in zip(files, infos, strict=False)]


def _read(path: Any, proto_type: Any) -> Any:
    import onnx

    raw = path.read_bytes()
    match proto_type.WhichOneof("value"):
        case "sequence_type":
            return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
        case "optional_type":
            return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
    tensor = onnx.TensorProto.FromString(raw)
    return onnx.numpy_helper.to_array(tensor)
