"""A deep-learning compiler in one file: from a small graph to machine code, in under 600 lines.

This is Tilewright in miniature: the same stages by the same names, each cut down to what a
two-layer perceptron needs. Run it (with numpy and llvmlite), and read it from top to bottom:

    Graph -> Computations -> plain loop nest -> rewritten loop nest -> LLVM -> machine code
"""

from __future__ import annotations

import ctypes
import operator
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import llvmlite.binding as llvm
import numpy as np

# --------------------------------------------------------------------- 1. scalar expressions
# The lowest level is scalar arithmetic: constants, loop variables, elements of arrays, and three
# operators. Nodes are immutable: a rewrite creates new nodes and shares the unchanged ones.
# In Tilewright: expr/nodes.py, where nodes are typed, and equal nodes are one object.


@dataclass(frozen=True)
class Buffer:  # a row-major float32 array
    name: str
    shape: tuple[int, ...]

    def __getitem__(self, index: tuple[Expr, ...]) -> Load:
        return Load(self, tuple(index))


class Expr:
    def __add__(self, other: Expr) -> Expr:
        return Op("+", self, other)

    def __mul__(self, other: Expr) -> Expr:
        return Op("*", self, other)


@dataclass(frozen=True)
class Number(Expr):
    value: float


@dataclass(frozen=True)
class Var(Expr):
    name: str


@dataclass(frozen=True)
class Load(Expr):
    buffer: Buffer
    index: tuple[Expr, ...]


@dataclass(frozen=True)
class Op(Expr):
    op: str  # + * max
    lhs: Expr
    rhs: Expr


def show(e: Expr) -> str:
    match e:
        case Load(buffer, index):
            return f"{buffer.name}[{', '.join(map(show, index))}]"
        case Op("max", lhs, rhs):
            return f"max({show(lhs)}, {show(rhs)})"
        case Op(op, lhs, rhs):
            return f"{show(lhs)} {op} {show(rhs)}"
    return e.name if isinstance(e, Var) else str(e.value)


