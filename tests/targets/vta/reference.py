"""VTA as its specification reads, one bit and one lane after another. Slow; the judge."""

from __future__ import annotations

from dataclasses import dataclass

UOP, WGT, INP, ACC, OUT, ACC8 = range(6)
LOAD, STORE, GEMM, FINISH, ALU = range(5)


@dataclass(frozen=True)
class Shape:
    """A machine: rows and columns of a tile, widths of operands, elements of each memory."""

    batch: int = 1
    block: int = 16
    inp: int = 8
    wgt: int = 8
    depth: tuple[int, int, int, int] = 8192, 1024, 2048, 2048

    @property
    def depths(self) -> dict[int, int]:
        uop, wgt, inp, acc = self.depth
        return {UOP: uop, WGT: wgt, INP: inp, ACC: acc, OUT: acc, ACC8: acc}

    @property
    def lanes(self) -> dict[int, int]:
        tile = self.batch * self.block
        return {UOP: 1, WGT: self.block**2} | dict.fromkeys((INP, ACC, OUT, ACC8), tile)

    @property
    def bits(self) -> dict[int, int]:
        """Of a number in DRAM."""
        return {UOP: 32, WGT: self.wgt, INP: self.inp, ACC: 32, OUT: self.inp, ACC8: 8}

    @property
    def fields(self) -> dict[int, list[tuple[str, int, int]]]:
        """As C lays out bit-fields in two words of 64; FIELDS has those of the default."""
        uop, wgt, inp, acc = (depth.bit_length() - 1 for depth in self.depth)
        widths = {"uop_bgn": uop, "uop_end": uop + 1}
        widths |= {f"dst_factor_{loop}": acc for loop in ("out", "in")}
        widths |= {f"wgt_factor_{loop}": wgt for loop in ("out", "in")}
        found = {}
        for opcode, table in FIELDS.items():
            source = {GEMM: inp, ALU: acc}.get(opcode)
            found[opcode], at = [], 3
            for name, first, last in table:
                width = widths.get(name, last - first + 1)
                width = source if name.startswith("src_factor") else width
                at = 64 if at < 64 < at + width else at
                found[opcode].append((name, at, at + width - 1))
                at += width
        return found


DEFAULT = Shape()

# (name, first bit, last bit), as in the specification's table.
COMMON = [
    ("pop_prev", 3, 3),
    ("pop_next", 4, 4),
    ("push_prev", 5, 5),
    ("push_next", 6, 6),
]
TRANSFER = [
    *COMMON,
    *[
        ("memory_type", 7, 9),
        ("sram_base", 10, 25),
        ("dram_base", 26, 57),
        ("y_size", 64, 79),
    ],
    *[
        ("x_size", 80, 95),
        ("x_stride", 96, 111),
        ("y_pad_0", 112, 115),
        ("y_pad_1", 116, 119),
    ],
    *[("x_pad_0", 120, 123), ("x_pad_1", 124, 127)],
]
NEST = [
    *COMMON,
    *[("reset_reg", 7, 7), ("uop_bgn", 8, 20), ("uop_end", 21, 34)],
    *[("iter_out", 35, 48), ("iter_in", 49, 62)],
    *[("dst_factor_out", 64, 74), ("dst_factor_in", 75, 85)],
    *[("src_factor_out", 86, 96), ("src_factor_in", 97, 107)],
]
FIELDS = {
    LOAD: TRANSFER,
    STORE: TRANSFER,
    GEMM: [*NEST, ("wgt_factor_out", 108, 117), ("wgt_factor_in", 118, 127)],
    ALU: [*NEST, ("alu_opcode", 108, 110), ("use_imm", 111, 111), ("imm", 112, 127)],
    FINISH: COMMON,
}


def fields(data: bytes, shape: Shape = DEFAULT) -> dict[str, int]:
    word = int.from_bytes(data, "little")
    values = {"opcode": word & 7}
    for name, first, last in shape.fields[word & 7]:
        values[name] = word >> first & (1 << last - first + 1) - 1
    if "imm" in values:
        values["imm"] = signed(values["imm"], 16)
    return values


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


