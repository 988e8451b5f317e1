"""One small network with odd names, explained once, with its facts and its page."""

import json
from dataclasses import dataclass
from html.parser import HTMLParser

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.driver import compile
from tilewright.driver.explain import explained
from tilewright.driver.options import Options
from tilewright.frontends.load import load
from tilewright.report.explain.difference import _DATA
from tilewright.report.explain.facts import facts
from tilewright.report.explain.page import page

ODD = "a</script><img src=x onerror=alert(1)>"


def model():
    """A convolution, a shortcut and a product; one node and one tensor have odd names."""
    rng = np.random.default_rng(0)
    weights = {
        "block.0.weight": rng.standard_normal((8, 8, 3, 3)),
        "head.weight": rng.standard_normal((8 * 64, 10)),
    }
    node = helper.make_node
    nodes = [
        node("Identity", ["x"], ["same"], "nothing"),
        node(
            "Conv",
            ["same", "block.0.weight"],
            ["c"],
            "blocks.0.conv",
            pads=[1, 1, 1, 1],
        ),
        node("Add", ["c", "same"], ["shortcut"], "blocks.0.add"),
        node("Relu", ["shortcut"], [f"{ODD} tensor"], ODD),
        node("Flatten", [f"{ODD} tensor"], ["flat"], "flatten"),
        node("MatMul", ["flat", "head.weight"], ["y"], "blocks.0.o"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "small",
        [info("x", TensorProto.FLOAT, [1, 8, 8, 8])],
        [info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return made.SerializeToString()


@dataclass(frozen=True)
class Case:
    """profile, facts and page are of the same run."""

    profile: object
    facts: dict
    page: str

    @property
    def embedded(self):
        """What the page's script reads."""
        return json.loads(_DATA.search(self.page)[1])


@pytest.fixture(scope="session")
def case() -> Case:
    graph = load(model())
    exe = compile(graph, threads=1)
    x = np.ones((1, 8, 8, 8), np.float32)
    profile = exe.profile(x, repeat=3, peak_gflops=100.0, peak_gbs=10.0)
    made = explained(graph, Options(threads=1))
    found = facts("odd <model>.onnx", made, exe, profile, 1.5, (100.0, 10.0))
    return Case(profile, json.loads(json.dumps(found)), page(found))


class Parsed(HTMLParser):
    """Tags with their attributes, rows of tables by identifier, and what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.rows, self.table = [], [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        if tag == "table":
            self.table = dict(attrs).get("id")
        if tag == "tr":
            self.rows.setdefault(self.table, []).append([])
        if tag in ("td", "th"):
            self.rows[self.table][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if (
            self.rows.get(self.table)
            and self.rows[self.table][-1]
            and "td" in self.open
        ):
            self.rows[self.table][-1][-1] += data


@pytest.fixture(scope="session")
def parsed(case) -> Parsed:
    return Parsed(case.page)
