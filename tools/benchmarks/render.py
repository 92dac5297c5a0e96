#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md and README.md, and the plot beside them, from the runs in docs/benchmarks/*.json.

    render.py            rewrite the pages
    render.py --check    exit status 1 if a page is not up to date, or a run is not valid

A run is one file, written by record.py or by hand:

    table, column   the table that it belongs to, and its column there
    device, cpu     cpu: for figures of a CPU, the model name that lscpu prints
    date, commit    commit is left out where it was not recorded
    command         one command, or a list of commands
    note            optional: what else a reader must know
    figures         what `moesaic bench -o json`, `bench --moe -o json` or `bench-serve -o json` printed, verbatim;
                    by hand at least test, depth, batch and tok_s (bench), tokens and us (--moe), or streams;
                    stddev where an engine prints that
    peers           optional: engine, version, command, figures of other engines in the same run;
                    "same_run": false where it was not the same run

A page says where a table goes: `<!-- table: NAME -->` and `<!-- end -->` around it. Where two runs have the same cell, the
newer one counts. A new run is shown as soon as its file lies in the folder.
"""
import json
import pathlib
import re
import sys

from plot import svg

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = ROOT / "docs/benchmarks"
PAGES = ("docs/benchmarks.md", "README.md")
PLOT = ROOT / "docs/user/pictures/h200-llama.svg"
REQUIRED = ("table", "column", "device", "date", "command", "figures")
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read_runs():
    runs, faults = [], []
    for path in sorted(RUNS.glob("*.json")):
        try:
            run = json.loads(path.read_text())
        except ValueError as error:
            faults.append(f"{path.name}: {error}")
            continue
        faults += [f"{path.name}: {key} is missing" for key in REQUIRED if not run.get(key)]
        faults += [f"{path.name}: figure {i} is of no known kind" for i, f in enumerate(run.get("figures", []))
                   if kind_of(f) is None]
        runs.append({**run, "file": path.name})
    return sorted(runs, key=lambda run: (run.get("date", ""), run["file"])), faults


# ---- figures ----

def kind_of(figure):
    if "streams" in figure or "requests_per_second" in figure:
        return "serve"
    if figure.get("test") == "moe":
        return "moe"
    return "bench" if "tok_s" in figure else None


def row_of(figure):
    """What identifies a row of a table; rows are sorted by it."""
    kind = kind_of(figure)
    if kind == "serve":
        return (figure.get("streams", figure.get("requests_per_second")),)
    if kind == "moe":
        return (figure["tokens"],)
    test = re.fullmatch(r"(pp|tg)(\d+)", figure["test"])
    return test[1] == "tg", figure["depth"] > 0 and figure["batch"] == 1, figure["batch"], figure["depth"], int(test[2])


def name_of(figure):
    if kind_of(figure) != "bench":
        return number(row_of(figure)[0])
    depth = f" at depth {number(figure['depth'])}" if figure["depth"] else ""
    batch = f", {figure['batch']} sequences" if figure["batch"] > 1 else ""
    return figure["test"] + batch + depth


def number(value):
    digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def beside(figure, key):
    """What stands in brackets: share of the roofline, and the range or the deviation of the repetitions."""
    share, low, high = figure.get("share"), figure.get(key + "_min"), figure.get(key + "_max")
    parts = [f"{100 * share:.0f}%"] if share else []
    if low is not None and low != high:
        parts.append(f"{number(low)} to {number(high)}")
    if "stddev" in figure:
        parts.append(f"+- {number(figure['stddev'])}")
    return f" ({'; '.join(parts)})" if parts else ""


def cell_of(figure):
    """The cells of one figure: one, or three for a server."""
    kind = kind_of(figure)
    if kind == "serve":
        return [number(figure["tokens_per_second"])] + [percentiles(figure[key]) for key in
                                                        ("time_to_first_token_ms", "inter_token_ms")]
    key = "us" if kind == "moe" else "tok_s"
    return [number(figure[key]) + beside(figure, key)]


def percentiles(values):
    return ", ".join(number(values[p]) for p in ("p50", "p99") if values.get(p) is not None)


# ---- tables ----

def columns_of(run):
    """(column, figures) of the peers, then of moesaic."""
    for peer in run.get("peers", []):
        yield peer["engine"], peer["figures"]
    yield run["column"], run["figures"]


def model_of(run, figure):
    return re.sub(r"^dummy:gpt-oss-|,.*$|\.gguf$", "", figure.get("model", ""))


def same_run(run, engine):
    return all(peer.get("same_run", True) for peer in run["peers"] if peer["engine"] == engine)


class Table:
    def __init__(self, runs):
        self.runs = runs
        self.cells, self.columns, self.names = {}, [], {}
        self.several = len({model_of(run, f) for run in runs for f in run["figures"]}) > 1 and all(
            kind_of(f) == "bench" for run in runs for f in run["figures"])
        for run in runs:
            for column, figures in columns_of(run):
                if column not in self.columns:
                    self.columns.append(column)
                for figure in figures:
                    model = model_of(run, figure) if self.several else ""
                    row = (len(model), model, *row_of(figure))
                    self.names[row] = (model + " " + name_of(figure)).strip()
                    self.cells[row, column] = (figure, run)
        if "moesaic" not in self.columns:
            self.columns.sort(key=lambda column: (len(column), column))

    def ratio(self, row):
        """moesaic's speed beside the fastest peer of the same run."""
        own = self.cells.get((row, "moesaic"))
        peers = [f["tok_s"] for c in self.columns if c != "moesaic" and (row, c) in self.cells
                 for f, run in [self.cells[row, c]] if same_run(run, c)]
        return f"{own[0]['tok_s'] / max(peers):.1f} x" if own and peers else ""

    def compares(self):
        return "moesaic" in self.columns and len(self.columns) > 1 and self.kind() == "bench"

    def kind(self):
        return kind_of(self.runs[0]["figures"][0])

    def head(self):
        first = {"bench": "tok/s", "moe": "tokens", "serve": "streams"}[self.kind()]
        parts = {"bench": [""], "moe": [", us"], "serve": [", tok/s", ", first token ms", ", between events ms"]}[self.kind()]
        names = [first] + [c + p for c in self.columns for p in parts] + (["ratio"] if self.compares() else [])
        return [names, ["---"] + ["---:"] * (len(names) - 1)]

    def body(self):
        width = 3 if self.kind() == "serve" else 1
        for row in sorted(self.names):
            cells = [self.names[row]]
            for column in self.columns:
                found = self.cells.get((row, column))
                cells += cell_of(found[0]) if found else [""] * width
            yield cells + ([self.ratio(row)] if self.compares() else [])

    def used(self):
        return [run for run in self.runs if any(run is by for _, by in self.cells.values())]

    def text(self):
        lines = ["| " + " | ".join(cells) + " |" for cells in [*self.head(), *self.body()]]
        return "\n".join(lines)


