"""Machine code as cuobjdump prints it: kernels, what they use, and their loops."""
import os
import re
import shutil
import subprocess

ENDS = re.compile(r"(EXIT|KILL|BPT|RET)\b")
JUMPS = re.compile(r"(BRA|JMP|CALL)\b")


def cuobjdump():
    """The tool's path, or None."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "disassembler", "cuobjdump")
    for name in (os.environ.get("MOESAIC_CUOBJDUMP"), shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump", here):
        if name and os.access(name, os.X_OK):
            return name
    return None


class Kernel:
    """A kernel's instructions without their guards, and what it uses: threads of a CTA as its launch bounds say (0: none), and
    bytes of stack (what is indexed, and spilled registers), other local memory and static shared memory."""

    def __init__(self, architecture, symbol):
        self.architecture, self.symbol = architecture, symbol
        self.lines, self.guarded, self.addresses = [], [], []
        self.registers = self.stack = self.shared = self.local = self.threads = 0

    def add(self, address, text):
        """An instruction with its guard: @P0, @!UP3 or none."""
        guard = re.match(r"@!?U?P\w+\s+", text)
        self.guarded.append(bool(guard))
        self.lines.append(text[guard.end():] if guard else text)
        self.addresses.append(address)

    def count(self, pattern, places=None):
        """How many instructions, of all or of these places, begin with the pattern."""
        pattern = re.compile(pattern)
        return sum(1 for i in (range(len(self.lines)) if places is None else places) if pattern.match(self.lines[i]))

    def successors(self):
        """For each instruction those that may be next. A call comes back."""
        place = {address: i for i, address in enumerate(self.addresses)}
        result = []
        for i, line in enumerate(self.lines):
            jump = JUMPS.match(line)
            target = jump and re.search(r"\b(0x[0-9a-f]+)$", line)
            to = [place[int(target.group(1), 16)]] if target and int(target.group(1), 16) in place else []
            always = (jump and jump.group(1) != "CALL" or ENDS.match(line)) and not self.guarded[i] \
                and not re.search(r"\s!?U?P\d\b", line)
            if not always and i + 1 < len(self.lines):
                to.append(i + 1)
            result.append(to)
        return result

    def innermost_loops(self, pattern):
        """The loops, as sets of places, that have such an instruction, and none inside that has one too."""
        loops = [loop for loop in loops_of(self.successors()) if self.count(pattern, loop)]
        return [loop for loop in loops if not any(inner < loop for inner in loops)]


def loops_of(successors):
    """The loops of a flow graph, inner ones too: sets of nodes that reach each other; and the same again without those by
    which such a set is entered."""
    predecessors = [[] for _ in successors]
    for node, following in enumerate(successors):
        for to in following:
            predecessors[to].append(node)
    found, work = [], [set(range(len(successors)))]
    while work:
        for loop in components(work.pop(), successors):
            found.append(loop)
            entries = {n for n in loop if any(p not in loop for p in predecessors[n])}
            work.append(loop - (entries or {min(loop)}))
    return found


def components(nodes, successors):
    """The strongly connected components among the nodes that have an edge (Tarjan)."""
    number, low, open_nodes, is_open, found = {}, {}, [], set(), []

    def enter(node):
        number[node] = low[node] = len(number)
        open_nodes.append(node)
        is_open.add(node)
        return node, iter([n for n in successors[node] if n in nodes])

    for root in nodes:
        work = [] if root in number else [enter(root)]
        while work:
            node, rest = work[-1]
            to = next(rest, None)
            if to is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    found.append(close(node, open_nodes, is_open))
            elif to not in number:
                work.append(enter(to))
            elif to in is_open:
                low[node] = min(low[node], number[to])
    return [c for c in found if len(c) > 1 or any(n in successors[n] for n in c)]


def close(node, open_nodes, is_open):
    """Takes the nodes from this one on away."""
    group = set()
    while node not in group:
        group.add(open_nodes.pop())
    is_open -= group
    return group


def kernels_of(sass, usage="", elf=""):
    """The kernels in lines that cuobjdump prints with -sass, and what -res-usage and -elf say of them."""
    found, architecture = [], None
    code = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
    for line in sass:
        if instruction := code.match(line):
            found[-1].add(int(instruction.group(1), 16), instruction.group(2))
        elif name := re.match(r"arch = (\S+)", line):
            architecture = name.group(1)
        elif name := re.match(r"\s*Function : (\S+)", line):
            found.append(Kernel(architecture, name.group(1)))
    used, threads = usage_of(usage), threads_of(elf)
    for kernel in found:
        key = kernel.architecture, kernel.symbol
        kernel.registers, kernel.stack, kernel.shared, kernel.local = used.get(key, (0, 0, 0, 0))
        kernel.threads = threads.get(key, 0)
    return found


def usage_of(text):
    """{(architecture, symbol): (registers, stack, static shared memory, local memory)}"""
    found, architecture = {}, None
    pattern = r"arch = (\S+)|Function (\S+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    for name, symbol, *numbers in re.findall(pattern, text):
        architecture = name or architecture
        if symbol:
            found[architecture, symbol] = tuple(map(int, numbers))
    return found


def threads_of(lines):
    """{(architecture, symbol): threads of a CTA}, for kernels with launch bounds."""
    found, architecture, symbol, wanted = {}, None, None, False
    for line in lines:
        if name := re.match(r"arch = (\S+)", line):
            architecture = name.group(1)
        elif name := re.match(r"\.nv\.info\.(\S+)", line):
            symbol = name.group(1)
        elif "Attribute:" in line:
            wanted = "EIATTR_MAX_THREADS" in line
        elif wanted and (value := re.match(r"\s*Value:\s*(0x\w+) (0x\w+) (0x\w+)", line)):
            x, y, z = (int(v, 16) for v in value.groups())
            found[architecture, symbol] = x * y * z
    return found


def read(tool, path):
    """kernels_of() an object file or a program. Raises ValueError where cuobjdump fails or finds none."""
    def lines(option):
        with subprocess.Popen([tool, option, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            yield from run.stdout
            errors = run.stderr.read().strip()
        if run.returncode:
            raise ValueError(f"{path}: {errors or 'cuobjdump failed'}")

    found = kernels_of(lines("-sass"), "".join(lines("-res-usage")), lines("-elf"))
    if not found or found[0].architecture is None:
        raise ValueError(f"{path}: no machine code of a GPU, such as an object file or a program has")
    return found
