"""Interned nodes: what is the same object, what is not, and what can be done to one."""

import copy
import gc
import math
import pickle
import signal
import struct

import pytest

from tilewright.base import dtypes
from tilewright.expr.nodes import (
    Add,
    Buffer,
    Call,
    Const,
    Load,
    Mul,
    Select,
    Var,
    const,
    var,
)
from tilewright.ir import node as core
from tilewright.ir.node import (
    Node,
    Rebuilder,
    instances,
    postorder,
    substitute,
    transform,
    unseen,
)


class Leaf(Node):
    tag: int


class Weight(Node):
    value: float


class Pair(Node):
    lhs: Node
    rhs: Node | None


class Meanwhile(Node):
    """Of which another one with the same fields is made while one is made, as threads may do."""

    tag: int

    def _derive(self) -> None:
        if self.tag not in MADE:
            MADE[self.tag] = None
            MADE[self.tag] = Meanwhile(self.tag)


MADE: dict[int, Node | None] = {}


class Many(Node):
    items: tuple[Node, ...]
    note: str


class Table(Node):
    rows: tuple[tuple[Node, ...], ...]


class Symbol(Node, intern=False):
    name: str


class Checked(Node):
    tag: int

    def _derive(self) -> object:
        if self.tag < 0:
            raise ValueError("negative")
        return self.tag * 2


def test_equal_fields_are_one_object():
    assert Leaf(3) is Leaf(3)
    assert Pair(Leaf(1), Leaf(2)) is Pair(Leaf(1), Leaf(2))
    assert Leaf(3) is not Leaf(4)
    assert Many((Leaf(1),), "a") is not Many((Leaf(1),), "b")


@pytest.mark.parametrize(
    ("a", "b"),
    [(0.0, -0.0), (1, True), (1, 1.0), (True, 1.0), (0, False), (0.0, 0), (2.0, 2)],
)
def test_values_that_python_calls_equal_are_kept_apart(a, b):
    assert Weight(a) is not Weight(b)
    assert Const(a, dtypes.float32) is not Const(b, dtypes.float32)


def test_nan_equals_itself_by_bits():
    assert Weight(math.nan) is Weight(float("nan"))
    other = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    assert Weight(other) is not Weight(math.nan)


def test_complex_parts_keep_their_signs():
    t = dtypes.complex64
    assert Const(complex(0.0, -0.0), t) is not Const(complex(0.0, 0.0), t)
    assert Const(complex(0.0, -0.0), t) is Const(complex(0.0, -0.0), t)


def test_constants_differ_by_dtype():
    assert const(1, dtypes.int64) is const(1, dtypes.int64)
    assert const(1, dtypes.int64) is not const(1, dtypes.int32)


def test_symbols_are_new_each_time():
    assert Symbol("i") is not Symbol("i")
    assert var("i") is not var("i")


def test_fields_are_read_only():
    leaf = Leaf(1)
    with pytest.raises(AttributeError, match=r"Leaf.tag is read-only; use replace\(\)"):
        leaf.tag = 2
    with pytest.raises(AttributeError, match="read-only"):
        del leaf.tag
    with pytest.raises(AttributeError):
        leaf.other = 2


def test_no_dict_and_few_bytes():
    assert not hasattr(Leaf(1), "__dict__")


def test_replace_makes_another_node():
    pair = Pair(Leaf(1), None)
    assert pair.replace(rhs=Leaf(2)) is Pair(Leaf(1), Leaf(2))
    with pytest.raises(TypeError, match="Pair has no field"):
        pair.replace(middle=Leaf(1))


def test_children_and_map_follow_the_annotations():
    a, b = Leaf(1), Leaf(2)
    assert Pair(a, None).children() == (a,)
    assert Many((a, b), "x").children() == (a, b)
    assert Many((a, b), "x").map(lambda n: a) is Many((a, a), "x")
    many = Many((a, b), "x")
    assert many.map(lambda n: n) is many
    assert a.children() == ()


def test_derive_checks_and_computes_once():
    assert Checked(4).derived == 8
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_a_node_that_failed_its_check_is_not_remembered():
    for _ in range(2):
        with pytest.raises(TypeError, match="operands are int64 and float32"):
            Add(var("i"), const(1.0, dtypes.float32))


def test_pickle_and_copy_give_the_same_object():
    e = Add(const(1), Mul(const(2), const(3)))
    assert pickle.loads(pickle.dumps(e)) is e
    assert copy.copy(e) is e
    assert copy.deepcopy(e) is e


@pytest.mark.usefixtures("own_garbage")
def test_the_table_is_weak():
    def leaves():
        gc.collect()
        core._remove_dead()
        return sum(key[0] is Leaf for key in core._table)

    before = leaves()
    kept = [Leaf(10_000 + n) for n in range(100)]
    assert leaves() == before + 100
    del kept
    assert leaves() == before


