#!/usr/bin/env python3
"""What the machine code of src/backend/cuda/kernels/sm120 is made of: for every compiled tile and architecture the block-scaled
MMAs, the widths of loads, registers, local memory, and how far loads stand ahead of their use.

    tools/check_sass.py OBJECT...        object files or a program; prints a table in Markdown
Exit status 1 where a tile lacks what docs/design/sm120.md promises, 77 where no cuobjdump is found (MOESAIC_CUOBJDUMP, PATH,
/usr/local/cuda/bin)."""
import os
import re
import shutil
import subprocess
import sys

ARCHITECTURES = ("sm_120a", "sm_121a", "sm_120f")
REGISTERS, MOST_REGISTERS = 65536, 255  # a multiprocessor's; the most of a thread
WARPS = {"small": 4, "large": 8}  # small-M and large-M kernels
EPILOGUES = {"SwiGluMx": "GEMM 1", "Store": "GEMM 2 and rows", "3Qkv": "QKV"}
ELEMENTS = ("E2M1", "E4M3")  # quad_layout.h's


def cuobjdump():
    """The tool's path, or None."""
    for name in (os.environ.get("MOESAIC_CUOBJDUMP"), shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"):
        if name and os.access(name, os.X_OK):
            return name
    return None


def dump(tool, option, architecture, path):
    """What cuobjdump says of one architecture's code; it takes sm_120f for sm_120a too, and the other way about."""
    done = subprocess.run([tool, option, "-arch", architecture, path], capture_output=True, text=True)
    parts = [p for p in done.stdout.split("Fatbin elf code:") if f"arch = {architecture}\n" in p]
    if done.returncode or not parts:
        sys.exit(f"check_sass: {path}: {done.stderr.strip() or 'no code for ' + architecture}")
    return "".join(parts)


class Tile:
    """A kernel by its mangled name: template arguments and epilogue."""

    def __init__(self, symbol):
        self.kind = re.search(r"block_scaled_(small|large)_m_kernel", symbol).group(1)
        numbers = [int(n) for n in re.findall(r"Li(\d+)E", symbol)]
        self.epilogue = next(text for name, text in EPILOGUES.items() if name in symbol)
        self.weights = ELEMENTS[int(re.search(r"ElementE(\d)E", symbol).group(1))]
        if self.kind == "small":
            groups, self.weight_tiles = numbers
            self.tokens, self.groups, self.copies = 8 * groups, groups, self.weight_tiles
        else:
            self.tokens, self.weight_tiles, _ = numbers
            self.groups, self.copies = self.tokens // 8 * self.weight_tiles // WARPS["large"], 1

    def key(self):
        return (self.weights, self.epilogue, self.tokens, self.weight_tiles)

    def text(self):
        return f"{self.weights} x E4M3, {self.epilogue}, {self.tokens} tokens x {32 * self.weight_tiles} rows"

    def mma(self):
        """The instruction."""
        return f"QMMA.SF.16832.F32.{self.weights}.E4M3.E8"


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


def instructions(sass):
    """{symbol: [instruction without predicate]}"""
    kernels, lines = {}, None
    for text in sass.splitlines():
        if name := re.match(r"\s*Function : (\S+)", text):
            lines = kernels.setdefault(name.group(1), [])
        elif (code := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text)) and lines is not None:
            lines.append(re.sub(r"^@!?U?P\w+\s+", "", code.group(1)))
    return kernels


def usage(text):
    """{symbol: (registers, stack bytes, local bytes, static shared bytes)}"""
    found = re.findall(r"Function (\S+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    return {name: tuple(int(n) for n in (reg, stack, local, shared)) for name, reg, stack, shared, local in found}


def measure(tool, architecture, path):
    """Rows of the table, each with what is wrong with it."""
    used = usage(dump(tool, "-res-usage", architecture, path))
    for symbol, lines in instructions(dump(tool, "-sass", architecture, path)).items():
        if not re.search(r"block_scaled_(small|large)_m_kernel", symbol):
            continue
        tile = Tile(symbol)
        registers, stack, local, _ = used[symbol]
        count = lambda pattern: sum(1 for l in lines if re.match(pattern, l))
        instruction = tile.mma()
        mma = count(re.escape(instruction))
        shared_loads = [i for i, l in enumerate(lines) if re.match(r"LDS\.128", l)]
        global_loads = [i for i, l in enumerate(lines) if re.match(r"LDG\.E\.128(?!\.STRONG)", l)]  # the work tile is STRONG
        steps = 4 * tile.copies
        weight_loads = 4 * tile.copies * (2 if tile.weights == "E4M3" else 1)
        token_loads = 2 * tile.groups
        blocks = REGISTERS // (-(-registers // 8) * 8 * 32 * WARPS[tile.kind])
        wrong = []
        if mma != steps * 2 * tile.groups:
            wrong.append(f"{mma} {instruction}, expected {steps * 2 * tile.groups}")
        if local or stack or count(r"(LDL|STL)"):
            wrong.append("local memory")
        if registers > MOST_REGISTERS:
            wrong.append(f"{registers} registers")
        if len(shared_loads) < weight_loads:
            wrong.append(f"{len(shared_loads)} 16-byte loads of weights, expected {weight_loads}")
        if tile.kind == "small" and len(global_loads) < token_loads:
            wrong.append("tokens are not loaded 16 bytes at a time")
        if not count(r"UBLKCP"):
            wrong.append("no bulk copy")
        if tile.tokens <= 32 and blocks < 2:
            wrong.append(f"registers for {blocks} blocks a multiprocessor")
        ahead = [min((distance(lines, i) for i in loads), default="") for loads in (shared_loads, global_loads)]
        if 1 in ahead:
            wrong.append("a 16-byte load is used by the next instruction")
        yield tile, (f"{mma / steps:g}", len(shared_loads), ahead[0], len(global_loads), ahead[1], registers,
                     local + stack, blocks), wrong


def main(paths):
    tool = cuobjdump()
    if tool is None:
        print("check_sass: no cuobjdump here")
        return 77
    failed, tiles = [], 0
    print("| architecture | tile | MMAs a k step and warp | LDS.128 | least distance to use | LDG.128 | least distance "
          "to use | registers | local bytes | blocks an SM, by registers |\n| --- | --- |" + " ---: |" * 8)
    for architecture in ARCHITECTURES:
        rows = [row for path in paths for row in measure(tool, architecture, path)]
        tiles += len(rows)
        for tile, measured, wrong in sorted(rows, key=lambda r: r[0].key()):
            print(f"| {architecture} | {tile.text()} | " + " | ".join(str(m) for m in measured) + " |")
            failed += [f"{architecture} {tile.text()}: {w}" for w in wrong]
    if not tiles:
        failed.append("no block-scaled kernel for " + " or ".join(ARCHITECTURES))
    print("\n".join(failed), file=sys.stderr, end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
