"""Conditions on extents that PyTorch resolves when it traces: other extents are refused."""

import re

import pytest
import torch
from torch.export import Dim

import tilewright as tw
from tilewright.base.errors import InputError, ModelError, UnsupportedError
from tilewright.driver.compile import text
from tilewright.frontends.torch import guards, to_graph, to_onnx
from tilewright.frontends.torch import load as load_program
from tilewright.runtime.conditions import AppliedFunction, ExtentCondition

AUTO = Dim.AUTO
LIMIT = 1 << 30


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


def chosen(condition):
    """A function with another result where the condition does not hold."""

    def function(*tensors):
        sizes = [t.shape[0] for t in tensors]
        factor = 2 if condition(*sizes) else 3
        return tuple(factor * t for t in tensors)

    return function


# A condition on the numbers of rows; rows where PyTorch traces it; where it has the same result;
# and where it has the other one.
KINDS = {
    "equal": (lambda n, m: n != m, (4, 5), (7, 6), (6, 6)),
    "greater": (lambda n, m: n > m, (5, 4), (9, 3), (4, 4)),
    "not greater": (lambda n, m: n > m, (4, 5), (4, 4), (5, 4)),
    "sum": (lambda n, m: n - m == 1, (5, 4), (3, 2), (4, 4)),
    "product": (lambda n, m: n * m > 20, (5, 6), (3, 7), (4, 5)),
    "remainder": (lambda n, m: n * m % 6 == 0, (4, 3), (8, 9), (4, 5)),
    "part": (lambda n: n // 3 % 2 == 1, (4,), (5,), (6,)),
    "absolute": (lambda n, m: abs(n - m) < 3, (4, 5), (7, 9), (4, 7)),
    "maximum": (lambda n, m: max(n, m) < 7, (4, 5), (6, 2), (2, 7)),
    "minimum": (lambda n, m: min(n, m) < 7, (4, 5), (8, 6), (8, 7)),
    "unequal to a number": (lambda n: n != 7, (4,), (8,), (7,)),
    "float": (lambda n: n * 0.5 > 1.7, (4,), (5,), (3,)),
    "quotient": (lambda n, m: n / m > 1.5, (5, 3), (8, 5), (6, 4)),
    "root": (lambda n: int(n**0.5) == 2, (4,), (8,), (9,)),
    "power": (lambda n: n**2 > 10, (4,), (5,), (3,)),
    "both": (lambda n, m: n != 3 and m != n, (4, 5), (6, 3), (5, 5)),
}


def rows(*counts):
    return tuple(torch.arange(3.0 * n).reshape(n, 3) for n in counts)


def exported(module, arguments, **options):
    shapes = (tuple({0: AUTO} for _ in arguments),)
    return torch.export.export(module, arguments, dynamic_shapes=shapes, **options)


def same(found, wanted):
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_extents_with_another_result_of_a_condition_are_refused(kind, strict):
    condition, traced, right, wrong = KINDS[kind]
    module = Module(chosen(condition))
    program = exported(module, rows(*traced), strict=strict)
    exe = tw.compile(program, threads=1)
    for counts in (traced, right):
        same(exe(*rows(*counts)), module(*rows(*counts)))
    with pytest.raises(InputError) as caught:
        exe(*rows(*wrong))
    assert caught.value.code == "TW-SIZE"


@pytest.fixture(scope="module")
def greater():
    """A program for more rows of the first input, and the names of its dimensions."""
    module = Module(chosen(lambda n, m: n > m))
    program = exported(module, rows(5, 4))
    exe = tw.compile(program, threads=1)
    return module, program, [v.shape[0] for v in exe.graph.inputs]


def test_the_condition_is_named(greater):
    _, program, (n, m) = greater
    message = f"{n} is 4, {m} is 6, and the model is made for {n} > {m}"
    with pytest.raises(InputError, match=re.escape(message)):
        tw.compile(program, threads=1)(*rows(4, 6))


def test_values_in_dims(greater):
    module, program, (n, m) = greater
    with pytest.raises(InputError, match=f"made for {n} > {m}"):
        tw.compile(program, dims={n: 4, m: 4}, threads=1)
    with pytest.raises(InputError, match=f"made for {n} > {m}"):
        text(program, "plan", dims={n: 4, m: 4})
    exe = tw.compile(program, dims={m: 4}, threads=1)
    same(exe(*rows(6, 4)), module(*rows(6, 4)))
    with pytest.raises(
        InputError, match=f"{n} is 3, and the model is made for {n} > 4"
    ):
        exe(*rows(3, 4))


@pytest.mark.parametrize("saved", [False, True])
def test_ranges_and_artifacts(greater, saved, tmp_path):
    module, program, (n, m) = greater
    sizes = {n: (3, 6), m: (2, 6)}
    exe = tw.compile(program, dims=sizes, jit=False, cache=False, threads=1)
    if saved:
        exe.save(tmp_path / "m.tw")
        exe = tw.load(tmp_path / "m.tw", threads=1)
    for counts in ((5, 4), (3, 2)):
        same(exe(*rows(*counts)), module(*rows(*counts)))
    for _ in range(2):  # also where shapes of a recent call are not looked up
        with pytest.raises(InputError, match=f"made for {n} > {m}"):
            exe(*rows(4, 4))


def test_a_saved_program(greater, tmp_path):
    module, program, _ = greater
    torch.export.save(program, tmp_path / "m.pt2")
    exe = tw.compile(tmp_path / "m.pt2", threads=1)
    same(exe(*rows(7, 4)), module(*rows(7, 4)))
    with pytest.raises(InputError, match="and the model is made for"):
        exe(*rows(4, 7))


def test_extents_of_a_range_that_one_condition_excludes(tmp_path):
    """No code is made for them; where none is left, there is an error."""
    module = Module(chosen(lambda n: n % 2 == 0))
    program = exported(module, rows(4))
    (n,) = tw.compile(program, threads=1).graph.inputs[0].shape[:1]
    how = {"jit": False, "cache": False, "threads": 1}
    exe = tw.compile(program, dims={n: (2, 8)}, **how)
    same(exe(*rows(6)), module(*rows(6)))
    with pytest.raises(InputError, match="may be 2 to 8 in steps of 2"):
        exe(*rows(5))
    with pytest.raises(InputError, match=r"made for"):
        tw.compile(program, dims={n: [3, 5]}, **how)


class Chunked(torch.nn.Module):
    def forward(self, x):
        return torch.chunk(x, x.shape[1] + 1)


def test_parts_by_chunk():
    """Twelve rows have four parts, and so have eleven; six have three of two."""
    module = Chunked()
    x = torch.randn(12, 3)
    exe = tw.compile(module, x, dynamic_shapes=({0: AUTO},), threads=1)
    for n in (11, 14):
        x = torch.randn(n, 3)
        same(exe(x), module(x))
    for n in (6, 9):
        with pytest.raises(InputError, match="and the model is made for"):
            exe(torch.randn(n, 3))


class Nested(torch.nn.Module):
    def forward(self, x, several, *others, named=None, table=None):
        total = x.sum()
        for y in [*several, *others, named, table["q"]]:
            if y.shape[0] > x.shape[0]:
                total = total + y.sum()
        return total


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_conditions_on_nested_arguments(strict, saved, tmp_path):
    def given(*counts):
        x, a, b, c, d, e = rows(*counts)
        return (x, [a, b], c), {"named": d, "table": {"q": e}}

    arguments, named = given(4, 5, 6, 7, 8, 9)
    one = {0: AUTO}
    shapes = {"x": one, "several": [one, one], "others": (one,)}
    shapes |= {"named": one, "table": {"q": one}}
    module = Nested()
    program = torch.export.export(
        module, arguments, named, dynamic_shapes=shapes, strict=strict
    )
    if saved:
        torch.export.save(program, tmp_path / "m.pt2")
        program = load_program(tmp_path / "m.pt2", memory_limit=LIMIT)
    exe = tw.compile(program, threads=1)
    for place in range(1, 6):
        counts = [6] * 6
        counts[0] = 5
        arguments, named = given(*counts)
        torch.testing.assert_close(
            exe(*arguments, **named), module(*arguments, **named)
        )
        counts[place] = 5
        arguments, named = given(*counts)
        with pytest.raises(InputError, match=r"is 5.* and the model is made for"):
            exe(*arguments, **named)


class Shifted(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y.sum(), y * 2


@pytest.mark.parametrize(
    ("first", "second", "traced", "right", "wrong"),
    [
        ("h", "h + 1", (4, 5), (6, 7), (6, 8)),
        ("2*h", "h", (8, 4), (6, 3), (7, 3)),
        ("2*h", "3*h + 1", (8, 13), (6, 10), (6, 13)),
        ("2*h + 1", "3*h", (9, 12), (7, 9), (8, 9)),
    ],
)
def test_dimensions_derived_from_one_another(first, second, traced, right, wrong):
    h = Dim("h", min=2, max=50)
    shapes = tuple({0: eval(text, {"h": h})} for text in (first, second))
    module = Shifted()
    exe = tw.compile(module, rows(*traced), dynamic_shapes=shapes, threads=1)
    same(exe(*rows(*right)), module(*rows(*right)))
    with pytest.raises(InputError):
        exe(*rows(*wrong))


class Asserted(torch.nn.Module):
    def forward(self, x, y):
        torch._check(x.shape[0] > y.shape[0])
        return x.sum() + y.sum()


def test_conditions_that_the_program_checks_when_it_runs():
    program = torch.export.export(
        Asserted(),
        rows(5, 4),
        dynamic_shapes=({0: AUTO}, {0: AUTO}),
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    exe = tw.compile(program, threads=1)
    torch.testing.assert_close(exe(*rows(6, 3)), Asserted()(*rows(6, 3)))
    with pytest.raises(InputError, match="and the model is made for"):
        exe(*rows(3, 6))


def test_torch_compile_asks_for_another_graph():
    function = chosen(lambda n, m: n > m)
    fast = torch.compile(function, backend="tilewright", dynamic=True)
    with torch.no_grad():
        for counts in ((5, 4), (4, 5), (6, 2), (3, 3), (3, 7)):
            same(fast(*rows(*counts)), function(*rows(*counts)))


UNREADABLE = {
    "all sizes": "L['flat_args'][0].size() == 5",
    "an offset of an axis": "L['flat_args'][0].storage_offset()[0] == 0",
    "a size from the end": "L['flat_args'][0].size()[-1] == 3",
    "a call": "__import__('os').system('true') == 0",
    "another function": "math.cos(L['x'].size()[0]) > 0",
    "a comparison of three": "1 < L['x'].size()[0] < 9",
    "another property": "L['x'].numel() > 3",
    "a text": "L['x'] == 'linear'",
    "a large number": f"L['x'].size()[0] < {10**30}",
    "no number": "L['x'].size()[0] < math.nan",
    "a key that ends a text": "L['x\"); f(\"'].size()[0] > 3",
    "a lambda": "(lambda: 1)() == 1",
    "a step": "L['x'].size()[0:1] == 1",
    "nothing": "",
    "many calls in one another": "abs(" * 200 + "1" + ")" * 200,
    "keywords": "max(L['x'].size()[0], 1, key=f) > 1",
    "arguments of a size": "L['x'].size(0) > 1",
    "no operands": "max() > 1",
    "shifts": "(1 << L['x'].size()[0]) > 1",
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_guards_that_cannot_be_read_are_errors(kind, greater):
    _, program, _ = greater
    text = UNREADABLE[kind]
    assert not guards.check(text)
    kept = program._guards_code
    program._guards_code = [*kept, text]
    try:
        with pytest.raises(UnsupportedError, match="which cannot be checked"):
            tw.compile(program, threads=1)
    finally:
        program._guards_code = kept


@pytest.mark.parametrize(
    "text", ["L['z'].size()[0] > 1", "L['flat_args'][0].size()[7] > 1", "s999 > 1"]
)
def test_guards_about_nothing_that_is_given_are_errors(text, greater):
    _, program, _ = greater
    kept = program._guards_code
    program._guards_code = [*kept, text]
    try:
        with pytest.raises(UnsupportedError, match="which cannot be checked"):
            tw.compile(program, threads=1)
    finally:
        program._guards_code = kept


def test_a_condition_that_pytorch_cannot_print_is_an_error(greater):
    """Its printer asserts that exponents are whole and not negative."""
    extents = guards._Extents(greater[1], {})
    rows = next(e for e in extents._dims.values() if e.is_Symbol)
    for term in (1 / rows, rows + rows**-2):
        with pytest.raises(UnsupportedError, match="which cannot be checked") as found:
            extents._read(term)
        assert str(term) in found.value.message


def test_a_guard_that_never_holds(greater):
    _, program, _ = greater
    kept = program._guards_code
    program._guards_code = ["L['flat_args'][0].size()[1] == 4"]
    try:
        with pytest.raises(ModelError, match="3 == 4 is never true"):
            tw.compile(program, threads=1)
    finally:
        program._guards_code = kept


def test_terms_of_guards():
    def resolve(leaf):
        return f"{leaf.place}.{leaf.what}.{leaf.axis}"

    text = "((-1) + L['a'][0].size()[1]) // L['n'] == -L['b'].c.stride()[2]"
    size, number, stride = "L['a'][0].size.1", "L['n']..0", "L['b'].c.stride.2"
    divided = AppliedFunction("//", (AppliedFunction("+", (-1, size)), number))
    expected = AppliedFunction("==", (divided, AppliedFunction("neg", (stride,))))
    assert guards.read(text, resolve) == expected
    # Artifacts have no truth values.
    assert ExtentCondition(guards.read("True", resolve)).to_json() is not True


@pytest.mark.parametrize("writer", ["ours", "PyTorch's"])
def test_conditions_and_ranges_go_through_onnx(writer):
    """ONNX has no place for them but the model's metadata; they are read again and enforced."""
    pytest.importorskip("onnxscript")
    shapes = (({0: Dim("n", min=3, max=64)}, {0: Dim("m", max=63)}),)
    module = Module(lambda x, y: x.sum() + 1 if x.shape[0] > y.shape[0] else y.sum())
    program = torch.export.export(module, rows(6, 3), dynamic_shapes=shapes)
    if writer == "ours":
        graph, _ = to_graph(program, limit=LIMIT, standard=True)
        model = tw.to_onnx(graph)
    else:
        model = to_onnx(program)
    exe = tw.compile(model, threads=1, cache=False)

    def call(n, m):
        return float(exe(*(x.numpy() for x in rows(n, m))))

    assert call(5, 2) == float(rows(5)[0].sum() + 1)
    for sizes, message in (((4, 4), "made for"), ((70, 4), "is 70"), ((2, 1), "is 2")):
        with pytest.raises(InputError, match=message):
            call(*sizes)


def test_a_hidden_symbol_goes_through_pytorchs_onnx():
    pytest.importorskip("onnxscript")
    module = Module(lambda x: x.reshape(-1, 2, 3) + 1)
    program = torch.export.export(
        module, rows(6), dynamic_shapes=(({0: 2 * Dim("h")},),)
    )
    exe = tw.compile(to_onnx(program), threads=1, cache=False)
    assert exe(rows(4)[0].numpy()).shape == (2, 2, 3)
    with pytest.raises(InputError, match="is 5"):
        exe(rows(5)[0].numpy())