def test_two_threads_that_make_equal_nodes_get_one():
    assert Meanwhile(1) is MADE[1]
    assert Meanwhile(1) is MADE[1]


@pytest.mark.usefixtures("own_garbage")
def test_a_node_that_another_thread_made_may_have_died_meanwhile():
    dead, node = Leaf(20_000), object.__new__(Leaf)
    entry = core._Entry(node)
    entry.key = (Leaf, 20_000)
    old = core._table[entry.key]
    del dead
    assert old() is None
    core._table[entry.key] = old
    assert core._settled(entry, node) is node
    assert core._table[entry.key] is entry
    assert Leaf(20_000) is node


def test_dead_nodes_are_removed_by_one_thread_at_a_time(monkeypatch):
    class Watched(list):
        def pop(self):
            assert core._removing._is_owned()
            return super().pop()

    monkeypatch.setattr(core, "_dead", Watched([core._Entry(Leaf(1))]))
    core._remove_dead()
    assert not core._dead


def test_an_interrupt_among_dying_nodes_is_not_lost():
    """A KeyboardInterrupt raised inside a weak reference's callback would only be printed."""

    def on_alarm(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        for n in range(50):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + n * 1e-5)
                for _ in range(10_000_000):
                    Add(const(n), Mul(const(2), const(3)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_matching_by_position():
    match Add(const(1), const(2)):
        case Add(Const(value=1), Const(value=b)):
            assert b == 2
        case _:
            pytest.fail("no match")


def test_postorder_visits_each_node_once_children_first():
    x = var("x")
    shared = x + x
    e = shared * shared
    assert list(postorder(e)) == [x, shared, e]


def test_deep_terms_need_no_recursion():
    x = var("x")
    e = x
    for _ in range(30_000):
        e = e + x
    assert sum(1 for _ in postorder(e)) == 30_001
    y = var("y")
    replaced = substitute(e, {x: y})
    assert next(iter(postorder(replaced))) is y
    assert transform(e, lambda n: n) is e


def test_substitute_replaces_by_identity_in_one_pass():
    x, y = var("x"), var("y")
    assert substitute(x + y, {x: y, y: x}) is y + x
    assert substitute(x + y, {}) is x + y


def test_dtype_of_every_family_of_node():
    a = Buffer("A", (2,), dtypes.float32)
    i = var("i")
    assert Load(a, (i,)).dtype is dtypes.float32
    assert (i < 3).dtype is dtypes.bool_
    assert Select(i < 3, a[i], const(0.0, dtypes.float32)).dtype is dtypes.float32
    assert Call("isnan", (a[i],)).dtype is dtypes.bool_
    assert Var("p", dtypes.bool_).dtype is dtypes.bool_


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda i, a: Load(a, (i, i)), "A has 1 dimensions, indexed with 2"),
        (lambda i, a: Select(i, i, i), "the condition is int64, not bool"),
        (lambda i, a: Select(i < i, i, a[i]), "arms are int64 and float32"),
        (lambda i, a: Call("nope", (i,)), "unknown function 'nope'"),
        (lambda i, a: Call("exp", (i, i)), "exp takes 1 arguments, not 2"),
        (
            lambda i, a: bool(i < 3),
            "no truth value.*operators where, in te if_then_else",
        ),
    ],
)
def test_ill_typed_nodes_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make(var("i"), Buffer("A", (2,), dtypes.float32))


def test_children_in_rows():
    a, b, c = Leaf(1), Leaf(2), Leaf(3)
    table = Table(((a, b), (), (c,)))
    assert table.children() == (a, b, c)
    assert table.map(lambda x: x) is table
    assert table.map(lambda x: Leaf(x.tag + 1)) is Table(((b, c), (), (Leaf(4),)))
    assert list(postorder(table)) == [a, b, c, table]
    assert pickle.loads(pickle.dumps(table)) is table


def test_instances_are_substitutions():
    x, shared = Var("x", dtypes.int64), Var("y", dtypes.int64) + 2
    root = (x + shared) * (shared + 3)
    values = [const(n) for n in range(3)]
    made = list(instances(root, x, values))
    assert made == [substitute(root, {x: v}) for v in values]
    assert all(m.lhs.rhs is shared and m.rhs is root.rhs for m in made)
    assert list(instances(shared, x, values)) == [shared] * 3
    assert list(instances(x, x, values)) == values


def test_roots_that_share_nodes_are_walked_and_rebuilt_once():
    x, y = var("x"), var("y")
    shared = x + x
    roots = (shared * shared, shared + 1, shared)
    seen = set()
    assert [list(unseen(root, seen)) for root in roots] == [
        [x, shared, roots[0]],
        [const(1), roots[1]],
        [],
    ]
    changed = []

    def change(node):
        changed.append(node)
        return y if node is x else node

    rebuilt = Rebuilder(change)
    assert list(map(rebuilt, roots)) == [substitute(root, {x: y}) for root in roots]
    assert len(changed) == len(set(changed)) == 5
