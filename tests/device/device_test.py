"""The program on the machine's GPU: device_test.py verify|ranks|memcheck PROGRAM. Exit status 77, with the reason, where there
is no GPU, or for memcheck no compute-sanitizer (MOESAIC_COMPUTE_SANITIZER, PATH, /usr/local/cuda/bin)."""

import os
import re
import shutil
import subprocess
import sys

SKIPPED = 77
TIMEOUT = 570  # seconds; below ctest's, so that the output of a command that hangs is seen


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def run(command):
    """Runs a command that must succeed, its output in ctest's log."""
    print("+", *command, flush=True)
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=TIMEOUT).returncode
    except subprocess.TimeoutExpired:
        sys.exit(f"not finished after {TIMEOUT} s: {' '.join(command)}")
    if status != 0:
        sys.exit(f"exit status {status}: {' '.join(command)}")


def need_gpu(program):
    done = subprocess.run([program, "inspect", "-m", "tiny"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"inspect: {done.stderr}")
    device = re.search(r"^device +cuda(?: \(absent: (.*)\))?$", done.stdout, re.MULTILINE)
    if device is None:
        sys.exit(f"inspect names no cuda device: {done.stdout}")
    if device[1]:
        skip(device[1])


def sanitizer():
    for name in (os.environ.get("MOESAIC_COMPUTE_SANITIZER"), shutil.which("compute-sanitizer"),
                 "/usr/local/cuda/bin/compute-sanitizer"):
        if name and os.access(name, os.X_OK):
            return name
    return skip("no compute-sanitizer on this machine")


def verify(program):
    """Every operation against the reference, small shapes."""
    run([program, "verify", "--quick", "--device", "cuda"])


def ranks(program):
    """Every operation by ranks that share the GPU; by eight of them with the portable kernels."""
    for count in (2, 8):
        run([program, "verify", "--quick", "--tp", str(count), "--device", "cuda:" + ",".join(["0"] * count)])


def memcheck(program):
    """Prefill and decoding of one and of several sequences through two layers of the real shapes."""
    bench = [program, "bench", "-m", "dummy:gpt-oss-20b,layers=2", "--device", "cuda", "-p", "1,130", "-n", "2", "-b", "1,16",
             "-r", "1"]
    run([sanitizer(), "--tool", "memcheck", "--error-exitcode", "1", *bench])


if __name__ == "__main__":
    name, moesaic = sys.argv[1:]
    need_gpu(moesaic)
    {"verify": verify, "ranks": ranks, "memcheck": memcheck}[name](moesaic)
