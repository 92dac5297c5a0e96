#!/usr/bin/env python3
"""What the CUDA kernels' machine code is made of: for each architecture the instructions that a kernel is there for, registers,
static shared memory, and no local memory but what a table allows: none in the loops that multiply matrices.

    tools/check_sass.py [--tiles] PROGRAM [ARCHITECTURE...]     a program or an object file; architectures as CMake names them,
                                                                of which it must have the machine code (90a-real)
--tiles prints a table of the block-scaled tiles in Markdown, how far loads stand ahead of their use among it.
Exit status 1 where something is wrong, 77 where there is no cuobjdump (MOESAIC_CUOBJDUMP, PATH, /usr/local/cuda/bin, or
build/disassembler, which tools/setup_disassembler.sh makes)."""
import re
import sys

import sass
import sass_tiles

MMA = r"[HIQO]MMA|[HQ]GMMA"  # a tensor core's; loops with one are hot
SPILL = r"LDL|STL"  # loads and stores of local memory
REGISTERS, MOST_REGISTERS = 65536, 255  # a multiprocessor's; the most of a thread
UNBOUNDED_THREADS = 512  # a CTA's where a kernel has no launch bounds
STATIC_SHARED, RESERVED_SHARED = 48 * 1024, 1024  # bytes; the latter are CUDA's own, from 9.0 on


def common(copies, *fp8, fp8_mma=()):
    """The kernels of kernels/common/: patterns of their mangled names, and of instructions that each must have. fp8, fp8_mma: of weights
    in FP8, and of products in FP8 (before 8.9 a stub)."""
    return {
        r"\dgemm_small_m_kernelI": (r"HMMA\.16816\.F32",),
        r"\dgemm_large_m_kernelI(?!NS0_14Mxfp4Fp8)": (r"HMMA\.16816\.F32", r"LDGSTS"),
        r"\dgemm_large_m_kernelINS0_14Mxfp4Fp8Source": fp8_mma,
        r"\dgemm_(small|large)_m_kernelINS0_11Mxfp8Source": fp8,
        r"attention_portable_kernel\w+OwnPages": (r"HMMA\.16816\.F32\.BF16", copies),
        r"attention_portable_kernel\w+PlainPages": (r"HMMA\.16816\.F32\.BF16", r"LDGSTS"),
        r"router_tile_kernel": (r"LDGSTS\.E\.BYPASS\.128",),
    }


