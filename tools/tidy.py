#!/usr/bin/env python3
"""Run clang-tidy over the compiled sources, many files at a time.

Nine tenths of clang-tidy's time go into headers, so files are checked in groups: one source that includes them all. Where two
files give one name to different things of their own (helpers of an anonymous namespace, say), clang-tidy reads them with a
number behind the name; where that cannot be done, they go into different groups. A file that defines a macro before its headers
has a group to itself. Should a group not compile after all, the files that have the errors are checked apart from it, or else
its halves, in the end a file as the build compiles it. Exit status 1 when something was found. Sources for another architecture
or that the build does not compile, and CUDA's, are left out: only compile_commands.json's files are looked at.
Groups without findings are remembered in --cache, by the contents of the files, of the project's headers that they include, of
.clang-tidy and of the compile command.
"""
import argparse
import collections
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
ALONE = re.compile(r"^#define .*^#include ", re.MULTILINE | re.DOTALL)
CUDA_HEADER = re.compile(r"^#include <cuda", re.MULTILINE)
LATE = re.compile(r"^(?:#define|using namespace) ", re.MULTILINE)
INCLUDE_FOLDERS = [os.path.join(ROOT, folder) for folder in ("src", "src/engine", "apps", "include", ".")]
LINES_OF_A_GROUP = 16000
# The name that a line without indentation defines; names behind a :: belong to a class.
TEST_CASE = re.compile(r"TEST(?:_[FP])?\((\w+), (\w+)\)")
MEMBER = re.compile(r"(?:\.|->|(?<!moesaic)::~?)(\w+)")
NAMESPACE = re.compile(r"(?:inline )?namespace ?([\w:]*) ?\{$")
USED = re.compile(r"using [\w:]+;")
USING = re.compile(r"using (?:[\w:]+::)?(\w+)(?: = .*)?;")
TYPE = re.compile(r"(?:struct|class|enum class|enum|union) (\w+)")
FUNCTION = re.compile(r"[^(]*?(?<![:\w~.>])(?!static_assert|void|noexcept|sizeof|decltype|alignas)([a-z_]\w*)(?<!_)\(")
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?:\[[^\]]*\])? = ")
VARIABLE = re.compile(r"[^(]*?(?<![:\w])(\w+)(?:\[[^(]*?\])?(?: = |;|\{| \{)")


class Group:
    """Files that are checked together, with the flags that they need."""

    def __init__(self, kind):
        self.kind = kind
        self.files, self.flags, self.shared, self.headers, self.lines = [], {}, {}, set(), 0

    def takes(self, name):
        """Whether the names that the file shares with its headers are new here, and those of the headers that it brings; an
        alias may stand twice."""
        names, headers = shared_names(name), headers_of(name)
        return (self.lines + len(text_of(name).splitlines()) <= LINES_OF_A_GROUP
                and all(line.startswith("using ") and self.shared[key] == line for key, line in names.items() if key in self.shared)
                and not any(key in names_of(header) for header in self.headers - headers for key in names)
                and not any(key in self.shared for header in headers - self.headers for key in names_of(header))
                and defined_in(headers - self.headers).isdisjoint(defined_in(self.headers - headers)))

    def add(self, name, flags):
        self.files.append(name)
        self.flags.update(dict.fromkeys(flags))
        self.shared.update(shared_names(name))
        self.headers |= headers_of(name)
        self.lines += len(text_of(name).splitlines())

    def part(self, files):
        """A group of some of the files, with the same flags."""
        group = Group(self.kind)
        for file in files:
            group.add(file, self.flags)
        return group

    def text(self):
        """Includes all files; those that use a whole namespace come last, where they are not seen by the others."""
        return "".join(f'#include "{name}"\n' for name in sorted(self.files, key=lambda name: bool(LATE.search(text_of(name)))))

    def renamed(self):
        """[(file, its text)] of those that give a name of their own to what another file or a header of others names so."""
        definitions = collections.defaultdict(set)  # {name: files that have it and aliases that it is}
        for name in [*self.files, *self.headers]:
            for key, line in names_of(name).items():
                definitions[plain(key)].add(line if line.startswith("using ") else name)
        for number, name in enumerate(self.files):
            keys = [key for key in own_names(name) if len(definitions[plain(key)]) > 1]
            if keys:
                yield name, with_numbers(text_of(name), keys, number)


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
    """{name: line that defines it} of what stands outside of classes and functions; names have their namespace before them, and
    lines of functions in an anonymous one begin with "static"."""
    names, spaces = {}, []
    for line in text_of(name).splitlines():
        space, case = NAMESPACE.match(line), TEST_CASE.match(line)
        before = "".join(spaces)
        if space:
            spaces.append(f"{space.group(1)}::" if space.group(1) else "")
        elif line.startswith("}  // namespace") and spaces:
            spaces.pop()
        elif case:
            names[before + "_".join(case.groups())] = line
        elif re.match(r"(?!using namespace )[A-Za-z]", line):
            found = USING.match(line) or TYPE.match(line) or FUNCTION.match(line) or VARIABLE.match(line)
            if found:
                names[before + found.group(1)] = f"static {line}" if "" in spaces and FUNCTION.match(line) else line
            if line.startswith("const"):  # others of the same declaration
                names.update(dict.fromkeys((before + key for key in CONSTANT.findall(line)), line))
    return names


