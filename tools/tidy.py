#!/usr/bin/env python3
"""Run clang-tidy over the compiled sources, many files at a time.

Four fifths of clang-tidy's time go into headers, so files are checked in groups: one source that includes them all. Two files
that give one name to different things (helpers of an anonymous namespace, say) go into different groups, and one that defines a
macro or uses a whole namespace has a group to itself. Should a group not compile after all, its halves are checked, in the end
a file as the build compiles it. With --quick the check for parameters that are copied is left out where Boost's or CUDA's headers
are included: there it takes three quarters of the time, for findings in those headers that nobody sees. Exit status 1 when
something was found. Sources for another architecture or that the build does not compile, and CUDA's, are left out: only
compile_commands.json's files are looked at.
Groups without findings are remembered in --cache, by the contents of the files, of the project's headers that they include, of
.clang-tidy and of the compile command.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ALONE = re.compile(r"^(?:#define|using namespace) ", re.MULTILINE)
INCLUDE_FOLDERS = [os.path.join(ROOT, folder) for folder in ("src", "src/engine", "apps", "include", ".")]
LINES_OF_A_GROUP = 12000
SLOW_CHECK, SLOW_HEADER = "performance-unnecessary-value-param", re.compile(r"^#include <(?:boost/|cuda)", re.MULTILINE)
# The name that a line without indentation defines; names behind a :: belong to a class.
TEST_CASE = re.compile(r"TEST(?:_[FP])?\((\w+), (\w+)\)")
USING = re.compile(r"using (?:[\w:]+::)?(\w+)(?: = .*)?;")
TYPE = re.compile(r"(?:struct|class|enum class|enum|union) (\w+)")
FUNCTION = re.compile(r"(?<![:\w~])(?!static_assert|void|noexcept)([a-z_]\w*)\(")
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?:\[[^\]]*\])? = ")
VARIABLE = re.compile(r"[^(]*?(?<![:\w])(\w+)(?:\[[^(]*?\])?(?: = |;|\{| \{)")


class Group:
    """Files that are checked together, with the flags that they need."""

    def __init__(self, kind, without):
        self.kind, self.without = kind, without
        self.files, self.flags, self.names, self.headers, self.lines = [], {}, {}, set(), 0

    def takes(self, name):
        """Whether the file's names are new here, and those of the headers that it brings; an alias may stand twice."""
        names, headers = names_of(name), headers_of(name)
        return (self.lines + len(text_of(name).splitlines()) <= LINES_OF_A_GROUP
                and all(line.startswith("using ") and self.names[key] == line for key, line in names.items() if key in self.names)
                and not any(key in names_of(header) for header in self.headers - headers for key in names)
                and not any(key in self.names for header in headers - self.headers for key in names_of(header))
                and defined_in(headers - self.headers).isdisjoint(defined_in(self.headers - headers)))

    def add(self, name, flags):
        self.files.append(name)
        self.flags.update(dict.fromkeys(flags))
        self.names.update(names_of(name))
        self.headers |= headers_of(name)
        self.lines += len(text_of(name).splitlines())

    def halves(self):
        """Two groups of the same files and flags."""
        half = len(self.files) // 2
        for files in (self.files[:half], self.files[half:]):
            group = Group(self.kind, self.without)
            group.files, group.flags = files, self.flags
            yield group

    def text(self):
        return "".join(f'#include "{name}"\n' for name in self.files)


def compiled_sources(build):
    """[(file, compile command)]; not CUDA's, whose command is nvcc's or makes the host's compiler take them, nor nanobind's."""
    with open(os.path.join(build, "compile_commands.json")) as file:
        return [(entry["file"], entry["command"]) for entry in json.load(file)
                if not entry["file"].endswith(".cu") and "/host_simulator/intrinsics.h" not in entry["command"]
                and "/site-packages/" not in entry["file"]]


@functools.lru_cache(maxsize=None)
def text_of(name):
    with open(name, encoding="utf-8") as file:
        return file.read()


def members(name):
    """The files that a unity source holds; for another source itself."""
    return INCLUDE.findall(text_of(name)) if "/Unity/" in name else [name]


def flags_of(command):
    """What clang needs of a compile command, and the part of it that the files of a group must share: stand-ins of CUDA's
    headers are never mixed with the headers."""
    words, flags = shlex.split(command), []
    for i, word in enumerate(words):
        if word in ("-isystem", "-include"):
            flags.append(f"{word}\0{words[i + 1]}")
        elif re.match(r"-(I|D|std=|m(?!m?d$))", word):
            flags.append(word)
    return flags, tuple(flag for flag in flags if "stand_ins" in flag or not flag.startswith(("-I", "-D", "-isystem")))


