#!/usr/bin/env python3
"""Finds circles: files that import each other.

Read are the includes of C, C++ and CUDA, and the imports of the Python package and of the chat page, also those that a function or
a type checker alone makes and those that name a module in a string. Folders cannot have a circle: cmake/moesaic.cmake sees to it.
Prints one line for each circle; exit status 1 if there are any.
"""
import ast
import os
import posixpath
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE, PAGE = "python/moesaic", "src/server/page"
INCLUDE_FOLDERS = ("src", "src/engine", "apps", "include", "")
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
PAGE_IMPORT = re.compile(r'(?:^import .*?|^export .*? from |import\()"(\./[^"]+)"', re.MULTILINE | re.DOTALL)


def includes(name, text, names):
    folders = (posixpath.dirname(name), *INCLUDE_FOLDERS)
    for include in INCLUDE.findall(text):
        places = (posixpath.normpath(posixpath.join(folder, include)) for folder in folders)
        yield from [place for place in places if place in names][:1]


def python_imports(name, text, names):
    """An __init__.py only hands names on; what imports the package by itself wants one of its modules."""
    def module(dotted):
        place = posixpath.join(PACKAGE, *dotted) + ".py"
        return [place] if dotted and place in names else []

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from module(node.module.split(".")) if node.module else [m for alias in node.names for m in module([alias.name])]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"moesaic\.\w+(:\w+)?", node.value):
            yield from module([node.value.split(":")[0].split(".")[1]])


def page_imports(name, text, names):
    for path in PAGE_IMPORT.findall(text):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if place in names:
            yield place


def reader(name):
    if name.endswith((".h", ".cpp", ".cc", ".c", ".cu", ".cuh")):
        return includes
    if name.startswith(PACKAGE) and name.endswith(".py"):
        return python_imports
    return page_imports if name.startswith(PAGE) and name.endswith(".js") else None


def circles(graph):
    """One circle, as a list of names, for each set of names that lead to each other."""
    found, done = [], set()
    for start in sorted(graph):
        path, trail = [], [iter([start])]
        while trail:
            name = next(trail[-1], None)
            if name is None:
                trail.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                found.append(path[path.index(name):])
            elif name not in done:
                path.append(name)
                trail.append(iter(sorted(graph.get(name, ()))))
    return found


def main():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name for name in listed.stdout.splitlines() if reader(name) and os.path.isfile(os.path.join(ROOT, name))}
    graph = {}
    for name in names:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            graph[name] = set(reader(name)(name, file.read(), names)) - {name}
    found = circles(graph)
    print(*("a circle: " + " -> ".join([*circle, circle[0]]) for circle in found), sep="\n", end="\n" if found else "")
    print(f"{len(graph)} files, {sum(map(len, graph.values()))} imports, {len(found)} circles")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
