"""Task graphs: what is refused, and their text and JSON both ways."""

import numpy as np
import pytest

from tests.dataflow.graphs import ANY, convolution, random_graph
from tilewright.base.errors import InputError
from tilewright.dataflow import Edge, Node, TaskGraph, TaskGraphBuilder
from tilewright.dataflow.text import from_json, parse, show, to_dot, to_json

FIR = """graph fir volume=part
source x
element-wise scale  # fir/n0
downsampler sum
sink y
x -> scale: 1024
scale -> sum: 1024
sum -> y: 16 of 64
"""


def test_text_reads_back() -> None:
    assert show(parse(FIR)) == FIR
    for seed in range(50):
        text = show(random_graph(seed, ANY))
        assert show(parse(text)) == text


def test_json_reads_back() -> None:
    for graph in (parse(FIR), convolution("op").build("array")):
        assert show(from_json(to_json(graph))) == show(graph)


def test_dot_names_every_node() -> None:
    dot = to_dot(parse(FIR))
    assert dot.count("->") == 3 and 'label="fir, volume=part"' in dot
    assert '"sum\\ndownsampler"' in dot


def test_types_follow_the_reading() -> None:
    graph = convolution("op")
    position = 4 + 1
    assert graph.build("array").kind(position) == "downsampler"
    assert graph.build("part").kind(position) == "element-wise"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sum -> y: 16", "sum -> y: 0", "carries 0 elements"),
        ("scale -> sum: 1024", "scale -> sum: -3", "is neither a node .* nor an edge"),
        (
            "x -> scale: 1024",
            "x -> scale: 1024\nz -> sum: 1",
            "names z, which is not a node",
        ),
        (
            "element-wise scale",
            "upsampler scale",
            "declared upsampler, but reads 1024 and writes",
        ),
        (
            "x -> scale: 1024",
            "x -> scale: 1024\nsum -> scale: 1024",
            "sum writes 16 .* and 1024",
        ),
        ("sink y", "sink y\nsink y", "two nodes are named y"),
        ("sink y", "sink y\nbuffer b", "buffer b has no in-edge"),
        ("volume=part", "volume=all", "no volume 'all'"),
        ("graph fir", "graph", "expected `graph NAME"),
    ],
)
def test_a_broken_graph_is_refused_by_name(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(FIR.replace(old, new))


def test_a_cycle_is_shown() -> None:
    nodes = [Node(n) for n in "abc"]
    edges = [Edge(a, b, 4, 4, 4) for a, b in ((0, 1), (1, 2), (2, 0))]
    with pytest.raises(InputError, match="a cycle: a -> b -> c -> a"):
        TaskGraph("loop", nodes, edges, "part")


def test_json_that_is_none_is_refused() -> None:
    for text in (
        "{",
        "[]",
        '{"name": 1}',
        '{"name":"g","volume":"part","nodes":3,"edges":[]}',
    ):
        with pytest.raises(InputError):
            from_json(text)


def test_a_builder_names_unknown_and_repeated_nodes() -> None:
    b = TaskGraphBuilder("g")
    b.add("a")
    with pytest.raises(InputError, match="two nodes are named a"):
        b.add("a")
    with pytest.raises(InputError, match="unknown node z"):
        b.connect("a", "z", 1)


@pytest.mark.parametrize("volume", [0, -4, 2.5, 4.0, True, "4", None, 1 << 63], ids=str)
def test_a_volume_is_a_whole_number(volume: object) -> None:
    b = TaskGraphBuilder("g")
    b.source("x")
    b.sink("y")
    b.connect("x", "y", volume)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the edge x -> y carries"):
        b.build("part")


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"], ids=str)
def test_so_is_a_count(count: object) -> None:
    b = TaskGraphBuilder("g")
    b.add("f", count=count)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="compute f has a count of"):
        b.build("part")


def test_numbers_of_numpy_are_numbers() -> None:
    b = TaskGraphBuilder("g")
    b.source("x")
    b.add("f", count=np.int32(2))
    b.sink("y")
    b.connect("x", "f", np.int64(8))
    b.connect("f", "y", np.uint8(4))
    graph = b.build("part")
    assert (graph.tasks, graph.total_work) == (2, 16)
    assert show(from_json(to_json(graph))) == show(graph)