@functools.lru_cache(maxsize=None)
def names_of(name):
    """{name: line that defines it} of what stands outside of classes and functions."""
    names = {}
    for line in text_of(name).splitlines():
        case = TEST_CASE.match(line)
        if case:
            names["_".join(case.groups())] = line
        elif re.match(r"[A-Za-z]", line) and not line.startswith("namespace"):
            found = USING.match(line) or TYPE.match(line) or FUNCTION.search(line) or VARIABLE.match(line)
            if found:
                names[found.group(1)] = line
            if line.startswith("const"):  # others of the same declaration
                names.update(dict.fromkeys(CONSTANT.findall(line), line))
    return names


def defined_in(headers):
    """Functions and types that headers define: tests of neighbouring folders have helpers of one name."""
    return {name for header in headers for name, line in names_of(header).items()
            if line.startswith("inline ") or TYPE.match(line) and not line.endswith(";")}


def grouped(sources, quick):
    """The groups, largest first."""
    groups, seen = [], set()
    for source, command in sources:
        flags, shared = flags_of(command)
        for name in members(source):
            slow = quick and any(SLOW_HEADER.search(text_of(part)) for part in [name, *headers_of(name)])
            kind = (os.path.splitext(name)[1] == ".c", name if ALONE.search(text_of(name)) else "", slow, *shared)
            if (name, kind) in seen:  # a source of several tests is checked once
                continue
            seen.add((name, kind))
            group = next((g for g in groups if g.kind == kind and g.takes(name)), None)
            if group is None:
                group = Group(kind, [SLOW_CHECK] if slow else [])
                groups.append(group)
            group.add(name, flags)
    return sorted(groups, key=lambda group: -group.lines)


def resolve(include, beside):
    """The project's file that an #include "..." means, or None."""
    for folder in (beside, *INCLUDE_FOLDERS):
        name = os.path.normpath(os.path.join(folder, include))
        if os.path.isfile(name):
            return name
    return None


@functools.lru_cache(maxsize=None)
def headers_of(name):
    """All of the project's files that the file includes."""
    found, todo = set(), [name]
    while todo:
        current = todo.pop()
        for include in INCLUDE.findall(text_of(current)):
            header = resolve(include, os.path.dirname(current))
            if header and header not in found:
                found.add(header)
                todo.append(header)
    return found


def cache_key(group, version):
    key = hashlib.sha256(f"{version}\n{list(group.flags)}\n{group.without}\n{text_of(os.path.join(ROOT, '.clang-tidy'))}".encode())
    for part in [*group.files, *sorted(group.headers)]:
        key.update(f"\n{part}\n{text_of(part)}".encode())
    return key.hexdigest()


def clang_tidy(name, without, options):
    # A group includes .cpp files by design.
    checks = ",".join(f"-{check}" for check in ["bugprone-suspicious-include", *without])
    command = ["clang-tidy", "--quiet", f"--checks={checks}", name, *options]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return result.stdout or "clang-tidy failed" if result.returncode else ""


def check(group, path, sources, build):
    """What is found in the group, empty where nothing is."""
    with open(f"{path}.c{'' if group.kind[0] else 'pp'}", "w", encoding="utf-8") as file:
        file.write(group.text())
    findings = clang_tidy(file.name, group.without, ["--", *[word for flag in group.flags for word in flag.split("\0")]])
    error = next((line for line in findings.splitlines() if "clang-diagnostic-error" in line), None)
    if error is None:
        return findings
    if len(group.files) > 1:
        print(f"{file.name} does not compile, so its halves are checked: {error}", flush=True)
        return "".join(check(half, f"{path}_{i}", sources, build) for i, half in enumerate(group.halves()))
    # GCC's own warning flags mean nothing to clang.
    options = ["-p", build, "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-optimization-argument"]
    return "".join(clang_tidy(source, group.without, options) for source, _ in sources if group.files[0] in members(source))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--cache", default=os.path.join(ROOT, "build", "tidy"), help="folder of what was clean")
    parser.add_argument("--quick", action="store_true", help=f"without {SLOW_CHECK} where Boost's or CUDA's headers are included")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*", help="only sources that hold a file whose path contains one of these")
    args = parser.parse_args()

    sources = [(source, command) for source, command in compiled_sources(args.build)
               if not args.files or any(part in m for part in args.files for m in members(source))]
    groups = grouped(sources, args.quick)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True).stdout
    os.makedirs(args.cache, exist_ok=True)

    def task(item):
        number, group = item
        mark = os.path.join(args.cache, cache_key(group, version))
        if os.path.exists(mark):
            return ""
        findings = check(group, os.path.join(args.cache, f"group_{number}"), sources, args.build)
        if not findings:
            open(mark, "w").close()
        return findings

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for findings in pool.map(task, enumerate(groups)):
            if findings:
                bad += 1
                print(findings, flush=True)
    print(f"{sum(len(group.files) for group in groups)} files in {len(groups)} groups, {bad} of them with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
