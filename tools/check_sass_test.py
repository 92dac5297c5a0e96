#!/usr/bin/env python3
"""check_sass.py on samples of machine code: what it reads, where loops are, and that each fault is found."""
import unittest

import check_sass
import sass

GEMM, PORTABLE = "_ZN3x19gemm_large_m_kernelINS0_8Q8SourceELi64E", "_ZN3x25attention_portable_kernelINS0_9OwnPagesE"
USED = {"REG": 64, "STACK": 0, "SHARED": 0, "LOCAL": 0}


def program(body, symbol=GEMM, architecture="sm_86", threads=256, **used):
    """A program with one kernel, as the three options of cuobjdump print it. body: an instruction a line, 16 bytes each."""
    lines = [line.strip() for line in body.strip().splitlines()]
    code = "".join(f"        /*{16 * i:04x}*/    {line} ;    /* 0x0 */\n    /* 0x1 */\n" for i, line in enumerate(lines))
    head = f"Fatbin elf code:\n================\narch = {architecture}\n"
    uses = " ".join(f"{name}:{value}" for name, value in (USED | used).items())
    bounds = f"\tAttribute:\tEIATTR_MAX_THREADS\n\tFormat:\tEIFMT_SVAL\n\tValue:\t{threads // 2:#x} 0x2 0x1 \n" if threads else ""
    return sass.kernels_of(
        (head + f"\t\tFunction : {symbol}\n" + code).splitlines(), head + f" Function {symbol}:\n  {uses} CONSTANT[0]:400\n",
        (head + f".nv.info.{symbol}\n\tAttribute:\tEIATTR_REGCOUNT\n\tValue:\t0x1 0x1 0x1\n" + bounds).splitlines())


def faults(kernels, local=()):
    return list(check_sass.faults_of(kernels[0], local))


CLEAN = """
    S2R R0, SR_TID.X
    LDGSTS.E.BYPASS.128 [R4], [R2.64]
    HMMA.16816.F32 R8, R4, R12, R8
    @P0 BRA 0x10
    EXIT
    BRA 0x50
"""
# The inner loop is 0x20 to 0x50, the outer one 0x10 to 0x70.
NESTED = """
    MOV R0, RZ
    {outer}
    LDGSTS.E.BYPASS.128 [R4], [R2.64]
    HMMA.16816.F32 R8, R4, R12, R8
    {inner}
    @!P0 BRA 0x20
    NOP
    @P1 BRA 0x10
    {after}
    EXIT
"""


def nested(**places):
    return NESTED.format(**{"outer": "NOP", "inner": "NOP", "after": "NOP"} | places)


class Reading(unittest.TestCase):
    def test_a_kernel_and_what_it_uses(self):
        kernel, = program(CLEAN, REG=72, STACK=8, SHARED=1152, LOCAL=4, threads=128)
        self.assertEqual((kernel.architecture, kernel.symbol), ("sm_86", GEMM))
        self.assertEqual((kernel.registers, kernel.stack, kernel.shared, kernel.local), (72, 8, 1152, 4))
        self.assertEqual(kernel.threads, 128)
        self.assertEqual(kernel.lines[3], "BRA 0x10")
        self.assertEqual(kernel.guarded, [False, False, False, True, False, False])
        uniform, = program("@!UP0 UBLKCP.S.G [UR4], [UR6]\n@UP1 UMOV UR4, UR6")
        self.assertEqual((uniform.lines, uniform.guarded), (["UBLKCP.S.G [UR4], [UR6]", "UMOV UR4, UR6"], [True, True]))

    def test_no_launch_bounds(self):
        self.assertEqual(program(CLEAN, threads=0)[0].threads, 0)


