#!/usr/bin/env python3
"""Run clang-tidy over the compiled sources, most recently changed first, within a time budget.

Exit status 1 when a file has findings. Sources for another architecture or that the build does not compile are left out:
only compile_commands.json's files are looked at.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time


def compiled_sources(build):
    with open(os.path.join(build, "compile_commands.json")) as file:
        return sorted({entry["file"] for entry in json.load(file)})


def newest_first(files, root):
    """Uncommitted files, then by the last commit that touched them."""
    log = subprocess.run(["git", "log", "--format=", "--name-only"], cwd=root, capture_output=True, text=True)
    dirty = subprocess.run(["git", "status", "--short", "--no-renames"], cwd=root, capture_output=True, text=True)
    order = [line[3:] for line in dirty.stdout.splitlines()] + log.stdout.split()
    rank = {}
    for position, name in enumerate(order):
        rank.setdefault(os.path.join(root, name), position)
    return sorted(files, key=lambda name: rank.get(name, len(order)))


def check(name, build):
    # GCC's own warning flags mean nothing to clang.
    command = ["clang-tidy", "--quiet", "-p", build, "--extra-arg=-Wno-unknown-warning-option",
               "--extra-arg=-Wno-ignored-optimization-argument", name]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=0, help="stop starting files after this long (0: never)")
    parser.add_argument("files", nargs="*", help="only sources whose path contains one of these")
    args = parser.parse_args()

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = [f for f in compiled_sources(args.build) if not args.files or any(part in f for part in args.files)]
    files = newest_first(files, root)
    deadline = time.monotonic() + args.seconds if args.seconds else float("inf")
    checked, bad = 0, 0

    def task(name):
        return None if time.monotonic() > deadline else check(name, args.build)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, result in zip(files, pool.map(task, files)):
            if result is None:
                continue
            checked += 1
            if result[0] != 0:
                bad += 1
                print(f"{os.path.relpath(name, root)}:\n{result[1]}", flush=True)
    rest = len(files) - checked
    print(f"{checked} files, {bad} with findings" + (f", {rest} not reached in {args.seconds:.0f} s" if rest else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