NATIVE, WIDENED = (r"QMMA\.16832\.F32\.E5M2\.E4M3", r"LDGSTS"), (r"HMMA\.16816\.F32", r"LDGSTS")
CP_ASYNC, BULK, E4M3 = r"LDGSTS\.E\.BYPASS\.128", r"UBLKCP", r"F2FP\.F16\.E4M3\.UNPACK_B"
EARLY = {r"\d(gemm|attention|dense_decode|moe_decode|block_scaled)_\w*kernel": (r"ACQBULK",)}  # griddepcontrol.wait
FEW_ROWS = {
    r"attention_decode_kernel": (r"HMMA\.16816\.F32", BULK, r"UCGABAR_ARV"),
    r"dense_decode_kernel": (r"HMMA\.16816\.F32", BULK, r"UCGABAR_ARV"),
    r"gemm_split_k_kernel": (r"HMMA\.16816\.F32", BULK),
    r"gemm_split_k_kernelILb0E": (r"USETMAXREG",),
    r"moe_decode_kernel": (r"HMMA\.16816\.F32", BULK),
    r"gemm_wgmma_kernel\w+MmaSlabWeights": (r"HMMA\.16816\.F32", r"LDSM\.16\.M88\.4", BULK, r"LDGSTS\.E\.BYPASS\.128"),
}
HOPPER = FEW_ROWS | {
    r"attention_prefill_kernel": (r"HGMMA\.64x128x16\.F32\.BF16", BULK),
    r"gemm_wgmma_kernel(?!\w+MmaSlabWeights)": (r"[HQ]GMMA\.64x", BULK, r"LDGSTS\.E\.BYPASS\.128"),
    r"gemm_wgmma_kernel\w+Fp8SlabWeights": (r"QGMMA\.64x\d+x32\.F32\.E5M2\.E4M3",),
}
# For each family of code: sm_12 is all of 12.x, whose common kernels and tiles are compiled apart.
FAMILIES = {
    "sm_80": common(CP_ASYNC),
    "sm_86": common(CP_ASYNC),
    "sm_87": common(CP_ASYNC),
    "sm_89": common(CP_ASYNC, E4M3, fp8_mma=NATIVE),
    "sm_90": common(BULK, E4M3, fp8_mma=WIDENED) | EARLY | HOPPER,
    "sm_100": common(BULK, E4M3, fp8_mma=WIDENED) | EARLY | FEW_ROWS,
    "sm_103": common(BULK, E4M3, fp8_mma=WIDENED) | EARLY | FEW_ROWS,
    "sm_110": common(BULK, E4M3, fp8_mma=WIDENED) | EARLY | FEW_ROWS,
    "sm_12": common(BULK, E4M3, fp8_mma=NATIVE) | EARLY | {r"block_scaled_(small|large)_m_kernel": (r"QMMA\.SF\.16832", BULK)},
}
# Kernels that may use local memory: in which families (a pattern), bytes of stack, accesses in a loop that multiplies matrices,
# and why. As nvcc 13.0 compiles them, the largest of a row's kernels.
ANY, AMPERE, BLACKWELL = r".*", r"sm_8\d", r"sm_1[01]\d|sm_12"
FULL = "ptxas reads shared memory ahead until 255 registers do not suffice; other ways to write the loop spill as much"
EMULATED = "the instruction is emulated where it does not exist, for tests"
HEAD_128 = "heads of 128: q, a span's sums and all spans' sums take 160 registers; gpt-oss has heads of 64"
FULL_CTA = "1,024 threads, so 64 registers each"
LOCAL = [
    (AMPERE, r"\dgemm_large_m_kernel\w+Li128E", 32, 6, FULL),
    ("sm_90", r"\dgemm_large_m_kernel\w+Li128E", 32, 7, FULL),
    (r"sm_1[01]\d", r"\dgemm_large_m_kernel\w+Li128E", 16, 4, FULL),
    ("sm_12", r"\dgemm_large_m_kernel\w+Li128E", 48, 9, FULL),
    ("sm_89", r"\dgemm_large_m_kernelINS0_14Mxfp4Fp8SourceELi64E", 16, 2, "128 registers, for two CTAs"),
    (r"sm_1[01]\d", r"\dgemm_small_m_kernelINS0_11Mxfp4SourceELi4ENS0_3Qkv", 8, 0, "128 registers, for two CTAs"),
    (AMPERE, r"attention_portable_kernel\w+Pages", 24, 0, HEAD_128),
    (ANY, r"attention_portable_kernel\w+OwnPagesILi128ELb0", 24, 0, HEAD_128),
    (AMPERE, r"attention_portable_kernel\w+OwnPagesILi128ELb1", 80, 6, HEAD_128),
    ("sm_90", r"attention_portable_kernel\w+OwnPagesILi128ELb1", 88, 9, HEAD_128),
    ("sm_90", r"attention_prefill_kernelILi64E", 8, 0, "160 registers; two values wait for the end"),
    (r"sm_90|sm_1[01]\d", r"gemm_split_k_kernelILb0E", 8, 0, "96 registers of 640 threads at the start"),
    (r"sm_1[01]\d", r"gemm_split_k_kernelILb1E", 32, 4, "128 registers of 512 threads"),
    (r"sm_1[01]\d", r"dense_decode_kernelINS0_(11Mxfp8|8Q8)SourceELi1ENS0_3Qkv", 8, 0, "all registers of a CTA's threads"),
    (r"sm_90|sm_1[01]\d", r"gemm_wgmma_kernel\w+SlabWeights\w+WgmmaSwiGlu", 96, 0, "the addresses of other ranks are indexed"),
    ("sm_90", r"gemm_wgmma_kernel\w+(Plain|Byte)Weights\w+Li192E", 72, 0, "96 sums of 160 registers"),
    (r"sm_90|sm_1[01]\d", r"block_scaled_(small|large)_m_kernel", 88, 42, EMULATED),
    (r"sm_8\d|sm_90", r"route_kernel", 184, 0, FULL_CTA + "; 32 scores a lane, for more than 128 experts"),
    (BLACKWELL, r"route_kernel", 128, 0, FULL_CTA + "; 32 scores a lane, for more than 128 experts"),
    (BLACKWELL, r"choose_kernel", 32, 0, "weights are read before the predecessor has ended"),
    (ANY, r"\d+sample(_in_cluster)?_kernel", 40, 0, FULL_CTA),
    (AMPERE, r"join_inputs_kernel", 8, 0, "40 registers"),
    (r"sm_110|sm_12", r"fuse_taps_kernel", 8, 0, "40 registers"),
    (ANY, r"receive_kernel", 64, 0, "the columns of ranks are indexed"),
    (ANY, r"rotations_kernel", 40, 0, "CUDA's sine and cosine in double precision"),
    (ANY, r"(repack|slab)_kernel", 320, 0, "a block's codes are indexed, when a model is loaded"),
]