class Machine:
    def __init__(self, dram: bytearray, shape: Shape = DEFAULT) -> None:
        self.dram = dram
        self.shape = shape
        self.depth, self.lanes, self.bits = shape.depths, shape.lanes, shape.bits
        self.uop = [0] * self.depth[UOP]
        self.inp = {}
        self.wgt = {}
        self.acc = [[0] * self.lanes[ACC] for _ in range(self.depth[ACC])]
        self.tokens = dict.fromkeys(("l2g", "g2l", "g2s", "s2g"), 0)

    def run(self, stream: bytes, last: bool = False) -> None:
        """The first (or last) instruction that can start, again and again, up to FINISH."""
        parts = (stream[at : at + 16] for at in range(0, len(stream), 16))
        left = [fields(part, self.shape) for part in parts]
        while True:
            heads = {}
            for i in left:
                heads.setdefault(self.module(i), i)
            able = [i for i in left if heads[self.module(i)] is i and self.ready(i)]
            i = able[-1 if last else 0]
            left = [other for other in left if other is not i]
            for queue in self.queues(i, "pop"):
                self.tokens[queue] -= 1
            self.execute(i)
            for queue in self.queues(i, "push"):
                self.tokens[queue] += 1
            if i["opcode"] == FINISH:
                assert not left
                return

    def module(self, i: dict[str, int]) -> str:
        if i["opcode"] == STORE:
            return "store"
        return (
            "load"
            if i["opcode"] == LOAD and i["memory_type"] in (INP, WGT)
            else "compute"
        )

    def queues(self, i: dict[str, int], verb: str) -> list[str]:
        prev, next_ = {
            ("load", "pop"): ("", "g2l"),
            ("load", "push"): ("", "l2g"),
            ("compute", "pop"): ("l2g", "s2g"),
            ("compute", "push"): ("g2l", "g2s"),
            ("store", "pop"): ("g2s", ""),
            ("store", "push"): ("s2g", ""),
        }[self.module(i), verb]
        return [prev] * i[f"{verb}_prev"] + [next_] * i[f"{verb}_next"]

    def ready(self, i: dict[str, int]) -> bool:
        return all(self.tokens[queue] for queue in self.queues(i, "pop"))

    def execute(self, i: dict[str, int]) -> None:
        {
            LOAD: self.load,
            STORE: self.store,
            GEMM: self.gemm,
            ALU: self.alu,
            FINISH: lambda i: None,
        }[i["opcode"]](i)

    def load(self, i: dict[str, int]) -> None:
        if i["x_size"] == 0:
            return
        at = i["sram_base"]
        for y in range(-i["y_pad_0"], i["y_size"] + i["y_pad_1"]):
            for x in range(-i["x_pad_0"], i["x_size"] + i["x_pad_1"]):
                inside = 0 <= y < i["y_size"] and 0 <= x < i["x_size"]
                from_ = i["dram_base"] + y * i["x_stride"] + x if inside else None
                self.load_element(i["memory_type"], at, from_)
                at += 1

    def load_element(self, memory: int, at: int, from_: int | None) -> None:
        assert at < self.depth[memory]
        bits, lanes = self.bits[memory], self.lanes[memory]
        size = lanes * bits // 8
        if from_ is None:
            data = bytes(size)
        else:
            data = bytes(self.dram[from_ * size : from_ * size + size])
            assert len(data) == size
        word = int.from_bytes(data, "little")
        if memory == UOP:
            self.uop[at] = word
            return
        to = {WGT: self.wgt, INP: self.inp, ACC: self.acc, ACC8: self.acc}[memory]
        to[at] = [signed(word >> bits * n, bits) for n in range(lanes)]

    def store(self, i: dict[str, int]) -> None:
        for y in range(i["y_size"]):
            for x in range(i["x_size"]):
                bits = self.bits[OUT]
                size = self.lanes[OUT] * bits // 8
                to = size * (i["dram_base"] + y * i["x_stride"] + x)
                lanes = self.acc[i["sram_base"] + y * i["x_size"] + x]
                assert to + size <= len(self.dram)
                word = sum(
                    (v & (1 << bits) - 1) << bits * n for n, v in enumerate(lanes)
                )
                self.dram[to : to + size] = word.to_bytes(size, "little")

    def steps(self, i: dict[str, int]):
        for outer in range(i["iter_out"]):
            for inner in range(i["iter_in"]):
                for at in range(i["uop_bgn"], i["uop_end"]):
                    u = self.uop[at]
                    acc, inp, wgt = (self.depth[m] for m in (ACC, INP, WGT))
                    src = max(acc, inp)
                    firsts = {
                        "dst": u % acc,
                        "src": u // acc % src,
                        "wgt": u // acc // src % wgt,
                    }
                    yield {
                        name: first
                        + outer * i.get(f"{name}_factor_out", 0)
                        + inner * i.get(f"{name}_factor_in", 0)
                        for name, first in firsts.items()
                    }

    def gemm(self, i: dict[str, int]) -> None:
        block = self.shape.block
        for index in self.steps(i):
            if i["reset_reg"]:
                self.acc[index["dst"]] = [0] * self.lanes[ACC]
                continue
            inp = self.inp.get(index["src"], [0] * self.lanes[INP])
            wgt = self.wgt.get(index["wgt"], [0] * self.lanes[WGT])
            assert index["src"] < self.depth[INP] and index["wgt"] < self.depth[WGT]
            to = self.acc[index["dst"]]
            for row in range(self.shape.batch):
                for o in range(block):
                    total = sum(
                        inp[block * row + k] * wgt[block * o + k] for k in range(block)
                    )
                    at = block * row + o
                    to[at] = signed(to[at] + total, 32)

    def alu(self, i: dict[str, int]) -> None:
        for index in self.steps(i):
            for lane in range(self.lanes[ACC]):
                x = self.acc[index["dst"]][lane]
                y = i["imm"] if i["use_imm"] else self.acc[index["src"]][lane]
                self.acc[index["dst"]][lane] = signed(
                    self.lane(i["alu_opcode"], x, y), 32
                )

    def lane(self, opcode: int, x: int, y: int) -> int:
        if opcode == 3:
            return x >> y if y >= 0 else x << min(-y, 32)
        return [min(x, y), max(x, y), x + y, None, x * y][opcode]
