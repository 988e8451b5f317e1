"""Broken and hostile ONNX files: one clear error each, fast, before anything is allocated."""

import os
import random
import time
from contextlib import suppress

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.base.errors import (
    MemoryLimitError,
    ModelError,
    TilewrightError,
    UnsupportedError,
)
from tilewright.frontends.onnx import load


def model(
    nodes, initializers=(), inputs=("x",), outputs=("y",), opset=17, shape=(2, 3)
):
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        list(initializers),
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9
    )


def relu():
    return helper.make_node("Relu", ["x"], ["y"], name="act")


def external(location, dims=(2, 3), **extra):
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    t.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **extra}.items():
        t.external_data.add(key=key, value=str(value))
    return t


def external_model(location, dims=(2, 3), **extra):
    return model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [external(location, dims, **extra)],
    )


def refused(source, *words, error=ModelError, **options):
    start = time.process_time()
    with pytest.raises(error) as caught:
        load(source, **options)
    assert (
        time.process_time() - start < 30
    )  # it takes milliseconds; what it defends from, hours
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return caught.value


def test_missing_file_and_folder(tmp_path):
    refused(tmp_path / "none.onnx", "no such file", "none.onnx")
    refused(tmp_path, "folder")


def test_something_that_is_no_model():
    refused(42, "int is not a model")
    refused(b"", "not an ONNX model")


def test_random_bytes(tmp_path):
    rng = random.Random(0)
    for n in range(100):
        path = tmp_path / f"{n}.onnx"
        path.write_bytes(rng.randbytes(rng.randrange(1, 500)))
        refused(path, str(path), error=TilewrightError)


def test_truncated_at_every_place():
    whole = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "w")],
    ).SerializeToString()
    for end in range(len(whole)):
        try:
            load(whole[:end])
        except TilewrightError:
            pass


@pytest.mark.filterwarnings("ignore")
def test_changed_bytes_never_crash():
    whole = model(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transA=1)],
        [onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "w")],
    ).SerializeToString()
    rng = random.Random(1)
    for _ in range(300):
        changed = bytearray(whole)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            load(bytes(changed), memory_limit=1 << 20)
        except TilewrightError:
            pass


def test_no_graph_and_no_opset():
    refused(onnx.ModelProto(ir_version=9), "no graph")
    m = model([relu()])
    del m.opset_import[:]
    refused(m, "operator set")


def test_cycle_is_named():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    ]
    refused(model(nodes), "cycle", "first", "second")


def test_dangling_and_duplicate_names():
    refused(model([helper.make_node("Relu", ["z"], ["y"], name="n1")]), "n1", "'z'")
    refused(
        model([relu(), helper.make_node("Abs", ["x"], ["y"], name="n2")]),
        "act",
        "n2",
        "'y'",
    )
    refused(model([helper.make_node("Relu", ["x"], ["x"], name="n3")]), "'x'")
    refused(model([relu()], outputs=("y", "other")), "other")


def test_nodes_out_of_order_are_sorted():
    nodes = [
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("Abs", ["x"], ["a"]),
    ]
    assert [op.op_type for op in load(model(nodes)).operations] == ["Abs", "Relu"]


def test_absurd_sizes_are_refused_before_allocation():
    huge = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(10**6, 10**6))
    add = helper.make_node("Add", ["x", "w"], ["y"])
    refused(model([add], [huge]), "1000000, 1000000", "limit", error=MemoryLimitError)
    shape = onnx.numpy_helper.from_array(np.array([10**6, 10**6]), "s")
    fill = helper.make_node("ConstantOfShape", ["s"], ["y"], name="fill")
    refused(model([fill], [shape]), "fill", "limit", error=MemoryLimitError)
    refused(model([relu()], shape=(10**12,)), "limit", error=MemoryLimitError)
    refused(model([relu()]), "limit of 8 ", error=MemoryLimitError, memory_limit=8)


