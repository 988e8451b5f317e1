"""explore: the published table, searches, pages and bad input."""

import pytest

CONV = ["conv2d:1x28x28,6x5x5", "--pes", "16,128", "--expand", "conv=mv,op,lmv"]


def test_the_published_table(command):
    found = command("explore", *CONV, "--volume", "array")
    assert found.code == 0, found.err
    rows = {line.split()[0]: line.split()[2:] for line in found.out.splitlines()[3:6]}
    assert rows == {
        "mv": ["129,024", "145,728", "35,136"],
        "op": ["222,486", "194,113", "107,713"],
        "lmv": ["150,486", "35,713", "35,713"],
    }
    assert "volume=array" in found.out and "exact" in found.out


def test_a_model_by_search_as_json(command, perceptron):
    found = command("explore", perceptron, "--pes", "4,8", "--limit", 8, "--json")
    assert found.code == 0, found.err
    assert not found.json["exact"] and len(found.json["points"]) <= 8
    assert {p["pes"] for p in found.json["points"]} == {4, 8}
    assert all(found.json["bounds"][str(p["pes"])] <= p["makespan"] for p in found.json["points"])


def test_a_search_says_how_far_it_can_be_off(command, perceptron):
    found = command("explore", perceptron, "--pes", "4", "--limit", 3)
    assert (
        "searched: 3 combinations were scheduled; the best one there is may be up to" in found.out
    )


def test_the_report_is_a_page_with_a_picture(command, tmp_path):
    page = tmp_path / "explore.html"
    found = command("explore", *CONV, "--report", page)
    assert found.code == 0 and "wrote" in found.err
    text = page.read_text()
    assert text.startswith("<!doctype html>") and text.count("<svg") == 1
    assert "conv2d=mv" in text and "129,024" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope.onnx"], "no such file"),
        (["conv2d:3x2,6"], "no sizes of a conv2d: 3x2,6"),
        (["conv2d:1x3x3,4x5x5"], "no sizes of a conv2d"),
        (["matmul", "--pes", "0"], "processing elements [0]"),
        (["matmul", "--expand", "conv=mv"], "which the network does not have"),
        (["matmul", "--expand", "matmul=direct"], "it has: lmv, mv, op"),
    ],
)
def test_bad_input_is_one_line(command, arguments, message):
    found = command("explore", *arguments)
    assert found.code == 1
    assert message in found.err and found.err.count("\n") == 1