class Loops(unittest.TestCase):
    def loops(self, body):
        return sorted(sorted(loop) for loop in sass.loops_of(program(body)[0].successors()))

    def test_nested(self):
        self.assertEqual(self.loops(nested()), [[1, 2, 3, 4, 5, 6, 7], [2, 3, 4, 5]])
        self.assertEqual(program(nested())[0].innermost_loops("HMMA"), [{2, 3, 4, 5}])
        self.assertEqual(program(nested())[0].innermost_loops("LDL"), [])

    def test_a_branch_back_from_code_out_of_line_is_none(self):
        self.assertEqual(self.loops("@P0 BRA 0x30\nHMMA.16816.F32 R8, R4, R12, R8\nEXIT\nSTL [R1], R2\nBRA 0x10"), [])

    def test_code_out_of_line_belongs_to_the_loop_that_it_returns_to(self):
        self.assertEqual(self.loops("NOP\n@P0 BRA 0x40\n@P1 BRA 0x0\nEXIT\nSTL [R1], R2\nBRA 0x20"), [[0, 1, 2, 4, 5]])

    def test_conditions_stand_before_or_behind(self):
        for branch in ("@!UP0 BRA 0x20", "BRA.U UP0, 0x20", "BRA P0, 0x20", "BRA.U !UP0, 0x20"):
            self.assertEqual(self.loops(f"{branch}\nNOP\nNOP\n@P1 BRA 0x0"), [[0, 1, 2, 3]], branch)
        self.assertEqual(self.loops("BRA 0x20\nNOP\nNOP\n@P1 BRA 0x0"), [[0, 2, 3]])

    def test_nothing_goes_on_behind_an_end(self):
        for end in ("EXIT", "RET.REL.NODEC R20 0x0", "BRA 0x40"):
            self.assertEqual(self.loops(f"NOP\n{end}\nNOP\nBRA 0x0\nEXIT"), [], end)

    def test_a_call_comes_back(self):
        self.assertEqual(self.loops("CALL.REL.NOINC 0x30\n@P0 BRA 0x0\nEXIT\nRET.REL.NODEC R20 0x0"), [[0, 1]])


