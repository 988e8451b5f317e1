"""The page that explains a model: all kernels, a profile's numbers, safe names, all in one file."""

import re
from copy import deepcopy

import numpy as np
import pytest

from tests.report.conftest import ODD
from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.text import human_time
from tilewright.driver import compile
from tilewright.lang import te
from tilewright.report.explain import difference, facts, page
from tilewright.schedule.trace import PRIMITIVES
from tilewright.targets.llvm.listing import loops_of_lines


def test_every_kernel_has_a_row_with_the_profiles_numbers(case, parsed):
    rows = [r for r in parsed.rows["rows"] if r and r[0].isdigit()]
    assert len(rows) == len(case.profile.rows) >= 2
    for found, row in zip(rows, case.profile.rows, strict=True):
        assert found[1] == row.name and found[2] == human_time(row.seconds)
        assert found[3] == f"{row.share:.1%}" and found[6] == f"{row.peak_share:.0%}"
        assert [float(n) for n in found[4:6]] == pytest.approx(
            [row.gflops, row.gbs], abs=0.06
        )
    for kernel, row in zip(case.embedded["kernels"], case.profile.rows, strict=True):
        assert (kernel["seconds"], kernel["flops"]) == (row.seconds, row.flops)


def test_the_summary_adds_up(case):
    s, rows = case.facts["summary"], case.profile.rows
    assert s["seconds"] == case.profile.total
    assert s["kernel_seconds"] == pytest.approx(sum(r.seconds for r in rows))
    assert s["between_seconds"] == max(0, s["seconds"] - s["kernel_seconds"])


