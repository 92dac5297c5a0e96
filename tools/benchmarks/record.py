#!/usr/bin/env python3
"""Runs a measurement and writes it as a run of docs/benchmarks (render.py says what is in one).

    record.py FILE --table h200-20b --column "BF16 dense" --device "NVIDIA H200" -- \\
        moesaic bench -m dummy:gpt-oss-20b,dense=bf16 --device cuda -p 2048 -n 128 -r 5

The command is a `moesaic bench` or `moesaic bench-serve`; `-o json` is added to it. Date, commit and, for a CPU, lscpu's
model name are added to its figures. --commit names the commit of the program where it was not built from this checkout.
Then: tools/benchmarks/render.py.
"""
import argparse
import datetime
import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def commit():
    return output_of("git", "describe", "--always", "--dirty", "--exclude", "*").strip()


def cpu():
    for line in output_of("lscpu").splitlines():
        if line.startswith("Model name:"):
            return line.split(":", 1)[1].strip()
    return None


def figures_of(command):
    done = subprocess.run([*command, "-o", "json"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with status {done.returncode}")
    return json.loads(done.stdout)


def main():
    if "--" not in sys.argv:
        sys.exit(__doc__)
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    for name in ("table", "column"):
        parser.add_argument("--" + name, required=True)
    for name in ("device", "commit", "note"):
        parser.add_argument("--" + name)
    o, command = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
    figures = figures_of(command)
    threads = any(figure.get("threads", 0) > 1 or figure.get("device", "").startswith("cpu") for figure in figures)
    run = {"table": o.table, "column": o.column, "device": o.device or figures[0].get("device", ""),
           "cpu": cpu() if threads else None, "date": datetime.date.today().isoformat(), "commit": o.commit or commit(),
           "command": shlex.join(["moesaic", *command[1:]]), "note": o.note, "figures": figures}
    o.file.write_text(json.dumps({k: v for k, v in run.items() if v}, indent=2, ensure_ascii=False) + "\n")
    print(o.file)


if __name__ == "__main__":
    main()