class Faults(unittest.TestCase):
    def expect(self, kernels, *texts, local=()):
        found = faults(kernels, local)
        self.assertEqual(len(found), len(texts), found)
        for fault, text in zip(found, texts):
            self.assertIn(text, fault)

    def test_none(self):
        self.expect(program(CLEAN))
        self.expect(program(nested()))

    def test_a_spill_in_the_hot_loop(self):
        spilling = program(nested(inner="STL [R1+0x4], R9"), STACK=8)
        self.expect(spilling, "8 bytes of local memory", "1 accesses of local memory in a loop", local=())
        self.expect(spilling, "1 accesses of local memory in a loop", local=[("sm_86", "gemm_large", 8, 0, "")])
        self.expect(spilling, local=[("sm_8.", "gemm_large", 8, 1, "")])
        self.expect(program(nested(inner="@P2 LDL.LU.64 R8, [R1]"), STACK=8), "1 accesses", local=[(".*", "gemm", 8, 0, "")])

    def test_what_is_allowed_elsewhere_is_not_allowed_here(self):
        spilling = program(nested(inner="STL [R1+0x4], R9"), STACK=8)
        for row in (("sm_80", "gemm_large", 8, 1, ""), ("sm_8", "gemm_large", 8, 1, ""), (".*", "gemm_small", 8, 1, "")):
            self.expect(spilling, "local memory", "accesses", local=[row])

    def test_a_spill_around_the_hot_loop(self):
        for place in ("outer", "after"):
            spilling = program(nested(**{place: "LDL R9, [R1]"}), STACK=8)
            self.expect(spilling, "8 bytes of local memory, 0 are allowed")
            self.expect(spilling, "8 bytes of local memory, 4 are allowed", local=[(".*", "gemm", 4, 0, "")])
            self.expect(spilling, local=[(".*", "gemm", 8, 0, "")])

    def test_local_memory_without_a_stack(self):
        self.expect(program(CLEAN, LOCAL=16), "16 bytes of local memory")
        self.expect(program(nested(after="LDL R9, [R1]")), "no stack")

    def test_products_without_a_loop(self):
        self.expect(program("LDGSTS.E.BYPASS.128 [R4], [R2.64]\nHMMA.16816.F32 R8, R4, R12, R8\nEXIT"), "not in a loop")

    def test_a_missing_instruction(self):
        self.expect(program(CLEAN.replace("LDGSTS.E.BYPASS.128", "LDG.E.128")), "no LDGSTS")
        self.expect(program(CLEAN.replace("HMMA.16816.F32", "HMMA.1688.F32")), "no HMMA")
        portable = CLEAN.replace("F32", "F32.BF16")
        self.expect(program(portable, PORTABLE))
        self.expect(program(portable, PORTABLE, "sm_90a"), "no UBLKCP", "no ACQBULK")

    def test_registers(self):
        self.expect(program(CLEAN, REG=255))
        self.expect(program(CLEAN, REG=256), "256 registers")
        self.expect(program(CLEAN, REG=129, threads=512), "129 registers of 512 threads")
        self.expect(program(CLEAN, REG=129, threads=0), "129 registers of 512 threads")
        self.expect(program(CLEAN, REG=128, threads=512))

    def test_shared_memory(self):
        self.expect(program(CLEAN, SHARED=49 * 1024))
        self.expect(program(CLEAN, SHARED=49 * 1024 + 1), "static shared memory")

    def test_an_architecture_without_a_row(self):
        found = check_sass.check(program(CLEAN, architecture="sm_130a"))
        self.assertEqual(len(found), 1)
        self.assertIn("sm_130: no row", found[0])

    def test_hoppers_kernels_for_few_rows_elsewhere(self):
        body = "ACQBULK\nUSETMAXREG.DEALLOC.CTAPOOL 0x60\nUBLKCP.S.G [UR4], [UR6]\nHMMA.16816.F32 R8, R4, R12, R8\n@P0 BRA 0x30\nEXIT"
        for architecture in ("sm_100f", "sm_103f", "sm_110f"):
            kernels = program(body, "_ZN3x19gemm_split_k_kernelILb0E", architecture, STACK=8)
            self.expect(kernels, local=check_sass.LOCAL)
            self.expect(program(body.replace("UBLKCP", "LDGSTS"), kernels[0].symbol, architecture), "no UBLKCP")

    def test_kernels_and_architectures_that_are_missing(self):
        found = check_sass.check(program(CLEAN), ["86-real", "90a-real", "90-virtual"], [])
        self.assertEqual([f for f in found if "no machine code" in f], ["sm_90a: no machine code"])
        self.assertTrue([f for f in found if "sm_86: no kernel" in f and "gemm_small_m" in f])

    def test_a_tile(self):
        mma, weights, tokens = "QMMA.SF.16832.F32.E2M1.E4M3.E8 R8, R4, R6, R8\n", "LDS.128 R4, [R2]\nNOP\n", "LDG.E.128 R4, [R2]\nNOP\n"
        body = f"MOV R9, R8\n{weights * 4}{tokens * 2}UBLKCP.S.G [UR4], [UR6]\nACQBULK\n{mma * 8}@P0 BRA 0x0\n"

        def tile_faults(code, architecture="sm_120a", **used):
            symbol = "_ZN3x27block_scaled_small_m_kernelILNS1_7ElementE0ELi1ELi1ENS0_5StoreE"
            found = check_sass.check(program(code, symbol, architecture, 128, **used))
            return [f.split(": ")[1] for f in found if symbol in f]

        for architecture in ("sm_120a", "sm_121a", "sm_120f"):
            self.assertEqual(tile_faults(body, architecture), [])
        self.assertEqual(tile_faults(body.replace("LDS.128", "LDS.64", 1)), ["3 16-byte loads of weights, expected 4"])
        self.assertEqual(tile_faults(body.replace("LDG.E.128", "LDG.E.64", 1)), ["tokens are not loaded 16 bytes at a time"])
        self.assertEqual(tile_faults(body.replace(mma, "", 1)), ["7 QMMA.SF.16832.F32.E2M1.E4M3.E8, expected 8"])
        self.assertEqual(tile_faults(body.replace("MOV R9, R8", "LDS.128 R12, [R2]\nMOV R9, R12")),
                         ["a 16-byte load is used by the next instruction"])
        self.assertEqual(tile_faults(body, REG=255), [])
        self.assertEqual(tile_faults(body, REG=256), ["256 registers of 128 threads"])


if __name__ == "__main__":
    unittest.main()
