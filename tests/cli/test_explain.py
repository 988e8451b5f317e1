"""explain: a page of a model, a comparison of two, the graph back as ONNX, bad input."""

import shutil
import subprocess

import numpy as np
import onnx
import pytest

from tilewright.driver import compile

FEW = ("--threads", "1", "--repeat", "2", "--no-roofline")


def test_a_model_is_explained_and_compared(command, perceptron, tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    found = command("explain", perceptron, "-o", old, *FEW)
    assert found.code == 0 and "old.html" in found.out
    assert old.read_text().startswith("<!doctype html>")
    found = command(
        "explain", perceptron, "-o", new, *FEW, "--no-fusion", "--diff", old
    )
    assert found.code == 0 and "times the speed" in found.out, found.err
    assert "Difference" in new.read_text() and "hidden" in found.out
    both = tmp_path / "both.html"
    found = command("explain", old, new, "-o", both, "--json")
    assert found.code == 0 and found.json["report"] == str(both)
    changes = {c for k in found.json["kernels"] for c in k["changes"]}
    assert {"new", "gone"} <= changes and both.read_text().startswith("<!doctype html>")


def test_a_symbolic_dimension_has_a_value(command, symbolic, tmp_path):
    page = tmp_path / "page.html"
    found = command("explain", symbolic, "-o", page, *FEW, "--dim", "batch=3")
    assert found.code == 0 and "float32[3, 8]" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.onnx",), "missing.onnx"),
        (("model.tw",), "not a model"),
        (("page.html",), "not a model"),
        (("a.html", "b.html"), "a.html"),
    ],
)
def test_what_cannot_be_explained_is_refused(command, arguments, said):
    found = command("explain", *arguments)
    assert found.code == 1 and said in found.err and "Traceback" not in found.err


def test_a_page_is_of_the_named_processor(command, perceptron, tmp_path):
    page = tmp_path / "page.html"
    found = command("explain", perceptron, "-o", page, *FEW, "--mcpu", "x86-64-v2")
    assert found.code == 0 and "xmm" in page.read_text(), found.err
    assert "ymm" not in page.read_text()


@pytest.mark.parametrize("target", ["vta", "opencl"])
def test_a_device_is_refused_with_what_explains_it(command, perceptron, target):
    found = command("explain", perceptron, "--target", target)
    assert (found.code, found.out) == (2, "")
    assert (
        f"--target: a page explains the kernels of a processor, and none of {target!r}"
        in (found.err)
    )
    found = command("compile", perceptron, "--target", target, "--emit", "schedule")
    assert found.code == 0 and "chosen: " in found.out


def test_a_report_is_a_page(command, perceptron, tmp_path):
    found = command("explain", perceptron, "-o", tmp_path / "page.pdf")
    assert found.code == 1 and "HTML page, not .pdf" in found.err


def test_the_optimized_graph_is_onnx_again(command, perceptron, tmp_path):
    path = tmp_path / "optimized.onnx"
    found = command("compile", perceptron, "--emit", "onnx", "-o", path)
    assert found.code == 0, found.err
    onnx.checker.check_model(onnx.load(path), full_check=True)
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    results = [compile(str(p), threads=1)(x) for p in (perceptron, path)]
    np.testing.assert_allclose(*results, rtol=1e-5)
    nameless = command("compile", perceptron, "--emit", "onnx")
    assert nameless.code == 1 and "-o" in nameless.err


BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
# What a user does with the keys, and what the page then shows: one line per broken expectation.
CHECKS = """
<script>
addEventListener("load", () => {
  const wrong = [];
  const expect = (ok, what) => ok || wrong.push(what);
  const $ = (s) => document.querySelector(s);
  const rows = () => [...$("#rows").tBodies[0].rows];
  expect(rows().length >= 2, "rows");
  const heads = [...$("#rows").tHead.querySelectorAll("button")];
  heads[2].click();
  const times = rows().map((r) => Number(r.cells[2].dataset.v));
  expect(times.every((t, n) => !n || times[n - 1] >= t), "sorted by time");
  const filter = $("input[data-for=rows]");
  filter.value = "no such kernel";
  filter.dispatchEvent(new Event("input"));
  expect(rows().every((r) => r.hidden), "filtered");
  filter.value = "";
  filter.dispatchEvent(new Event("input"));
  expect($("#details pre"), "details of the slowest kernel");
  const slider = $("#details input[type=range]");
  const before = $("#details .pair pre").textContent;
  const linked = () => document.querySelectorAll("#details .pair .linked").length;
  const loop = [...document.querySelectorAll("#details .pair [data-loop][tabindex]")]
    .find((l) => document.querySelector(
      `#details .pair [data-loop="${l.dataset.loop}"]:not([tabindex])`));
  loop.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  expect(linked() > 1, "Enter on a loop marks its code");
  slider.value = 0;
  slider.dispatchEvent(new Event("input"));
  expect(before !== $("#details .pair pre").textContent, "the slider changes the loops");
  const pan = $("#graph-after .pan"), svg = pan.querySelector("svg");
  const view = svg.getAttribute("viewBox");
  pan.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
  expect(view !== svg.getAttribute("viewBox"), "arrow keys move the graph");
  const find = $("#graph-after input");
  find.value = "relu";
  find.dispatchEvent(new Event("input"));
  expect(svg.querySelectorAll(".box.on").length === 1, "the search finds one node");
  $("button[data-shows=graph-before]").click();
  expect(!$("#graph-before").hidden && $("#graph-after").hidden, "tabs");
  expect(document.documentElement.scrollWidth <= innerWidth, "no wider than the screen");
  const result = document.createElement("output");
  result.id = "checked";
  result.textContent = wrong.length ? "WRONG: " + wrong.join("; ") : "all as expected";
  document.body.append(result);
});
</script>
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
def test_in_a_browser(command, perceptron, tmp_path, width):
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    page = tmp_path / "page.html"
    assert command("explain", perceptron, "-o", page, *FEW).code == 0
    checked = tmp_path / "checked.html"
    checked.write_text(page.read_text().replace("</body>", CHECKS + "</body>"))
    # A window is not narrower than 500 pixels: a frame is.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="{checked.as_uri()}" width="{width}" height="900"></iframe>'
    )
    quiet = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync".split()
    )
    quiet += ["--disable-background-networking", "--disable-component-update"]
    quiet += [
        "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    read = (
        "<script>const f = document.querySelector('iframe');"
        "f.onload = () => setTimeout(() => document.body.append("
        "f.contentDocument.getElementById('checked').textContent), 300);</script>"
    )
    frame.write_text(frame.read_text() + read)
    done = subprocess.run(
        [BROWSER, *quiet, "--virtual-time-budget=4000", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "all as expected" in done.stdout, done.stdout[-500:] + done.stderr[-500:]
