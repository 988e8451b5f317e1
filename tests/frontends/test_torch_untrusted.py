"""A .pt2 file runs nothing: payloads in every place that PyTorch would evaluate, unpickle or load.

Each payload makes a file; that file must not be there afterwards. The last tests show that the
payloads are live: PyTorch's own reader, which `trust` asks for, does run them.
"""

import io
import json
import os
import pickle
import zipfile
from random import Random

import pytest

from tilewright.base.errors import MemoryLimitError, ModelError, TilewrightError
from tilewright.frontends import torch as frontend
from tilewright.frontends.load import load
from tilewright.frontends.torch import expressions
from tilewright.testing import mutate_json

torch = pytest.importorskip("torch")

LIMIT = 1 << 30
MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Payload:
    """Unpickled, it makes the file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


@pytest.fixture(scope="module")
def members():
    """Name below the folder -> bytes, of a program with a weight, a constant and a symbol."""

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.table = torch.ones(3)

        def forward(self, x, *, scale):
            return {"y": self.linear(x) * scale + self.table}

    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Module(),
        (torch.randn(4, 3),),
        {"scale": torch.randn(4, 3)},
        dynamic_shapes={"x": {0: batch}, "scale": {0: batch}},
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with zipfile.ZipFile(buffer) as file:
        return {name.partition("/")[2]: file.read(name) for name in file.namelist()}


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "ran"


def written(path, members, folder="m"):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(f"{folder}/{name}", data)
    return path


def edited(members, name, change):
    """The members with one that is JSON changed."""
    data = json.loads(members[name])
    change(data)
    return {**members, name: json.dumps(data).encode()}


def replaced(old, new):
    """A change of JSON: every string that is `old` is `new`, keys too."""

    def change(data):
        text = json.dumps(data).replace(json.dumps(old), json.dumps(new))
        data.clear()
        data.update(json.loads(text))

    return change


def graph_of(data):
    return data["graph_module"]["graph"]


def refused(path, match=None, kind=ModelError):
    with pytest.raises(kind, match=match) as caught:
        frontend.load(path, memory_limit=LIMIT)
    assert caught.value.where.endswith(str(path))
    assert caught.value.hint
    return caught.value


def test_the_program_is_read_and_computes_what_it_did(members, tmp_path):
    import tilewright as tw

    path = written(tmp_path / "m.pt2", members)
    exe = tw.compile(path, dims={load(path).inputs[0].shape[0]: 5}, cache=False)
    x, scale = torch.randn(5, 3), torch.randn(5, 3)
    expected = torch.export.load(path).module()(x, scale=scale)["y"].detach().numpy()
    found = exe(x.numpy(), scale=scale.numpy())["y"]
    assert abs(found - expected).max() < 1e-5


def test_sample_inputs_and_compiled_libraries_are_not_looked_at(
    members, marker, tmp_path
):
    changed = {
        **members,
        "data/sample_inputs/model.pt": pickle.dumps(Payload(marker)),
        "data/aotinductor/model/evil.so": b"\x7fELF",
        "extra/note": b"\xff",
    }
    assert frontend.load(written(tmp_path / "m.pt2", changed), memory_limit=LIMIT)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("config", "folder", "name"),
    [
        (WEIGHTS, "data/weights", "linear.weight"),
        (CONSTANTS, "data/constants", "table"),
    ],
)
@pytest.mark.parametrize(
    "member", ["weight_9", "tensor_9", "custom_obj_9", "opaque_obj_9"]
)
def test_pickled_tensors_and_objects_are_refused(
    members, marker, tmp_path, config, folder, name, member
):
    def change(data):
        data["config"][name] |= {"use_pickle": True, "path_name": member}

    changed = edited(members, config, change)
    changed[f"{folder}/{member}"] = pickle.dumps(Payload(marker))
    error = refused(written(tmp_path / "m.pt2", changed), "is a Python object")
    assert error.code == "TW-TRUST"
    assert "--trust" in str(error)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["data/weights/model.pt", "data/constants/model.pt"])
def test_weights_as_earlier_versions_pickled_them_are_refused(
    members, marker, tmp_path, name
):
    changed = {**members, name: pickle.dumps(Payload(marker))}
    assert refused(written(tmp_path / "m.pt2", changed), "pickle").code == "TW-TRUST"
    assert not marker.exists()


def test_objects_of_a_class_of_the_program_are_refused(members, tmp_path):
    def change(data):
        graph_of(data)["custom_obj_values"] = {
            "o": {"name": "o", "class_fqn": "torch.classes.E"}
        }

    path = written(tmp_path / "m.pt2", edited(members, MODEL, change))
    assert refused(path, "custom class").code == "TW-TRUST"


def code(marker):
    """An expression that makes the file."""
    return f"__import__('pathlib').Path('{marker}').touch()"


def test_sizes_are_not_evaluated(members, marker, tmp_path):
    text = json.loads(members[MODEL])
    (size, *_) = graph_of(text)["tensor_values"]["x"]["sizes"]
    change = replaced(size["as_expr"]["expr_str"], code(marker))
    refused(
        written(tmp_path / "m.pt2", edited(members, MODEL, change)),
        "is not an expression",
    )
    assert not marker.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.utils.cpp_extension.load_inline",
        "torch.ops.load_library",
        "torch.ops.aten.add.__class__",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.__init__.default",
        "torch.ops.aten.name.format",
        "torch.ops.aten.mul.no_such",
        "torch.ops.higher_order.call_torchbind",
        "torch.ops.higher_order.triton_kernel_wrapper_functional",
        "_operator.call",
        "_operator.methodcaller",
        "math.factorial",
        "#extension:op",
        "print",
        "",
    ],
)
def test_targets_are_operators_on_tensors(members, tmp_path, target):
    change = replaced("torch.ops.aten.mul.Tensor", target)
    refused(written(tmp_path / "m.pt2", edited(members, MODEL, change)), "as a target")


def test_operators_of_somebody_s_own_need_trust(members, tmp_path):
    change = replaced("torch.ops.aten.mul.Tensor", "torch.ops.mine.mul.Tensor")
    error = refused(
        written(tmp_path / "m.pt2", edited(members, MODEL, change)), "custom operator"
    )
    assert error.code == "TW-TRUST"


@pytest.mark.parametrize("name", ["x", "mul", "p_linear_weight"])
def test_names_are_names(members, marker, tmp_path, name):
    change = replaced(name, f"x={code(marker)}")
    refused(written(tmp_path / "m.pt2", edited(members, MODEL, change)), "as a")
    assert not marker.exists()


def test_names_of_weights_and_of_parameters_are_names(members, marker, tmp_path):
    bad = f'linear.a" + {code(marker)} + "'
    for name in (MODEL, WEIGHTS):
        changed = edited(members, name, replaced("linear.weight", bad))
        refused(written(tmp_path / "m.pt2", changed), "as a")

    def change(data):
        data["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = [
            f"x={code(marker)}", "scale"
        ]  # fmt: skip

    refused(
        written(tmp_path / "m.pt2", edited(members, MODEL, change)), "forward_arg_names"
    )
    assert not marker.exists()


def structure(kind, context):
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


ENUM = json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "y"}])
FACTORY = {
    "default_factory_module": "antigravity",
    "default_factory_name": "x",
    "dict_context": ["y"],
}


@pytest.mark.parametrize(
    "spec",
    [
        structure("builtins.list", ENUM),
        structure("builtins.dict", ENUM),
        structure("collections.defaultdict", json.dumps(FACTORY)),
        structure("collections.namedtuple", '"os.stat_result"'),
        structure("transformers.cache_utils.DynamicCache", "null"),
        structure(7, "null"),
        "[2, null]",
        "[]",
        "x",
    ],
)
@pytest.mark.parametrize("field", ["in_spec", "out_spec"])
def test_structures_import_nothing(members, tmp_path, monkeypatch, spec, field):
    import importlib

    def change(data):
        data["graph_module"]["module_call_graph"][0]["signature"][field] = spec

    path = written(tmp_path / "m.pt2", edited(members, MODEL, change))
    imported = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    refused(path)
    assert "antigravity" not in imported


def test_arguments_by_name_are_names(members, marker, tmp_path):
    def change(data):
        signature = data["graph_module"]["module_call_graph"][0]["signature"]
        assert "scale" in signature["in_spec"]
        signature["in_spec"] = signature["in_spec"].replace("scale", "x: a.b")

    refused(written(tmp_path / "m.pt2", edited(members, MODEL, change)), "in_spec")


def test_guards_are_parsed_and_never_run(members, marker, tmp_path):
    def change(data):
        data["guards_code"] = [code(marker)]

    refused(written(tmp_path / "m.pt2", edited(members, MODEL, change)), "guards_code")
    assert not marker.exists()


def test_stack_traces_are_dropped(members, marker, tmp_path):
    def change(data):
        for node in graph_of(data)["nodes"]:
            node["metadata"] = {
                "source_fn_stack": "x,torch.os.system",
                "from_node": code(marker),
                "custom": "{",
            }

    path = written(tmp_path / "m.pt2", edited(members, MODEL, change))
    program = frontend.load(path, memory_limit=LIMIT)
    program.module()(torch.ones(4, 3), scale=torch.ones(4, 3))
    assert not marker.exists()
    assert not any("custom" in node.meta for node in program.graph.nodes)


def test_of_a_node_only_the_paths_of_its_modules_are_kept(members, marker, tmp_path):
    def named(stack):
        def change(data):
            for node in graph_of(data)["nodes"]:
                node["metadata"] = {"nn_module_stack": stack}

        path = written(tmp_path / "m.pt2", edited(members, MODEL, change))
        program = frontend.load(path, memory_limit=LIMIT)
        program.module()(torch.ones(4, 3), scale=torch.ones(4, 3))
        return {
            tuple(entry[0] for entry in (n.meta.get("nn_module_stack") or {}).values())
            for n in program.graph.nodes
            if n.op == "call_function"
        }

    assert named("L__self__,,a.M;L__self__b,blocks.0.o,torch.os.system") == {
        ("", "blocks.0.o")
    }
    for hostile in (code(marker), f"x,{code(marker)},y", "x", 7):
        assert named(hostile) == {()}
    assert not marker.exists()


def test_of_a_stack_trace_only_the_user_line_is_kept(members, marker, tmp_path):
    def traced(trace):
        def change(data):
            for node in graph_of(data)["nodes"]:
                node["metadata"] = {"stack_trace": trace}

        path = written(tmp_path / "m.pt2", edited(members, MODEL, change))
        program = frontend.load(path, memory_limit=LIMIT)
        program.module()(torch.ones(4, 3), scale=torch.ones(4, 3))
        (found,) = {
            n.meta.get("stack_trace")
            for n in program.graph.nodes
            if n.op == "call_function"
        }
        return found

    frame = 'File "{}", line {}, in forward\n    y = f(x)\n'.format
    library = frame("/v/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134)
    kept = 'File "my-net.py", line 12, in forward'
    assert traced(frame("/home/me/my-net.py", 12) + library) == kept
    assert traced(library) == 'File "linear.py", line 134, in forward'
    ran = code(marker)
    for hostile in (ran, frame(ran, 1), frame("a.py", ran), frame('a.py"\n', 1), 7):
        assert traced(hostile) is None
    assert not marker.exists()


def test_kernels_of_a_file_are_named_by_the_modules(members, tmp_path):
    graph = load(written(tmp_path / "m.pt2", members))
    assert any(op.name.startswith("linear.linear/") for op in graph.operations)


def test_a_field_that_nobody_knows_is_refused(members, tmp_path):
    def change(data):
        graph_of(data)["nodes"][0]["inputs"][0]["arg"] = {"as_int": "1"}

    refused(written(tmp_path / "m.pt2", edited(members, MODEL, change)), "as a as_int")


def test_a_compressed_member_is_no_bomb(members, tmp_path):
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"m/{name}", data)
        file.writestr("m/data/weights/weight_9", bytes(1 << 24))
    refused(path, "compressed or encrypted")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../m/models/model.json", "n/models/model.json"]
)
def test_members_lie_in_one_folder(members, tmp_path, name):
    path = written(tmp_path / "m.pt2", members)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, b"{}")
    refused(path, "outside its folder")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_twice_is_refused(members, tmp_path):
    path = written(tmp_path / "m.pt2", members)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(f"m/{MODEL}", b"{}")
    refused(path, "twice")


@pytest.mark.parametrize("name", [MODEL, WEIGHTS, CONSTANTS, "archive_version"])
def test_a_missing_member_is_said(members, tmp_path, name):
    rest = {key: data for key, data in members.items() if key != name}
    refused(written(tmp_path / "m.pt2", rest), "has no member")


def test_another_version_is_said(members, tmp_path):
    refused(
        written(tmp_path / "m.pt2", {**members, "archive_version": b"9"}), "version '9'"
    )


def test_damaged_programs_are_read_or_refused_by_name(members, tmp_path):
    """Mutants of each part that is JSON; more of them were run than a test has time for."""
    path, read = tmp_path / "m.pt2", 0
    for seed in range(60):
        rng = Random(seed)
        name = rng.choice((MODEL, MODEL, MODEL, WEIGHTS, CONSTANTS))
        damaged = mutate_json.written(
            json.dumps(mutate_json.mutated(rng, json.loads(members[name]))[0])
        )
        try:
            frontend.load(written(path, {**members, name: damaged}), memory_limit=LIMIT)
            read += 1
        except TilewrightError as error:
            assert str(path) in str(error)
    assert 0 < read < 30


def test_a_pipe_is_no_program(tmp_path):
    os.mkfifo(tmp_path / "m.pt2")
    refused(tmp_path / "m.pt2", "it is not a file")


def weight(members, **meta):
    def change(data):
        data["config"]["linear.weight"]["tensor_meta"] |= meta

    return edited(members, WEIGHTS, change)


def ints(*values):
    return [{"as_int": value} for value in values]


def test_weights_stay_in_their_bytes_and_in_the_limit(members, tmp_path):
    path = tmp_path / "m.pt2"
    huge = weight(members, sizes=ints(1 << 40, 1 << 20), strides=ints(0, 0))
    refused(written(path, huge), "over the memory limit", MemoryLimitError)
    for meta, match in (
        ({"sizes": ints(4, 4)}, "out of bounds"),
        ({"storage_offset": {"as_int": 3}}, "out of bounds"),
        ({"sizes": ints(-1, 3)}, "extents or strides"),
        ({"strides": ints(1 << 62, 1)}, "extents or strides"),
        ({"dtype": 99}, "not an exported program"),
        ({"sizes": [{"as_expr": {"expr_str": "Integer(3)"}}]}, "extents or strides"),
    ):
        refused(written(path, weight(members, **meta)), match)

    def elsewhere(data):
        data["config"]["linear.weight"]["path_name"] = "..-etc"

    refused(written(path, edited(members, WEIGHTS, elsewhere)), "is in a member")
    refused(
        written(path, {**members, "data/weights/weight_0": b"abc"}),
        "not an exported program",
    )


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s0', positive=True, integer=True)",
        "Add(Pow(Symbol('s77', integer=True), Integer(2)), Integer(-3))",
        "Mul(Rational(1, 2), FloorDiv(Symbol('u0'), Integer(2)))",
        "Max(Integer(1), Mod(Symbol('s0'), Integer(8)))",
        "GreaterThan(Symbol('u0', integer=True), Integer(0))",
        "Float('2.5', precision=53)",
        "Pow(Pow(Symbol('s0'), Integer(2)), Integer(-3))",
        "true",
    ],
)
def test_expressions_that_exporters_write(text):
    expressions.check(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s0 + 1",
        "().__class__",
        "Symbol('s0').__class__",
        "Symbol(\"__import__('os')\")",
        "Symbol('S')",
        "Integer(__import__('os').getpid())",
        "Integer(10**10**10)",
        "Integer(99999999999999999999999)",
        "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
        "Pow(Pow(Symbol('s0'), Integer(4)), Integer(4))",
        "Pow(Integer(2), Integer(1000000))",
        "Pow(Integer(2), Symbol('s0'))",
        "LShift(Integer(1), Integer(1000000000))",
        "eval('1')",
        "Lambda(Integer(1))",
        "Add(*[1])",
        "Add(**{})",
        "Symbol('s0', positive=print())",
        "factorial(Integer(100000))",
        "[Integer(1)]",
        "lambda: 1",
        "Integer('1' * 9)",
        "Float('inf')",
        "Integer(1)\0",
        "Add(" * 200 + "Integer(1)" + ")" * 200,
        "Add(" + "Integer(1), " * 5000 + ")",
        "(" * 3000,
    ],
)
def test_expressions_that_none_does(text):
    with pytest.raises(ModelError, match="is not an expression"):
        expressions.check(text)


def test_trust_lets_pytorch_read_the_file_and_run_what_is_in_it(
    members, marker, tmp_path
):
    changed = {**members, "data/sample_inputs/model.pt": pickle.dumps(Payload(marker))}
    with pytest.raises(TilewrightError):
        load(written(tmp_path / "m.pt2", changed), trust=True)
    assert marker.exists()


def test_the_other_payloads_are_live_too(members, marker, tmp_path):
    text = json.loads(members[MODEL])
    (size, *_) = graph_of(text)["tensor_values"]["x"]["sizes"]
    change = replaced(size["as_expr"]["expr_str"], code(marker))
    with pytest.raises(TilewrightError):
        load(written(tmp_path / "m.pt2", edited(members, MODEL, change)), trust=True)
    assert marker.exists()


@pytest.mark.parametrize(
    "verb", [["check"], ["run"], ["compile"], ["bench", "--against", ""]]
)
def test_the_command_asks_for_trust(
    members, marker, tmp_path, monkeypatch, capsys, verb
):
    from tilewright.cli import app

    def change(data):
        data["config"]["table"] |= {"use_pickle": True, "path_name": "tensor_9"}

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    changed = edited(members, CONSTANTS, change)
    changed["data/constants/tensor_9"] = pickle.dumps(Payload(marker))
    path = written(tmp_path / "m.pt2", changed)
    assert app.run([*verb, str(path)]) == 1
    assert "--trust" in capsys.readouterr().err
    assert not marker.exists()
    assert app.run([*verb, str(path), "--trust"]) == 1
    assert marker.exists()
