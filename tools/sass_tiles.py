"""The block-scaled tiles of kernels/sm120/, by their machine code: what docs/design/sm120.md promises of each."""
import re

REGISTERS = 65536  # a multiprocessor's
WARPS = {"small": 4, "large": 8}  # small-M and large-M kernels
EPILOGUES = {"SwiGluMx": "GEMM 1", "Store": "GEMM 2 and rows", "3Qkv": "QKV"}
ELEMENTS = ("E2M1", "E4M3")  # quad_layout.h's
KERNEL = re.compile(r"block_scaled_(small|large)_m_kernel")


class Tile:
    """A kernel by its mangled name: template arguments and epilogue."""

    def __init__(self, symbol):
        self.kind = KERNEL.search(symbol).group(1)
        numbers = [int(n) for n in re.findall(r"Li(\d+)E", symbol)]
        self.epilogue = next(text for name, text in EPILOGUES.items() if name in symbol)
        self.weights = ELEMENTS[int(re.search(r"ElementE(\d)E", symbol).group(1))]
        if self.kind == "small":
            groups, self.weight_tiles = numbers
            self.tokens, self.groups, self.copies = 8 * groups, groups, self.weight_tiles
        else:
            self.tokens, self.weight_tiles, _ = numbers
            self.groups, self.copies = self.tokens // 8 * self.weight_tiles // WARPS["large"], 1
        self.steps = 4 * self.copies
        self.weight_loads = self.steps * (2 if self.weights == "E4M3" else 1)

    def key(self):
        return (self.weights, self.epilogue, self.tokens, self.weight_tiles)

    def text(self):
        return f"{self.weights} x E4M3, {self.epilogue}, {self.tokens} tokens x {32 * self.weight_tiles} rows"

    def mma(self):
        """The instruction."""
        return f"QMMA.SF.16832.F32.{self.weights}.E4M3.E8"


class Measured:
    """Counts of a tile's code."""

    def __init__(self, kernel, tile):
        def least(places):
            return min((distance(kernel.lines, i) for i in places), default="")

        shared = [i for i, l in enumerate(kernel.lines) if re.match(r"LDS\.128", l)]
        tokens = [i for i, l in enumerate(kernel.lines) if re.match(r"LDG\.E\.128(?!\.STRONG)", l)]  # the work tile is STRONG
        self.mma = kernel.count(re.escape(tile.mma()))
        self.shared_loads, self.shared_ahead = len(shared), least(shared)
        self.token_loads, self.tokens_ahead = len(tokens), least(tokens)
        self.blocks = REGISTERS // (-(-kernel.registers // 8) * 8 * 32 * WARPS[tile.kind])


def reads(line, register):
    """Whether the instruction uses R<register> as a source (roughly: not as its first operand)."""
    operands = line.split(None, 1)[1] if " " in line else ""
    sources = operands if line.startswith(("ST", "RED", "ATOM")) else operands.partition(",")[2]
    return re.search(rf"\bR{register}(?!\d)", sources) is not None


def distance(lines, at):
    """Instructions between a 16-byte load and the first use of what it loads, in the order of the code."""
    first = int(re.search(r"\bR(\d+)", lines[at]).group(1))
    for i in range(at + 1, len(lines)):
        if any(reads(lines[i], r) for r in range(first, first + 4)):
            return i - at
    return len(lines) - at


def native(kernel):
    """Whether it is a tile whose architecture has the instruction."""
    return KERNEL.search(kernel.symbol) and re.fullmatch(r"sm_12\d[af]", kernel.architecture)


def faults_of(kernel):
    """What is wrong with a tile, a line each; nothing with other kernels."""
    if not native(kernel):
        return
    tile = Tile(kernel.symbol)
    m = Measured(kernel, tile)
    if m.mma != tile.steps * 2 * tile.groups:
        yield f"{m.mma} {tile.mma()}, expected {tile.steps * 2 * tile.groups}"
    if m.shared_loads < tile.weight_loads:
        yield f"{m.shared_loads} 16-byte loads of weights, expected {tile.weight_loads}"
    if tile.kind == "small" and m.token_loads < 2 * tile.groups:
        yield "tokens are not loaded 16 bytes at a time"
    if 1 in (m.shared_ahead, m.tokens_ahead):
        yield "a 16-byte load is used by the next instruction"


def print_table(kernels):
    """In Markdown, a row for each tile and architecture."""
    print("| architecture | tile | MMAs a k step and warp | LDS.128 | least distance to use | LDG.128 | least distance "
          "to use | registers | local bytes | blocks an SM, by registers |\n| --- | --- |" + " ---: |" * 8)
    rows = [(k.architecture, Tile(k.symbol), k) for k in kernels if native(k)]
    for architecture, tile, kernel in sorted(rows, key=lambda row: (row[0], row[1].key())):
        m = Measured(kernel, tile)
        figures = (f"{m.mma / tile.steps:g}", m.shared_loads, m.shared_ahead, m.token_loads, m.tokens_ahead, kernel.registers,
                   kernel.local + kernel.stack, m.blocks)
        print(f"| {architecture} | {tile.text()} | " + " | ".join(map(str, figures)) + " |")