def substitute(e: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`e` with other expressions in the place of some of its nodes."""
    if e in values:
        return values[e]
    match e:
        case Load(buffer, index):
            return Load(buffer, tuple(substitute(i, values) for i in index))
        case Op(op, lhs, rhs):
            return Op(op, substitute(lhs, values), substitute(rhs, values))
    return e


def loads(e: Expr) -> Iterator[Load]:
    match e:
        case Load():
            yield e
        case Op(_, lhs, rhs):
            yield from loads(lhs)
            yield from loads(rhs)


# Indices are linear in the loop variables, which makes them easy to analyze: an index, and so the
# address of an element, is a coefficient for each variable plus a constant.


def linear(e: Expr) -> dict[str, int]:
    """The coefficient of each variable; the constant under the name ""."""
    match e:
        case Number(value):
            return {"": value}
        case Var(name):
            return {name: 1}
        case Op("+", lhs, rhs):
            a, b = linear(lhs), linear(rhs)
            return {v: a.get(v, 0) + b.get(v, 0) for v in a | b}
        case Op("*", lhs, Number(factor)):
            return {v: c * factor for v, c in linear(lhs).items()}
    raise ValueError(f"{show(e)} is not linear")


def address(at: Load) -> dict[str, int]:
    """Which element of the buffer's memory that is."""
    total: dict[str, int] = {}
    for i, extent in zip(at.index, at.buffer.shape, strict=True):
        total = {v: c * extent for v, c in total.items()}
        for v, c in linear(i).items():
            total[v] = total.get(v, 0) + c
    return {v: c for v, c in total.items() if c or v == ""}


# ---------------------------------------------------------- 2. Computations: what to compute
# One form for all arithmetic: a value for every point of some dimensions, some of which are summed
# over: t[i < 64, j < 512] = sum(k < 256) x[i, k] * w[k, j]. It specifies no order of execution.
# In Tilewright: compute/nodes.py, with any associative operator, scans, several results, guards.


@dataclass(frozen=True)
class Computation:
    """out[free] = value, summed over `summed`; both are (variable, extent) pairs."""

    out: Buffer
    free: tuple[tuple[str, int], ...]
    summed: tuple[tuple[str, int], ...]
    value: Expr

    def __str__(self) -> str:
        free, summed = (", ".join(f"{v} < {n}" for v, n in d) for d in (self.free, self.summed))
        return f"{self.out.name}[{free}] = {f'sum({summed}) ' * bool(summed)}{show(self.value)}"


def product(name: str, a: Buffer, b: Buffer) -> Computation:
    (m, k), (_, n) = a.shape, b.shape
    i, j, r = Var("i"), Var("j"), Var("k")
    return Computation(Buffer(name, (m, n)), (("i", m), ("j", n)), (("k", k),), a[i, r] * b[r, j])


def pointwise(name: str, a: Buffer, value: Callable[[Expr, Var], Expr]) -> Computation:
    free = tuple(zip("ij", a.shape, strict=True))
    return Computation(Buffer(name, a.shape), free, (), value(a[Var("i"), Var("j")], Var("j")))


# ------------------------------------------------------------------------------ 3. the graph
# A model is a list of operators over named tensors. An operator is defined once, by a function that
# returns its Computation and the shape of its result.
# In Tilewright: graph/nodes.py, graph/ops/ (one file per family of operators), frontends/onnx.

OPERATORS: dict[str, Callable[..., Computation]] = {
    "MatMul": product,
    "Add": lambda name, a, b: pointwise(name, a, lambda x, j: x + b[j,]),
    "Relu": lambda name, a: pointwise(name, a, lambda x, j: Op("max", x, Number(0.0))),
}


# Here, weights are ordinary operands.
PERCEPTRON = "t1 = MatMul x w1; t2 = Add t1 b1; h = Relu t2; t3 = MatMul h w2; y = Add t3 b2"


def computations(inputs: dict[str, np.ndarray]) -> Iterator[Computation]:
    """What each operator computes, in order."""
    buffers = {name: Buffer(name, array.shape) for name, array in inputs.items()}
    for line in PERCEPTRON.split("; "):
        result, _, name, *operands = line.split()
        c = OPERATORS[name](result, *(buffers[operand] for operand in operands))
        buffers[result] = c.out
        yield c


# Fusion is substitution: if a tensor is defined point by point and only one other Computation reads
# it, its definition can replace that read. The tensor is then never stored.
# In Tilewright: compute/transforms.py (inline, follow), plan/passes/fuse.py (when it pays off).


def fuse(found: list[Computation]) -> list[Computation]:
    for producer in found:
        readers = [c for c in found for load in loads(c.value) if load.buffer == producer.out]
        if producer.summed or len(readers) != 1 or readers[0].summed:
            continue
        [read] = [load for load in loads(readers[0].value) if load.buffer == producer.out]
        point = {Var(v): i for (v, _), i in zip(producer.free, read.index, strict=True)}
        here = {read: substitute(producer.value, point)}
        merged = replace(readers[0], value=substitute(readers[0].value, here))
        return fuse([merged if c is readers[0] else c for c in found if c is not producer])
    return found


# ------------------------------------------------------------ 4. the loop nest: how to do it
# A kernel is a program of loops. `kind` says how the iterations of a loop run: one after the other,
# unrolled, or as the lanes of a vector; it never changes the result.
# In Tilewright: loops/nodes.py, loops/lower.py.


@dataclass(frozen=True)
class For:
    var: str
    extent: int
    body: Body
    kind: str = "serial"


@dataclass(frozen=True)
class Store:
    at: Load
    value: Expr
    adds: bool = False  # at += value


Stmt = For | Store
Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class Kernel:
    name: str
    params: tuple[Buffer, ...]  # what it reads, then what it writes
    body: Body

    def __str__(self) -> str:
        head = f"kernel {self.name}({', '.join(b.name for b in self.params)}):"
        return "\n".join([head, *lines(self.body, 1)])


def lines(body: Body, depth: int) -> Iterator[str]:
    for s in body:
        pad = "  " * depth
        if isinstance(s, For):
            kind = "" if s.kind == "serial" else f" {s.kind}"
            yield f"{pad}for {s.var} in {s.extent}{kind}:"
            yield from lines(s.body, depth + 1)
        else:
            yield f"{pad}{show(s.at)} {'+=' * s.adds or '='} {show(s.value)}"


def lower(c: Computation) -> Kernel:
    """The plain nest, which says literally the same; a sum starts from zeros, in a nest apart."""

    def nest(dims: tuple[tuple[str, int], ...], inner: Stmt) -> Stmt:
        for var, extent in reversed(dims):
            inner = For(var, extent, (inner,))
        return inner

    params = (*dict.fromkeys(load.buffer for load in loads(c.value)), c.out)
    step = Store(c.out[tuple(Var(v) for v, _ in c.free)], c.value, adds=bool(c.summed))
    body = [nest((*c.free, *c.summed), step)]
    if c.summed:
        zero = Store(c.out[tuple(Var(f"{v}0") for v, _ in c.free)], Number(0.0))
        body.insert(0, nest(tuple((f"{v}0", n) for v, n in c.free), zero))
    return Kernel(c.out.name, params, tuple(body))


# The interpreter is slow and simple on purpose: it defines the meaning of a kernel, and all later
# stages are compared with it.
# In Tilewright: loops/interp.py, and one each for expressions, Computations and graphs.


def value_of(e: Expr, env: dict[str, int], memory: dict[str, np.ndarray]) -> float:
    match e:
        case Var(name):
            return env[name]
        case Load(buffer, index):
            return memory[buffer.name][tuple(value_of(i, env, memory) for i in index)]
        case Op(op, lhs, rhs):
            function = {"+": operator.add, "*": operator.mul, "max": max}[op]
            return function(value_of(lhs, env, memory), value_of(rhs, env, memory))
    return e.value


def interpret(body: Body, memory: dict[str, np.ndarray], env: dict[str, int]) -> None:
    for s in body:
        if isinstance(s, For):
            for n in range(s.extent):
                interpret(s.body, memory, env | {s.var: n})
        else:
            old = value_of(s.at, env, memory) if s.adds else 0.0
            at = tuple(value_of(i, env, memory) for i in s.at.index)
            memory[s.at.buffer.name][at] = old + value_of(s.value, env, memory)


# --------------------------------------------------------- 5. schedules: rewrites that check
# A schedule primitive maps a kernel to a kernel. It raises an error unless it can prove that the
# result stays the same. The list of applied primitives *is* the schedule.
# In Tilewright: schedule/primitives/, where dependences are decided exactly, with integer sets.


class Refused(Exception):
    """This rewrite would change what the program computes."""


def on_loop(body: Body, names: tuple[str, ...], change: Callable[[For], Stmt]) -> Body:
    """The body with the outermost of these loops changed; names are unique in a kernel."""

    def one(s: Stmt) -> Stmt:
        if not isinstance(s, For):
            return s
        return change(s) if s.var in names else replace(s, body=on_loop(s.body, names, change))

    return tuple(map(one, body))


def stores(body: Body) -> Iterator[Store]:
    for s in body:
        if isinstance(s, For):
            yield from stores(s.body)
        else:
            yield s


def split(kernel: Kernel, name: str, factor: int) -> Kernel:
    """for i in n  ->  for i.o in n / factor: for i.i in factor. The order stays: always legal."""

    whole = {Var(name): Var(f"{name}.o") * Number(factor) + Var(f"{name}.i")}

    def tiled(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return replace(s, body=tuple(map(tiled, s.body)))
        return replace(s, at=substitute(s.at, whole), value=substitute(s.value, whole))

    def change(loop: For) -> Stmt:
        if loop.extent % factor:
            raise Refused(f"{factor} does not divide the {loop.extent} iterations of {name}")
        inner = For(f"{name}.i", factor, tuple(map(tiled, loop.body)))
        return For(f"{name}.o", loop.extent // factor, (inner,))

    return replace(kernel, body=on_loop(kernel.body, (name,), change))


def reorder(kernel: Kernel, *names: str) -> Kernel:
    """Directly nested loops in another order, the first of `names` outermost.
    Legal where iterations only add to an element, or write each their own (up to rounding).
    """

    def change(top: For) -> Stmt:
        band: dict[str, For] = {}
        body: Body = (top,)
        while len(band) < len(names):
            if len(body) != 1 or not isinstance(body[0], For) or body[0].var not in names:
                raise Refused(f"{names} are not directly nested")
            band[body[0].var], body = body[0], body[0].body
        for s in stores(body):
            if any(load.buffer == t.at.buffer for load in loads(s.value) for t in stores(body)):
                raise Refused(f"the nest reads what it writes: {show(s.at)}")
            if not s.adds and not all(v in address(s.at) for v in names):
                raise Refused(f"iterations overwrite each other: {show(s.at)}")
        for name in reversed(names):
            body = (replace(band[name], body=body),)
        return body[0]

    return replace(kernel, body=on_loop(kernel.body, names, change))


def vectorize(kernel: Kernel, name: str) -> Kernel:
    """Run the iterations of a loop together, one per lane.
    Legal where each iteration writes an element of its own. We also want neighboring lanes at
    neighboring addresses, or all at one: that is what vector instructions are good at.
    """

    def change(loop: For) -> Stmt:
        for s in stores(loop.body):
            if address(s.at).get(name, 0) != 1:
                raise Refused(f"lanes of {name} do not write neighboring elements: {show(s.at)}")
            for load in loads(s.value):
                if address(load).get(name, 0) not in (0, 1):
                    raise Refused(f"lanes of {name} read elements far apart: {show(load)}")
                if any(load.buffer == t.at.buffer for t in stores(loop.body)):
                    raise Refused(f"lanes of {name} read what lanes write: {show(load)}")
        return replace(loop, kind="vector")

    return replace(kernel, body=on_loop(kernel.body, (name,), change))


def unroll(kernel: Kernel, name: str) -> Kernel:
    """Write the iterations out, in order: always legal."""
    return replace(kernel, body=on_loop(kernel.body, (name,), lambda s: replace(s, kind="unroll")))


# A good schedule for a matrix product on a CPU: a tile of the result, a few rows by two vectors,
# stays in registers during the sum. Each loaded vector is used by all rows, each loaded scalar by
# both vectors.
# In Tilewright: targets/cpu/sketches/, for any extents, with sizes derived from the machine.

LANES, ROWS = 16, 4


def schedule(kernel: Kernel) -> Kernel:
    """The default schedule: tiles for sums, vectors for maps."""
    if not any(s.adds for s in stores(kernel.body)):
        return vectorize(split(kernel, "j", LANES), "j.i")
    kernel = vectorize(split(kernel, "j0", LANES), "j0.i")
    kernel = split(split(kernel, "i", ROWS), "j", 2 * LANES)
    kernel = reorder(kernel, "j.o", "i.o", "k", "i.i", "j.i")
    kernel = vectorize(split(kernel, "j.i", LANES), "j.i.i")
    return unroll(unroll(kernel, "i.i"), "j.i.o")


# --------------------------------------------------------------------- 6. LLVM: machine code
# The generator translates the kernel literally: a serial loop becomes a loop, an unrolled loop
# becomes copies of its body, a vector loop becomes operations on <n x float>. LLVM selects
# instructions and registers.
# In Tilewright: targets/llvm/emit*.py, with threads, all dtypes, and math functions.


class Emitter:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.count = 0

    def kernel(self, kernel: Kernel) -> str:
        params = pointers(b.name for b in kernel.params)
        self.text = [f"define void @{kernel.name}({params}) {{", "entry:"]
        self.block = "entry"
        self.body(kernel.body, {}, ("", "float"))
        return "\n".join([*self.text, "  ret void", "}"])

    def value(self, text: str) -> str:
        """A new value: `%n = text`."""
        self.count += 1
        self.text.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def body(self, body: Body, env: dict[str, str], lanes: tuple[str, str]) -> None:
        """env: the LLVM value of each variable; lanes: the vector loop around, and its type."""
        for s in body:
            if isinstance(s, Store):
                self.store(s, env, lanes)
            elif s.kind == "vector":
                self.body(s.body, env | {s.var: "0"}, (s.var, f"<{s.extent} x float>"))
            elif s.kind == "unroll":
                for n in range(s.extent):
                    self.body(s.body, env | {s.var: str(n)}, lanes)
            else:
                self.loop(s, env, lanes)

    def loop(self, s: For, env: dict[str, str], lanes: tuple[str, str]) -> None:
        self.count += 1
        n, before = self.count, self.block
        self.text += [f"  br label %head{n}", f"head{n}:"]
        self.text.append(f"  %i{n} = phi i64 [ 0, %{before} ], [ %next{n}, %latch{n} ]")
        self.block = f"head{n}"
        self.body(s.body, env | {s.var: f"%i{n}"}, lanes)
        self.text += [f"  br label %latch{n}", f"latch{n}:"]
        self.text.append(f"  %next{n} = add nuw nsw i64 %i{n}, 1")
        more = self.value(f"icmp ult i64 %next{n}, {s.extent}")
        self.text += [f"  br i1 {more}, label %head{n}, label %exit{n}", f"exit{n}:"]
        self.block = f"exit{n}"

    def pointer(self, at: Load, env: dict[str, str]) -> str:
        form = address(at)
        total = str(form.pop("", 0))
        for v, c in form.items():
            term = self.value(f"mul nsw i64 {env[v]}, {c}")
            total = self.value(f"add nsw i64 {total}, {term}")
        return self.value(f"getelementptr float, ptr %{at.buffer.name}, i64 {total}")

    def store(self, s: Store, env: dict[str, str], lanes: tuple[str, str]) -> None:
        value, at, kind = self.expr(s.value, env, lanes), self.pointer(s.at, env), lanes[1]
        if s.adds:
            old = self.value(f"load {kind}, ptr {at}, align 4")
            value = self.value(f"fadd contract {kind} {old}, {value}")
        self.text.append(f"  store {kind} {value}, ptr {at}, align 4")

    def expr(self, e: Expr, env: dict[str, str], lanes: tuple[str, str]) -> str:
        var, kind = lanes
        match e:
            case Number(value):
                bits = f"0x{np.float64(np.float32(value)).view(np.uint64):016X}"
                return self.splat(f"float {bits}", kind) if var else bits
            case Load():
                at = self.pointer(e, env)
                if var in address(e) or not var:
                    return self.value(f"load {kind}, ptr {at}, align 4")
                return self.splat(f"float {self.value(f'load float, ptr {at}, align 4')}", kind)
            case Op(op, lhs, rhs):
                a, b = self.expr(lhs, env, lanes), self.expr(rhs, env, lanes)
                if op == "max":
                    greater = self.value(f"fcmp ugt {kind} {a}, {b}")
                    bools = kind.replace("float", "i1")
                    return self.value(f"select {bools} {greater}, {kind} {a}, {kind} {b}")
                return self.value(f"{ {'+': 'fadd', '*': 'fmul'}[op] } contract {kind} {a}, {b}")
        raise TypeError(f"{show(e)} is an index, not a value")

    def splat(self, scalar: str, kind: str) -> str:
        one = self.value(f"insertelement {kind} poison, {scalar}, i64 0")
        zeros = f"{kind.replace('float', 'i32')} zeroinitializer"
        return self.value(f"shufflevector {kind} {one}, {kind} poison, {zeros}")


# -------------------------------------------------------------------- 7. a program that runs
# One function calls all kernels in order, so that running a model takes one call from Python.
# In Tilewright: driver/, plan/passes/memory.py, targets/cpu/entry.py, and runtime/, which loads
# object code without LLVM, so that a saved model does not need it.


def pointers(names: Iterable[str]) -> str:
    return ", ".join(f"ptr noalias %{name}" for name in names)


class Program:
    """Machine code of kernels, called in order on NumPy arrays by name."""

    def __init__(self, kernels: list[Kernel]) -> None:
        self.result = kernels[-1].params[-1].name
        self.shapes = {b.name: b.shape for k in kernels for b in k.params}
        table = {k.name: pointers(b.name for b in k.params) for k in kernels}
        calls = [f"  call void @{name}({arguments})" for name, arguments in table.items()]
        main = [f"define void @main({pointers(self.shapes)}) {{", *calls, "  ret void", "}"]
        self.llvm = "\n".join([*map(Emitter().kernel, kernels), *main])
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(self.llvm)
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        # Promotion to registers and cleanup; no vectorizer, since the kernels are vectorized.
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        self.assembly = machine.emit_assembly(module)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        kinds = [ctypes.c_void_p] * len(self.shapes)
        self._call = ctypes.CFUNCTYPE(None, *kinds)(self._engine.get_function_address("main"))

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        memory = {n: np.empty(s, np.float32) for n, s in self.shapes.items() if n not in inputs}
        memory |= {n: np.ascontiguousarray(a, np.float32) for n, a in inputs.items()}
        if wrong := [n for n, shape in self.shapes.items() if memory[n].shape != shape]:
            raise ValueError(f"{wrong}: expected {[self.shapes[n] for n in wrong]}")
        self._call(*(memory[name].ctypes.data for name in self.shapes))
        return memory[self.result]


def compile_model(inputs: dict, how: Callable[[Kernel], Kernel] = schedule) -> Program:
    """The whole compiler."""
    return Program([how(lower(c)) for c in fuse(list(computations(inputs)))])


# ------------------------------------------------------------------------- 8. trying it out


def setting(rng: np.random.Generator, *sizes: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs of a perceptron, and what NumPy says."""
    batch, width, hidden, classes = sizes
    shapes = {"x": (batch, width), "w1": (width, hidden), "w2": (hidden, classes)}
    shapes |= {"b1": (hidden,), "b2": (classes,)}
    v = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return v, np.maximum(v["x"] @ v["w1"] + v["b1"], 0) @ v["w2"] + v["b2"]


def main() -> None:
    rng = np.random.default_rng(0)

    # A small model through all stages, interpreted before and after scheduling.
    inputs, want = setting(rng, 8, 12, 32, 32)
    found = list(computations(inputs))
    fused = fuse(found)
    plain = lower(fused[0])
    print("Computations, one per operator:", *found, "\nFused:", *fused, sep="\n")
    print("\nThe first as a plain nest, and scheduled:", plain, schedule(plain), sep="\n")
    for how in (lambda kernel: kernel, schedule):
        memory = inputs | {c.out.name: np.empty(c.out.shape, np.float32) for c in fused}
        for c in fused:
            interpret(how(lower(c)).body, memory, {})
        np.testing.assert_allclose(memory["y"], want, atol=1e-4)
    try:
        vectorize(plain, "k")
    except Refused as refusal:
        print("\nRefused:", refusal)

    # A larger model, as machine code.
    inputs, want = setting(rng, 64, 256, 512, 64)
    flops = 2 * 64 * (256 * 512 + 512 * 64)
    for title, how in (("plain", lambda kernel: kernel), ("scheduled", schedule)):
        program = compile_model(inputs, how)
        np.testing.assert_allclose(program(**inputs), want, atol=1e-5 * np.abs(want).max())
        took = min(timeit.repeat(lambda run=program: run(**inputs), number=1, repeat=5))
        speed = f"{took * 1e3:.2f} ms, {flops / took / 1e9:.1f} GFLOP/s"
        print(f"\nMachine code, {title}: {speed}")
    inner = [line for line in program.assembly.splitlines() if "fma" in line or "fmla" in line]
    print("\nA few lines of it:", *inner[:4], sep="\n")


if __name__ == "__main__":
    main()