def family(architecture):
    """sm_90a: sm_90; sm_121a: sm_12."""
    return "sm_12" if architecture.startswith("sm_12") else architecture.rstrip("af")


def allowed(kernel, local):
    """Bytes of stack and accesses in hot loops."""
    rows = [row for row in local if re.fullmatch(row[0], family(kernel.architecture)) and re.search(row[1], kernel.symbol)]
    return max((row[2] for row in rows), default=0), max((row[3] for row in rows), default=0)


def faults_of(kernel, local):
    """What is wrong with a kernel, a line each."""
    stack, accesses = allowed(kernel, local)
    used = kernel.stack + kernel.local
    if used > stack:
        yield f"{used} bytes of local memory, {stack} are allowed"
    if not used and kernel.count(SPILL):
        yield "local memory, but no stack"
    if kernel.count(MMA):
        loops = kernel.innermost_loops(MMA)
        if not loops:
            yield "it multiplies matrices, but not in a loop"
        if (most := max((kernel.count(SPILL, loop) for loop in loops), default=0)) > accesses:
            yield f"{most} accesses of local memory in a loop that multiplies matrices, {accesses} are allowed"
    threads = kernel.threads or UNBOUNDED_THREADS
    if kernel.registers > MOST_REGISTERS or -(-kernel.registers // 8) * 8 * threads > REGISTERS:
        yield f"{kernel.registers} registers of {threads} threads"
    if kernel.shared > STATIC_SHARED + RESERVED_SHARED:
        yield f"{kernel.shared} bytes of static shared memory"
    for pattern, instructions in FAMILIES.get(family(kernel.architecture), {}).items():
        if re.search(pattern, kernel.symbol):
            yield from (f"no {i}" for i in instructions if not kernel.count(i))


def missing(kernels, architectures):
    """What a program should have and has not."""
    found = {k.architecture for k in kernels}
    wanted = {"sm_" + a.removesuffix("-real") for a in architectures if not a.endswith("-virtual")}
    yield from (f"{a}: no machine code" for a in sorted(wanted - found))
    for name in sorted({family(a) for a in found}):
        if name not in FAMILIES:
            yield f"{name}: no row in FAMILIES of tools/check_sass.py says what its kernels must have"
        symbols = [k.symbol for k in kernels if family(k.architecture) == name]
        yield from (f"{name}: no kernel {p}" for p in FAMILIES.get(name, {}) if not any(re.search(p, s) for s in symbols))


def check(kernels, architectures=(), local=None):
    """All faults, a line each."""
    local = LOCAL if local is None else local
    faults = list(missing(kernels, architectures))
    for kernel in kernels:
        wrong = list(faults_of(kernel, local)) + list(sass_tiles.faults_of(kernel))
        faults += [f"{kernel.architecture} {kernel.symbol}: {w}" for w in wrong]
    return faults


def main(arguments):
    """The exit status."""
    tiles = "--tiles" in arguments
    paths = [a for a in arguments if a != "--tiles"]
    if not paths:
        sys.exit(__doc__)
    path, *architectures = paths
    tool = sass.cuobjdump()
    if tool is None:
        print("check_sass: no cuobjdump here")
        return 77
    try:
        kernels = sass.read(tool, path)
    except (OSError, ValueError) as error:
        sys.exit(f"check_sass: {error}")
    if tiles:
        sass_tiles.print_table(kernels)
    for architecture in sorted({k.architecture for k in kernels}):
        code = [k for k in kernels if k.architecture == architecture]
        print(f"{architecture}: {len(code)} kernels, {sum(k.count(MMA) > 0 for k in code)} multiply matrices, "
              f"{sum(k.stack + k.local > 0 for k in code)} have local memory")
    faults = check(kernels, architectures)
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