def test_it_is_well_formed_and_asks_for_nothing_outside(case, parsed):
    assert not parsed.open
    for tag, attributes in parsed.tags:
        assert "src" not in attributes and tag != "link"
        assert attributes.get("href", "#").startswith("#")
    rest = case.page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\((?!#)", rest)
    policy = next(a["content"] for t, a in parsed.tags if "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_odd_names_stay_text(case, parsed):
    assert not any(tag == "img" for tag, _ in parsed.tags)
    assert sum(tag == "script" for tag, _ in parsed.tags) == 2
    assert any(n == ODD for k in case.embedded["kernels"] for n, _ in k["operators"])
    names = [n["name"] for n in case.facts["graphs"]["before"]["nodes"]]
    assert ODD in names and "blocks.0.o" in names


def test_links_lead_somewhere(parsed):
    known = {a["id"] for _, a in parsed.tags if "id" in a}
    links = {a["href"][1:] for t, a in parsed.tags if t == "a"}
    count = len([r for r in parsed.rows["rows"] if r and r[0].isdigit()])
    assert links - known == {f"k{n}" for n in range(count)}
    shown = {a["data-shows"] for _, a in parsed.tags if "data-shows" in a}
    assert shown <= known


def test_the_graph_is_shown_before_and_after(case):
    before, after = (case.facts["graphs"][side] for side in ("before", "after"))
    ops = [[n["op"] for n in g["nodes"]] for g in (before, after)]
    assert "Identity" in ops[0] and "Identity" not in ops[1]
    assert [ops[0][0], ops[0][-1]] == ["input", "output"]
    conv = next(n for n in before["nodes"] if n["op"] == "Conv")
    assert conv["weights"] == ["block.0.weight: float32[8, 8, 3, 3]"]
    assert all(a < b for a, b, _ in before["edges"])
    assert len(before["edges"]) == 8  # the shortcut is one of them


def test_rewrites_tell_where_and_why(case):
    found = case.facts["rewrites"]
    assert all(r["what"] and r["where"] and r["why"] for r in found)
    assert any(r["what"].startswith("fuse") for r in found)
    assert any(r["where"] == "nothing" for r in found)  # the Identity


def test_what_is_left_as_it_was_is_no_rewrite(case):
    reason = {"rule": "_product", "producer": "p", "into": "q", "reason": "too wide"}
    log = [events.Event(k, 0.0, None, 0, reason) for k in ("not-fused", "fuse")]
    made = [*facts._rewrites(log)]
    assert [(r["what"], r["taken"]) for r in made] == [
        ("not fused (product)", False),
        ("fuse (product)", True),
    ]
    text = page._rewrites({**case.facts, "rewrites": made})
    assert "1 rewrite by " in str(text) and "1 other not taken" in str(text)


def test_buffers_of_one_step_do_not_overlap(case):
    arena = case.facts["memory"]
    assert arena["buffers"] and len(arena["steps"]) >= 2
    for n, a in enumerate(arena["buffers"]):
        assert a["offset"] + a["bytes"] <= arena["bytes"]
        for b in arena["buffers"][n + 1 :]:
            together = a["first"] < b["last"] and b["first"] < a["last"]
            apart = (
                a["offset"] + a["bytes"] <= b["offset"]
                or b["offset"] + b["bytes"] <= a["offset"]
            )
            assert apart or not together


def slowest(case):
    return max(case.facts["kernels"], key=lambda k: k["seconds"])


def test_the_loops_after_each_primitive(case):
    for kernel in case.facts["kernels"]:
        names = [s["step"] for s in kernel["steps"]]
        assert names[0] == "the plain loops"
        for name in names[1:]:
            call = re.match(r"s\.(\w+)\(", name)
            assert call[1] in PRIMITIVES if call else "constants" in name
        texts = [[kernel["lines"][n] for n in s["lines"]] for s in kernel["steps"]]
        assert all(t[0].startswith("kernel ") for t in texts)
        assert len({tuple(t) for t in texts}) > 1 or len(texts) == 1


def test_code_is_linked_to_loops_of_the_last_step(case):
    kernel = slowest(case)
    last = [kernel["lines"][n] for n in kernel["steps"][-1]["lines"]]
    loops = {m[1] for line in last if (m := re.match(r"\s*for (\S+) in", line))}
    linked = {loop for _, loop in kernel["code"] if loop}
    assert linked and linked <= {re.sub(r"[^\w.]", "_", loop) for loop in loops}


def test_each_notation_has_the_computation_or_a_reason(case):
    for kernel in case.facts["kernels"]:
        assert set(kernel["notations"]) == {"computation", "te", "mdh", "lift"}
        assert all(all(texts) for texts in kernel["notations"].values())
    assert any(
        "reduce_axis" in text
        for k in case.facts["kernels"]
        for text in k["notations"]["te"]
    )


def test_alternatives_have_a_foreseen_time_or_a_reason(case):
    found = slowest(case)["alternatives"]
    assert [a["chosen"] for a in found].count(True) == 1
    assert len(found) > 3 and len({a["sketch"] for a in found}) > 1
    assert all((a["seconds"] or 0) > 0 or a["reason"] for a in found)


ASSEMBLY = """\
f:                                      # @f
# %bb.0:                                # %entry
	xorl	%eax, %eax
.LBB0_1:                                # %loop.i.o.2
                                        # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_2 Depth 2
	movq	%rax, %rcx
	.p2align	4
.LBB0_2:                                # %loop.j.7
                                        #   Parent Loop BB0_1 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
	vaddps	%ymm0, %ymm1, %ymm1             # comment
	jne	.LBB0_2
# %bb.3:                                # %after8
                                        #   in Loop: Header=BB0_1 Depth=1
	incq	%rax
# %bb.4:                                # %after3
	retq
"""


def test_lines_of_assembler_text_know_their_loop():
    found = [(line.split()[0], loop) for line, loop in loops_of_lines(ASSEMBLY)]
    assert found == [
        ("f:", ""),
        ("xorl", ""),
        (".LBB0_1:", "i.o"),
        ("movq", "i.o"),
        (".LBB0_2:", "j"),
        ("vaddps", "j"),
        ("jne", "j"),
        ("incq", "i.o"),
        ("retq", ""),
    ]


# ---------------------------------------------------------------------- two reports


def changed(facts):
    new = deepcopy(facts)
    first, *_, last = new["kernels"]
    first["seconds"] /= 2
    first["parameters"][0][1] = "another"
    last["name"] = "another kernel"
    return new


def test_a_comparison_finds_times_schedules_and_kernels(case, tmp_path):
    new = changed(case.facts)
    found = difference.compared(case.facts, new)
    rows = {r["name"]: r for r in found["kernels"]}
    first = case.facts["kernels"][0]
    assert rows[first["name"]]["speedup"] == pytest.approx(2)
    assert rows[first["name"]]["changes"] == [
        f"{first['parameters'][0][0]}: {first['parameters'][0][1]} → another"
    ]
    assert rows["another kernel"]["changes"] == ["new"]
    assert rows[case.facts["kernels"][-1]["name"]]["changes"] == ["gone"]
    assert "2.00×" in difference.text(found) and "2.00×" in difference.page(found)
    assert 'id="difference"' in page.page(new, case.facts)


def test_the_same_report_twice_has_no_difference(case):
    found = difference.compared(case.facts, case.facts)
    assert not any(r["changes"] for r in found["kernels"]) and found["same_machine"]
    assert "no kernel changed" in difference.text(found)


def test_times_of_another_machine_have_no_ratio(case):
    faster = changed(case.facts)
    other = {**faster, "machine": {**case.facts["machine"], "threads": 7}}
    found = difference.compared(case.facts, other)
    for said in (difference.text(found), str(difference.section(found))):
        assert "do not compare" in said
        assert "another" in said  # schedules and kernels do
        assert "×" not in said and "times the speed" not in said
    assert all(r["speedup"] is None for r in (*found["kernels"], found["between"]))
    same = difference.compared(case.facts, case.facts)
    assert "do not compare" not in difference.text(same) + difference.page(same)


def test_time_between_kernels_is_a_row_where_it_changed(case):
    summary = case.facts["summary"]
    slower = {**summary, "between_seconds": summary["between_seconds"] + 1}
    found = difference.compared(case.facts, {**case.facts, "summary": slower})
    for said in (difference.text(found), difference.page(found)):
        assert "between kernels" in said
    same = difference.compared(case.facts, case.facts)
    assert "between kernels" not in difference.text(same) + difference.page(same)
    assert [r["name"] for r in found["kernels"]] == [r["name"] for r in same["kernels"]]


def test_a_page_gives_back_its_facts(case, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(case.page)
    assert difference.read(path)["kernels"] == case.facts["kernels"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<p>other</p>", "this is not a report"),
        (
            '<script type="application/json" id="facts">{1</script>',
            "this is not a report",
        ),
        (
            '<script type="application/json" id="facts">[]</script>',
            "this is not a report",
        ),
        (
            '<script type="application/json" id="facts">{"format":9,"kernels":[]}</script>',
            "format 9",
        ),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, text, said):
    path = tmp_path / "page.html"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        difference.read(path)


# ---------------------------------------------------------------------- notebooks


def test_notebooks_show_executables_profiles_and_functions(case):
    shown = case.profile._repr_html_()
    for row in case.profile.rows:
        assert f"<td>{row.name.replace('<', '&lt;').replace('>', '&gt;')}</td>" in shown
    A = te.placeholder((8,), name="A")
    C = te.compute((8,), lambda i: A[i] * 2.0, name="C")
    function = te.build(te.create_schedule(C.op), [A, C])
    assert "for C.i in 8" in function._repr_html_()


def test_an_executable_shows_its_ends():
    from tests.report.conftest import model

    exe = compile(model(), threads=1)
    shown = exe._repr_html_()
    assert "<td>x</td><td>float32[1, 8, 8, 8]</td>" in shown and "1 thread" in shown
    assert np.isfinite(exe(np.ones((1, 8, 8, 8), np.float32))).all()
