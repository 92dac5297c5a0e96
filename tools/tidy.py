#!/usr/bin/env python3
"""Run clang-tidy over the compiled sources, most recently changed first, within a time budget.

A unity build's sources are checked as they are compiled, several files at once: most of the time goes into the headers
that they share. Exit status 1 when a source has findings. Sources for another architecture or that the build does not compile, and CUDA's,
are left out: only compile_commands.json's files are looked at. What was clean is remembered in --cache, by the contents
of the file, of the project's headers that it includes, of .clang-tidy and of the compile command.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def compiled_sources(build):
    """{file: compile command}; not CUDA's, whose command is nvcc's or makes the host's compiler take them, nor nanobind's."""
    with open(os.path.join(build, "compile_commands.json")) as file:
        return {entry["file"]: entry["command"] for entry in json.load(file)
                if not entry["file"].endswith(".cu") and "/host_simulator/intrinsics.h" not in entry["command"]
                and "/site-packages/" not in entry["file"]}


def newest_first(files):
    """Uncommitted files, then by the last commit that touched them."""
    log = subprocess.run(["git", "log", "--format=", "--name-only"], cwd=ROOT, capture_output=True, text=True)
    dirty = subprocess.run(["git", "status", "--short", "--no-renames"], cwd=ROOT, capture_output=True, text=True)
    order = [line[3:] for line in dirty.stdout.splitlines()] + log.stdout.split()
    rank = {}
    for position, name in enumerate(order):
        rank.setdefault(os.path.join(ROOT, name), position)
    return sorted(files, key=lambda name: min(rank.get(member, len(order)) for member in members(name)))


@functools.lru_cache(maxsize=None)
def text_of(name):
    with open(name, encoding="utf-8") as file:
        return file.read()


def members(name):
    """The files that a unity source holds; for another source itself."""
    return INCLUDE.findall(text_of(name)) if "/Unity/" in name else [name]


def resolve(include, beside):
    """The project's file that an #include "..." means, or None."""
    for folder in (beside, os.path.join(ROOT, "src"), os.path.join(ROOT, "include"), ROOT):
        name = os.path.normpath(os.path.join(folder, include))
        if os.path.isfile(name):
            return name
    return None


def with_headers(name):
    """The file and all of the project's files that it includes."""
    found, todo = {name}, [name]
    while todo:
        current = todo.pop()
        for include in INCLUDE.findall(text_of(current)):
            header = resolve(include, os.path.dirname(current))
            if header and header not in found:
                found.add(header)
                todo.append(header)
    return sorted(found)


def cache_key(name, command, version):
    key = hashlib.sha256(f"{version}\n{command}\n{text_of(os.path.join(ROOT, '.clang-tidy'))}".encode())
    for part in with_headers(name):
        key.update(f"\n{part}\n{text_of(part)}".encode())
    return key.hexdigest()


def check(name, build):
    # GCC's own warning flags mean nothing to clang; a unity source includes .cpp files by design.
    command = ["clang-tidy", "--quiet", "-p", build, "--extra-arg=-Wno-unknown-warning-option",
               "--extra-arg=-Wno-ignored-optimization-argument", "--checks=-bugprone-suspicious-include", name]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--cache", default=os.path.join(ROOT, "build", "tidy"), help="folder of what was clean")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=0, help="stop starting files after this long (0: never)")
    parser.add_argument("files", nargs="*", help="only sources that hold a file whose path contains one of these")
    args = parser.parse_args()

    commands = compiled_sources(args.build)
    files = newest_first([f for f in commands if not args.files or any(part in m for part in args.files for m in members(f))])
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True).stdout
    os.makedirs(args.cache, exist_ok=True)
    deadline = time.monotonic() + args.seconds if args.seconds else float("inf")

    def task(name):
        """None: not reached; else findings, empty where it is clean."""
        mark = os.path.join(args.cache, cache_key(name, commands[name], version))
        if os.path.exists(mark):
            return ""
        if time.monotonic() > deadline:
            return None
        status, output = check(name, args.build)
        if status == 0:
            open(mark, "w").close()
        return output or "clang-tidy failed" if status != 0 else ""

    checked, bad = 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, findings in zip(files, pool.map(task, files)):
            if findings is None:
                continue
            checked += len(members(name))
            if findings:
                bad += 1
                print(f"{os.path.relpath(name, ROOT)}:\n{findings}", flush=True)
    rest = sum(len(members(name)) for name in files) - checked
    print(f"{checked} files, {bad} sources with findings" + (f", {rest} not reached in {args.seconds:.0f} s" if rest else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