def code(commands):
    return ", ".join(f"`{c}`" for c in ([commands] if isinstance(commands, str) else commands))


def source_of(run):
    """A line for each run under its table: device, date, commit, file."""
    cpu = f" [{run['cpu']}]" if run.get("cpu") else ""
    commit = f"commit {run['commit']}" if run.get("commit") else "commit not recorded"
    text = f"- {run['column']}: {run['device']}{cpu}, {run['date']}, {commit}, {code(run['command'])} " \
           f"([{run['file']}](benchmarks/{run['file']}))"
    for peer in run.get("peers", []):
        other = "" if peer.get("same_run", True) else "; not in the same run"
        text += f"; {peer['engine']} ({peer['version']}{other}): {code(peer['command'])}"
    return text + (f". {run['note']}" if run.get("note") else "")


def render(name, runs):
    mine = [run for run in runs if run["table"] == name]
    if not mine:
        raise SystemExit(f"no run has the table {name}")
    table = Table(mine)
    return table.text() + "\n\n<details><summary>Runs</summary>\n\n" + "\n".join(map(source_of, table.used())) + "\n\n</details>\n"


# ---- README: what was measured beside other engines ----

def headline(figure):
    return figure["batch"] == 32 or (figure["batch"] == 1 and figure["depth"] == 0)


def speed(runs):
    engines = ["llama.cpp", "ik_llama.cpp", "moesaic"]
    lines = ["| device | model, test | " + " | ".join(engines) + " |", "| --- | --- |" + " ---: |" * len(engines)]
    beside_peers = [r for r in runs if r.get("peers") and kind_of(r["figures"][0]) == "bench"][::-1]
    for run in sorted(beside_peers, key=lambda r: "cpu" in r):  # GPUs first
        columns = dict(columns_of(run))
        for figure in sorted(run["figures"], key=row_of):
            row = row_of(figure)
            values = [next((number(f["tok_s"]) for f in columns.get(e, []) if row_of(f) == row), "") for e in engines]
            if any(values[:-1]) and headline(figure):
                device = re.sub(r" \(\d.*|, .*", "", run["device"])
                lines.append(f"| {device} | {model_of(run, figure)}, {name_of(figure)} | {values[0]} | {values[1]} | **{values[2]}** |")
    return "\n".join(lines) + "\n"


# ---- the plot beside it ----

def plot(runs):
    rows = {}
    for run in (r for r in runs if r["table"] == "h200-llama"):
        columns = dict(columns_of(run))
        theirs = {row_of(f): f["tok_s"] for f in columns["llama.cpp"]}
        rows.update({(model_of(run, f), row_of(f), name_of(f)): (theirs[row_of(f)], f["tok_s"])
                     for f in columns["moesaic"] if row_of(f) in theirs})
    bars = [(f"{model}, {name}", speeds) for (model, _, name), speeds in sorted(rows.items())]
    return svg("Tokens per second on an NVIDIA H200, the same GGUF files", ("llama.cpp", "moesaic"), bars)


def rendered(page, runs):
    seen = []

    def block(match):
        seen.append(match[2])
        return match[1] + (speed(runs) if match[2] == "speed" else render(match[2], runs)) + match[3]

    return BLOCK.sub(block, page), seen


def main(check):
    runs, faults = read_runs()
    shown = set()
    for name in PAGES if not faults else ():
        path = ROOT / name
        page = path.read_text()
        new, seen = rendered(page, runs)
        shown |= set(seen)
        if check and new != page:
            faults.append(f"{name} is not up to date: run tools/benchmarks/render.py")
        elif not check:
            path.write_text(new)
    if not faults and not check:
        PLOT.write_text(plot(runs))
    if not faults and PLOT.read_text() != plot(runs):
        faults.append(f"{PLOT.relative_to(ROOT)} is not up to date: run tools/benchmarks/render.py")
    if not faults:
        faults += [f"{run['file']}: no page has the table {run['table']}" for run in runs if run["table"] not in shown]
    print(*faults or [f"{len(runs)} runs"], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:] == ["--check"]))