def test_shapes_of_more_elements_than_numpy_counts_broadcast():
    """They do: what is wrong is their size, and the error says so."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    y.type.tensor_type.ClearField("shape")
    extents = numpy_helper.from_array(np.array([1 << 40, 1 << 30]), "extents")
    node = helper.make_node("Expand", ["x", "extents"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [extents])
    with pytest.raises(MemoryLimitError, match=r"1099511627776, 1073741824\]\) needs"):
        load(helper.make_model(graph))


def test_broken_tensors():
    add = helper.make_node("Add", ["x", "w"], ["y"])

    def tensor(**fields):
        return TensorProto(name="w", **fields)

    refused(
        model([add], [tensor(data_type=1, dims=(2, 3), raw_data=b"123")]),
        "24",
        "3 bytes",
    )
    refused(
        model([add], [tensor(data_type=1, dims=(2, -3), raw_data=b"123")]), "negative"
    )
    refused(model([add], [tensor(data_type=99, dims=(1,), raw_data=b"1234")]), "99")
    refused(model([add], [tensor(data_type=1, dims=(2, 3), float_data=[1.0])]), "shape")


def test_shapes_against_the_rules_name_the_node():
    w = onnx.numpy_helper.from_array(np.ones((5, 7), np.float32), "w")
    refused(
        model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [w]),
        "mm",
        "[5, 7]",
    )
    refused(
        model([helper.make_node("Add", ["x", "w"], ["y"], name="sum")], [w]),
        "sum",
        "[2, 3]",
    )


def test_all_unsupported_operators_at_once():
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], name="blk.3/foo", domain="com.acme"),
        helper.make_node("Foo", ["a"], ["b"], domain="com.acme"),
        helper.make_node("Bar", ["b"], ["y"], name="bar"),
    ]
    m = model(nodes)
    m.opset_import.add(domain="com.acme", version=3)
    error = refused(
        m,
        "com.acme::Foo",
        "blk.3/foo",
        "2 nodes",
        "Bar",
        "opset 3",
        "float32[2, 3]",
        "tilewright.operators.register(OpDef(...))",
        error=UnsupportedError,
    )
    assert len(error.items) == 2


# ------------------------------------------------------------------------------ external data


def saved(folder, location="w.bin", data=None, **extra):
    folder.mkdir(exist_ok=True)
    if data is not None:
        (folder / "w.bin").write_bytes(data)
    path = folder / "model.onnx"
    path.write_bytes(external_model(location, **extra).SerializeToString())
    return path


W = np.arange(6, dtype=np.float32).reshape(2, 3)


def constant_of(path, **options):
    graph = load(path, **options)
    return next(a for v, a in graph.constants.items() if v.name == "w")


def test_external_data_is_read(tmp_path):
    path = saved(tmp_path, data=b"skip" + W.tobytes(), offset=4, length=24)
    np.testing.assert_array_equal(constant_of(path), W)


@pytest.mark.parametrize(
    ("location", "word"),
    [
        ("../secret.bin", "leaves"),
        ("a/../../secret.bin", "leaves"),
        ("..\\secret.bin", "leaves"),
        ("/etc/passwd", "absolute"),
        ("C:\\secret.bin", "absolute"),
        ("", "empty"),
        ("x" * 5000, "too long"),
        ("none.bin", "does not exist"),
        ("a\0b", "NUL"),
    ],
)
def test_external_locations_that_are_refused(tmp_path, location, word):
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    refused(saved(tmp_path / "m", location), word)


def test_external_data_short_or_nonsense(tmp_path):
    refused(saved(tmp_path / "a", data=b"123"), "short")
    refused(saved(tmp_path / "b", data=W.tobytes(), offset=8), "short")
    refused(saved(tmp_path / "c", data=W.tobytes(), offset="-4"), "offset")
    refused(saved(tmp_path / "d", data=W.tobytes(), length=4), "24")
    refused(saved(tmp_path / "e", data=W.tobytes(), checksum="0" * 40), "checksum")
    huge = saved(tmp_path / "f", data=W.tobytes(), dims=(10**6, 10**6))
    refused(huge, "limit", error=MemoryLimitError)


def test_links_out_of_the_folder_are_refused(tmp_path):
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    path = saved(tmp_path / "m")
    os.symlink(tmp_path / "secret.bin", tmp_path / "m" / "w.bin")
    refused(path, "outside")
    np.testing.assert_array_equal(constant_of(path, external_data_roots=[tmp_path]), W)


def test_a_folder_that_is_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "w.bin").write_bytes(W.tobytes())
    path = saved(tmp_path / "m", "data/w.bin")
    os.symlink(tmp_path / "private", tmp_path / "m" / "data")
    refused(path, "outside")


def test_hard_links_may_lead_anywhere_and_are_refused(tmp_path):
    """An archive can hold one; which folder its other name lies in, nobody can tell."""
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    path = saved(tmp_path / "m")
    os.link(tmp_path / "secret.bin", tmp_path / "m" / "w.bin")
    refused(path, "hard links", "external_data_roots")
    roots = {"external_data_roots": [tmp_path / "m"]}
    np.testing.assert_array_equal(constant_of(path, **roots), W)
    os.unlink(tmp_path / "secret.bin")
    np.testing.assert_array_equal(constant_of(path), W)


def test_what_is_no_file_is_neither_read_nor_waited_for(tmp_path):
    path = saved(tmp_path)
    (tmp_path / "w.bin").mkdir()
    refused(path, "does not exist")
    (tmp_path / "w.bin").rmdir()
    os.mkfifo(tmp_path / "w.bin")
    refused(path, "does not exist")
    (tmp_path / "w.bin").unlink()
    os.symlink("/dev/zero", tmp_path / "w.bin")
    refused(path, "outside")
    refused(path, "does not exist", external_data_roots=["/dev"])


def test_a_model_that_is_a_device_or_never_ends(tmp_path):
    import threading

    for device in ("/dev/zero", "/dev/full", "/dev/null"):
        refused(device, "it is a device")
    pipe = tmp_path / "m.onnx"
    os.mkfifo(pipe)

    def feed(data):
        with suppress(BrokenPipeError), pipe.open("wb", buffering=0) as end:
            for _ in range(100):
                end.write(data)

    writer = threading.Thread(target=feed, args=(bytes(1 << 16),))
    writer.start()
    refused(
        pipe,
        "more bytes, over the memory limit",
        error=MemoryLimitError,
        memory_limit=1 << 20,
    )
    writer.join()


def test_no_offset_or_length_is_too_large_to_be_refused(tmp_path):
    for number in (
        1 << 31,
        1 << 63,
        1 << 64,
        10**30,
        int("9" * 4000),
        "9" * 10_000,
        "0" * 10_000,
    ):
        refused(saved(tmp_path, data=W.tobytes(), offset=number), "external data")
    refused(
        saved(tmp_path, data=W.tobytes(), length="9" * 10_000), "not a size in bytes"
    )
    for number in (1 << 63, 10**18):  # a length says at most how much there is
        np.testing.assert_array_equal(
            constant_of(saved(tmp_path, data=W.tobytes(), length=number)), W
        )


def test_a_link_to_itself_is_an_error(tmp_path):
    path = saved(tmp_path / "m")
    os.symlink("w.bin", tmp_path / "m" / "w.bin")
    refused(path, "w.bin")


def test_hugging_face_layout_is_read(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    real = saved(blobs, data=W.tobytes())
    os.symlink(real, snapshot / "model.onnx")
    os.symlink(blobs / "w.bin", snapshot / "w.bin")
    np.testing.assert_array_equal(constant_of(snapshot / "model.onnx"), W)


def test_a_model_given_as_bytes_reads_no_file(tmp_path, monkeypatch):
    path = saved(tmp_path, data=W.tobytes())
    monkeypatch.chdir(tmp_path)
    refused(path.read_bytes(), "bytes")
    roots = {"external_data_roots": [tmp_path]}
    np.testing.assert_array_equal(constant_of(path.read_bytes(), **roots), W)