def plain(key):
    return key.rsplit("::", 1)[-1]


@functools.lru_cache(maxsize=None)
def known_names(name):
    return {plain(key) for header in headers_of(name) for key in names_of(header)}


@functools.lru_cache(maxsize=None)
def own_names(name):
    """Those of names_of that nothing else has to know and no member has."""
    members = set(MEMBER.findall(text_of(name)))
    return {key: line for key, line in names_of(name).items()
            if plain(key) not in known_names(name) | members and not USED.match(line)}


@functools.lru_cache(maxsize=None)
def shared_names(name):
    """The others, without functions that headers declare: those of one name are overloads."""
    return {key: line for key, line in names_of(name).items() if key not in own_names(name) and
            not (plain(key) in known_names(name) and FUNCTION.match(line) and not line.startswith("static "))}


def with_numbers(text, keys, number):
    """The text with a number behind these names, in the style of the name; members' are left, and so are names of arguments."""
    word = re.compile(r"(?<![\w.:\"])(?<!->)(?<!/\*)(?:" + "|".join(f"{key}|{plain(key)}" for key in keys) + r")\b")
    cases = set(map(plain, keys))

    def numbered(found):
        return f"{found[0]}_{number}" if plain(found[0]).islower() else f"{found[0]}{number}"

    lines = []
    for line in text.splitlines(keepends=True):
        test = TEST_CASE.match(line)
        if test and "_".join(test.groups()) in cases:
            line = line[:test.end(2)] + str(number) + line[test.end(2):]
        lines.append(line if line.startswith("#") else word.sub(numbered, line))
    return "".join(lines)


def defined_in(headers):
    """Functions and types that headers define: tests of neighbouring folders have helpers of one name."""
    return {plain(name) for header in headers for name, line in names_of(header).items()
            if line.startswith("inline ") or TYPE.match(line) and not line.endswith(";")}


def grouped(sources):
    """The groups, largest first."""
    groups, seen = [], set()
    files = [(name, *flags_of(command)) for source, command in sources for name in members(source)]
    for name, flags, shared in files:
        cuda = any(CUDA_HEADER.search(text_of(part)) for part in [name, *headers_of(name)])
        if not cuda:  # CUDA's headers and their stand-ins mean nothing to it
            shared = tuple(flag for flag in shared if "stand_ins" not in flag)
        kind = (os.path.splitext(name)[1] == ".c", name if ALONE.search(text_of(name)) else "", *shared)
        if (name, kind) in seen:  # a source of several tests is checked once
            continue
        seen.add((name, kind))
        group = next((g for g in groups if g.kind == kind and g.takes(name)), None)
        if group is None:
            group = Group(kind)
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
    key = hashlib.sha256(f"{version}\n{list(group.flags)}\n{text_of(os.path.join(ROOT, '.clang-tidy'))}".encode())
    for part in [*group.files, *sorted(group.headers)]:
        key.update(f"\n{part}\n{text_of(part)}".encode())
    return key.hexdigest()


def clang_tidy(name, options):
    # A group includes .cpp files by design.
    command = ["clang-tidy", "--quiet", "--checks=-bugprone-suspicious-include", name, *options]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return result.stdout or "clang-tidy failed" if result.returncode else ""


def overlay(group, path):
    """Writes the group's renamed files, and the list by which clang reads them in the place of those that they are made from."""
    roots = []
    for number, (name, text) in enumerate(group.renamed()):
        with open(f"{path}_{number}.renamed", "w", encoding="utf-8") as file:
            file.write(text)
        roots.append({"name": name, "type": "file", "external-contents": file.name})
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump({"version": 0, "use-external-names": False, "roots": roots}, file)
    return file.name


def check(group, path, sources, build):
    """What is found in the group, empty where nothing is."""
    with open(f"{path}.c{'' if group.kind[0] else 'pp'}", "w", encoding="utf-8") as file:
        file.write(group.text())
    flags = [word for flag in group.flags for word in flag.split("\0")]
    findings = clang_tidy(file.name, [f"--vfsoverlay={overlay(group, path)}", "--", *flags])
    errors = [line for line in findings.splitlines() if "clang-diagnostic-error" in line]
    if not errors:
        return findings
    if len(group.files) > 1:
        bad = [name for name in group.files if any(line.startswith(f"{name}:") for line in errors)]
        if not bad or len(bad) == len(group.files):
            bad = group.files[:len(group.files) // 2]
        print(f"{file.name} does not compile, so {', '.join(bad)} are checked apart from the others: {errors[0]}", flush=True)
        parts = [bad, [name for name in group.files if name not in bad]]
        return "".join(check(group.part(files), f"{path}_{i}", sources, build) for i, files in enumerate(parts))
    # GCC's own warning flags mean nothing to clang.
    options = ["-p", build, "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-optimization-argument"]
    return "".join(clang_tidy(source, options) for source, _ in sources if group.files[0] in members(source))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--cache", default=os.path.join(ROOT, "build", "tidy"), help="folder of what was clean")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*", help="only sources that hold a file whose path contains one of these")
    args = parser.parse_args()

    sources = [(source, command) for source, command in compiled_sources(args.build)
               if not args.files or any(part in m for part in args.files for m in members(source))]
    groups = grouped(sources)
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
