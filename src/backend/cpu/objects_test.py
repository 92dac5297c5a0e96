"""Objects of the kernels hold no instruction beyond their instruction set, and no function that could replace another
file's: the linker keeps one of several weak functions, and one of AVX-512 would then run on every CPU.

usage: objects_test.py x86|arm OBJDUMP NM OBJECT...
"""
import pathlib
import re
import shutil
import subprocess
import sys

# Patterns that no instruction may match, and mnemonics that the object must hold: a check that sees nothing fails.
ZMM, YMM = r"%zmm", r"%[yz]mm"
EVEX = r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]|\{%k|\{z\}"
VNNI = r"\bvpdp(bus|wss)ds?\b"
VEX_VNNI = r"\{vex\} +vpdpbusd"
BF16 = r"\bv(dp|cvtne2?ps2)bf16"
# AVX512-FP16 and AVX-VNNI-INT8.
BEYOND_AVX512 = r"\bv(fn?m(add|sub)\d*|add|sub|mul|div|max|min|cvtw2|cvtph2)ph\b|\bvpdpb(ss|su|uu)ds?\b"
VBMI = r"\bvperm([it]2)?b\b|\bvpmultishiftqb\b"
AMX = r"\bt(dp\w+|ileload\w+|ilezero|ilestored|ilerelease)\b|\b(ld|st)tilecfg"
ARM_BF16 = r"\bz\d+\.|\bbf(dot|mmla|mlal[bt]|cvtn?2?)\b"
RULES = {
    "x86": {
        "amx": (BEYOND_AVX512, [AMX, VBMI]),
        "amx_emulated": (f"{BEYOND_AVX512}|{AMX}", [VBMI]),
        "avx512": (f"{BEYOND_AVX512}|{AMX}|{VBMI}", ["vpdpbusd.*%zmm", "vdpbf16ps"]),
        "avx512vnni": (f"{BEYOND_AVX512}|{AMX}|{VBMI}|{BF16}", ["vpdpbusd.*%zmm"]),
        "avx512bw": (f"{BEYOND_AVX512}|{AMX}|{VBMI}|{BF16}|{VNNI}", ["vpmaddubsw.*%zmm"]),
        # Without {vex} objdump means the encoding of AVX-512.
        "avxvnni": (rf"{EVEX}|{BEYOND_AVX512}|{AMX}|{VBMI}|{BF16}|^(?!\{{vex\}}).*{VNNI}", [VEX_VNNI]),
        "avx2": (f"{EVEX}|{BEYOND_AVX512}|{AMX}|{BF16}|{VNNI}", ["vpmaddubsw.*%ymm"]),
        "scalar": (rf"{YMM}|{EVEX}|{AMX}|^(\{{vex\}} *)?v[a-z]|\bp(shufb|maddubsw|mulld|abs[bdw]|sign[bdw])\b|"
                   r"\b(popcnt|lzcnt|sarx|shlx|shrx|andn|bzhi|pext|pdep|mulx|blsr)\b", ["pmaddwd.*%xmm"]),
    },
    "arm": {
        "bf16": (r"\bz\d+\.", [r"\bsmmla\b", r"\bbfdot\b"]),
        "i8mm": (ARM_BF16, [r"\bsmmla\b"]),
        "dotprod": (rf"{ARM_BF16}|\b[su]mmla\b", [r"\bsdot\b"]),
        "scalar": (rf"{ARM_BF16}|\b[su]mmla\b|\b[su]dot\b", [r"\bsmull"]),
    },
}


def instructions(objdump, path):
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True).stdout
    return [line.split("\t", 1)[1].strip() for line in text.splitlines() if line.startswith(" ") and "\t" in line]


def faults(rules, objdump, nm, path):
    isa = re.match(r"kernels_(\w+)\.", pathlib.Path(path).name)[1]
    if isa not in rules:
        yield f"{path}: no rule for {isa}"
        return
    forbidden, wanted = rules[isa]
    code = instructions(objdump, path)
    for line in code:
        if re.search(forbidden, line):
            yield f"{isa}: {line}"
    for pattern in wanted:
        if not any(re.search(pattern, line) for line in code):
            yield f"{isa}: no {pattern} in {len(code)} instructions"
    symbols = subprocess.run([nm, "--defined-only", path], check=True, capture_output=True, text=True).stdout
    for line in symbols.splitlines():
        kind, name = line.split()[-2:]
        if kind in "TWVuiDBR" and not re.search("kKernels_|(gemm|multiply)_amx|amx_to_block_float|^DW[.]ref[.]", name):
            yield f"{isa}: {name} can be linked in place of another file's"


def main():
    architecture, objdump, nm, *objects = sys.argv[1:]
    if not shutil.which(objdump) or not shutil.which(nm):
        print("skipped: there is no objdump")
        return 77
    objects = [path for path in objects if "/kernels_" in path]
    found = [fault for path in objects for fault in faults(RULES[architecture], objdump, nm, path)]
    if len(objects) < 2:
        found.append("no objects of kernels")
    print("\n".join(found[:20]) or f"{len(objects)} objects hold their own instructions only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
