"use strict";
// Behavior of reports: tables that sort and filter, graphs that pan, and the details of a kernel.
// The page reads without it; every figure and table is in the HTML.

const make = (tag, options = {}, ...parts) => {
  const node = Object.assign(document.createElement(tag), options);
  node.append(...parts);
  return node;
};
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const source = document.getElementById("facts");
const facts = source ? JSON.parse(source.textContent) : {};

// ------------------------------------------------------------------ tables

function sortable(table) {
  const heads = all("thead th", table);
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", title: "Sort" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      const key = (row) => row.cells[column].dataset.v
        ?? row.cells[column].textContent.replace(/(\d),(?=\d{3})/g, "$1").replace(/%$/, "");
      rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const order = x !== "" && y !== "" && !isNaN(x) && !isNaN(y) ? x - y : x.localeCompare(y);
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function filtered(input) {
  const table = document.getElementById(input.dataset.for);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}

// ------------------------------------------------------------------ graphs

function panned(frame) {
  const svg = frame.querySelector("svg");
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  let view;
  const show = () => svg.setAttribute("viewBox", view.join(" "));
  const ratio = () => frame.clientHeight / Math.max(1, frame.clientWidth);
  const start = () => {
    const w = Math.max(300, frame.clientWidth);
    view = [width / 2 - w / 2, -10, w, w * ratio()];
    show();
  };
  const whole = () => {
    const w = Math.max(width, height / ratio()) * 1.04;
    view = [width / 2 - w / 2, -height * 0.02, w, w * ratio()];
    show();
  };
  const zoom = (factor, x = 0.5, y = 0.5) => {
    view[0] += view[2] * x * (1 - factor);
    view[1] += view[3] * y * (1 - factor);
    view[2] *= factor;
    view[3] *= factor;
    show();
  };
  const move = (x, y) => { view[0] += view[2] * x; view[1] += view[3] * y; show(); };
  frame.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const box = frame.getBoundingClientRect();
    const at = [(e.clientX - box.left) / box.width, (e.clientY - box.top) / box.height];
    zoom(e.deltaY > 0 ? 1.15 : 1 / 1.15, ...at);
  }, { passive: false });
  const held = new Map();
  frame.addEventListener("pointerdown", (e) => {
    held.set(e.pointerId, e);
    frame.setPointerCapture(e.pointerId);
  });
  frame.addEventListener("pointermove", (e) => {
    const before = held.get(e.pointerId);
    if (!before) return;
    const others = [...held.values()].filter((h) => h.pointerId !== e.pointerId);
    if (others.length) {
      const far = (a) => Math.hypot(a.clientX - others[0].clientX, a.clientY - others[0].clientY);
      zoom(far(before) / Math.max(1, far(e)));
    } else {
      const dx = (before.clientX - e.clientX) / frame.clientWidth;
      move(dx, (before.clientY - e.clientY) / frame.clientHeight);
    }
    held.set(e.pointerId, e);
  });
  for (const end of ["pointerup", "pointercancel"])
    frame.addEventListener(end, (e) => held.delete(e.pointerId));
  const keys = {
    ArrowLeft: () => move(-0.1, 0), ArrowRight: () => move(0.1, 0),
    ArrowUp: () => move(0, -0.1), ArrowDown: () => move(0, 0.1),
    "+": () => zoom(1 / 1.25), "-": () => zoom(1.25), 0: whole,
  };
  frame.addEventListener("keydown", (e) => {
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  const tools = frame.previousElementSibling;
  const acts = { in: () => zoom(1 / 1.25), out: () => zoom(1.25), fit: whole };
  for (const button of all("button[data-act]", tools))
    button.addEventListener("click", acts[button.dataset.act]);
  const boxes = all(".box", svg);
  const search = tools.querySelector("input");
  let found = 0;
  const look = (next) => {
    const word = search.value.toLowerCase();
    const hits = boxes.filter((b) => word && b.textContent.toLowerCase().includes(word));
    for (const b of boxes) {
      b.classList.toggle("on", hits.includes(b));
      b.classList.toggle("off", Boolean(word) && !hits.includes(b));
    }
    tools.querySelector("output").textContent = word ? `${hits.length} found` : "";
    if (!hits.length) return;
    found = next ? (found + 1) % hits.length : 0;
    const to = hits[found].querySelector("rect");
    view[0] = Number(to.getAttribute("x")) + Number(to.getAttribute("width")) / 2 - view[2] / 2;
    view[1] = Number(to.getAttribute("y")) - view[3] / 2;
    show();
  };
  search.addEventListener("input", () => look(false));
  search.addEventListener("keydown", (e) => { if (e.key === "Enter") look(true); });
  const tab = frame.closest("[data-panel]");
  frame.start = start;
  if (!tab || !tab.hidden) start();
}

function tabbed(group) {
  const buttons = all("button[data-shows]", group);
  const choose = (button) => {
    for (const b of buttons) {
      b.setAttribute("aria-pressed", b === button);
      document.getElementById(b.dataset.shows).hidden = b !== button;
    }
    for (const f of all(".pan", document.getElementById(button.dataset.shows))) f.start();
  };
  for (const b of buttons) b.addEventListener("click", () => choose(b));
}

// ------------------------------------------------------------------ a kernel

const time = (s) => (s >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} µs`);
const title = (text) => make("h3", {}, text);
const sayings = (lines) => make("ul", {}, ...lines.map((text) => make("li", {}, text)));

function grid(heading, rows) {
  const head = make("tr", {}, ...heading.map((h) => make("th", {}, h)));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell) => {
    const td = make("td", {}, cell);
    if (/^[\d.,]+ ?(µs|ms|×|%)?$/.test(cell.textContent ?? cell)) td.className = "n";
    return td;
  })));
  return make("div", { className: "scroll tall" },
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function block(text) {
  return make("pre", { tabIndex: 0 }, ...text.split("\n").map((l) => make("div", {}, l || " ")));
}

const label = (name) => name.replace(/[^A-Za-z0-9_.]/g, "_").slice(0, 60);

function listing(lines, before) {
  const old = new Map();
  for (const l of before) old.set(l.trim(), (old.get(l.trim()) ?? 0) + 1);
  const rows = lines.map((text) => {
    const row = make("div", {}, text);
    const left = old.get(text.trim()) ?? 0;
    if (left) old.set(text.trim(), left - 1);
    else if (before.length) row.className = "new";
    const loop = text.match(/^\s*for (\S+) in /);
    if (loop) Object.assign(row, { tabIndex: 0 }).dataset.loop = label(loop[1]);
    return row;
  });
  return make("pre", { tabIndex: 0 }, ...rows);
}

// A line of the loops or of the code marks all lines of the same loop on both sides.
function linked(place) {
  place.addEventListener("keydown", (e) => {
    if (e.key === "Enter") e.target.click();
  });
  place.addEventListener("click", (e) => {
    const row = e.target.closest("[data-loop]");
    if (!row) return;
    const on = !row.classList.contains("linked");
    for (const r of all("[data-loop]", place))
      r.classList.toggle("linked", on && r.dataset.loop === row.dataset.loop);
    const other = all("pre", place).find((pre) => !pre.contains(row));
    const first = other && other.querySelector(".linked");
    if (first) other.scrollTop = first.offsetTop - other.offsetTop - 40;
  });
}

function loopsOf(kernel) {
  const slider = make("input", { type: "range", min: 0, max: kernel.steps.length - 1,
    value: kernel.steps.length - 1, ariaLabel: "step of the schedule" });
  const name = make("code", {});
  const loops = make("div", {});
  const text = (n) => kernel.steps[n].lines.map((l) => kernel.lines[l]);
  const show = () => {
    const n = Number(slider.value);
    name.textContent = `${n} of ${kernel.steps.length - 1}: ${kernel.steps[n].step}`;
    loops.replaceChildren(listing(text(n), n ? text(n - 1) : []));
  };
  slider.addEventListener("input", show);
  show();
  const code = make("pre", { tabIndex: 0 }, ...kernel.code.map(([line, loop]) => {
    const row = make("div", {}, line.replace(/\t/g, "  "));
    if (loop) { row.dataset.loop = loop; row.title = `in loop ${loop}`; }
    return row;
  }));
  const left = make("div", {}, make("div", { className: "tools" }, slider), name, loops);
  const cut = kernel.code_lines > kernel.code.length ? `, the first ${kernel.code.length}` : "";
  const right = make("div", {}, make("p", { className: "soft" },
    kernel.code.length ? `Code: ${kernel.code_lines} lines${cut}. Click a loop to find its code.`
      : "There is no assembler text for this target."), code);
  const both = make("div", { className: "pair" }, left, right);
  linked(both);
  return both;
}

function alternativesOf(kernel) {
  const mine = kernel.alternatives.find((a) => a.chosen);
  const rows = kernel.alternatives.map((a) => [
    a.chosen ? `${a.sketch} (chosen)` : a.sketch,
    a.change || (a.chosen ? "" : "defaults"),
    a.seconds === null ? "–" : time(a.seconds),
    a.seconds !== null && mine && mine.seconds ? `${(a.seconds / mine.seconds).toFixed(2)}×` : "",
    a.reason,
  ]);
  return grid(["sketch", "instead", "foreseen", "of chosen", "refused because"], rows);
}

function tuningOf(kernel) {
  const said = [];
  if (kernel.tuned)
    said.push(`Tuned: ${kernel.tuned.gain.toFixed(2)} times as fast as its default schedule.`);
  const mine = kernel.alternatives.find((a) => a.chosen && a.seconds);
  const best = kernel.alternatives.filter((a) => a.seconds)
    .reduce((a, b) => (!a || b.seconds < a.seconds ? b : a), null);
  if (mine && best && best.seconds < 0.97 * mine.seconds) {
    const what = [best.sketch, best.change].filter(Boolean).join(", ");
    said.push(`The cost model foresees ${(mine.seconds / best.seconds).toFixed(2)} times the speed `
      + `for ${what}. It is often wrong: measure it with tuning.`);
  }
  if (mine && best && best.seconds >= 0.97 * mine.seconds)
    said.push("The cost model foresees nothing faster among these.");
  if (kernel.peak_share && kernel.peak_share < 1)
    said.push(`At the roofline it would be ${(1 / kernel.peak_share).toFixed(2)} times as fast: `
      + `${time(kernel.seconds * kernel.peak_share)}.`);
  said.push(`tilewright tune ${facts.model} --kernel '${kernel.name}'`);
  return sayings(said);
}

function notationsOf(kernel) {
  return Object.entries(kernel.notations).map(([name, texts], n) =>
    make("details", { open: n === 0 }, make("summary", {}, name), ...texts.map(block)));
}

function details(kernel) {
  const parts = [title("Operators"), grid(["name", "operator"], kernel.operators)];
  if (kernel.fused && kernel.fused.length) parts.push(sayings(kernel.fused));
  if (kernel.parts) {
    parts.push(title(`Code for ranges of sizes: ${kernel.sketch}`), sayings(kernel.parts));
    if (kernel.refused.length) parts.push(sayings(kernel.refused.map((r) => `refused: ${r}`)));
    return parts;
  }
  if (!kernel.steps) {
    parts.push(make("p", { className: "empty" }, `This step runs on: ${kernel.kind}.`));
    return parts;
  }
  parts.push(title("What it computes"), ...notationsOf(kernel));
  parts.push(title("Loops and code"), loopsOf(kernel));
  parts.push(title(`Alternatives to ${kernel.sketch}`), kernel.alternatives.length
    ? alternativesOf(kernel)
    : make("p", { className: "empty" }, "Not tried: it is not among the slowest kernels."));
  if (kernel.refused.length) parts.push(sayings(kernel.refused.map((r) => `refused: ${r}`)));
  parts.push(title("Tuning"), tuningOf(kernel));
  if (kernel.parameters.length)
    parts.push(make("details", {}, make("summary", {}, `${kernel.parameters.length} parameters`),
      grid(["parameter", "value", "default", "candidates"],
        kernel.parameters.map((row) => row.map(String)))));
  return parts;
}

function kernels() {
  const place = document.getElementById("details");
  const pick = document.getElementById("pick");
  if (!place || !facts.kernels) return;
  const show = (n) => {
    if (!facts.kernels[n]) return;
    pick.value = n;
    place.replaceChildren(...details(facts.kernels[n]));
    all("[data-kernel]").forEach((e) => e.classList.toggle("here", e.dataset.kernel === String(n)));
  };
  pick.addEventListener("change", () => show(Number(pick.value)));
  const go = () => {
    const asked = location.hash.match(/^#k(\d+)$/);
    if (!asked) return;
    show(Number(asked[1]));
    document.getElementById("kernel").scrollIntoView();
  };
  addEventListener("hashchange", go);
  const slowest = facts.kernels.reduce((b, k, n) => (k.seconds > facts.kernels[b].seconds ? n : b), 0);
  show(slowest);
  go();
}

all("table[data-sorts]").forEach(sortable);
all("input[data-for]").forEach(filtered);
all(".pan").forEach(panned);
all("[data-tabs]").forEach(tabbed);
kernels();
