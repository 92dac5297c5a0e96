"""EAGLE3 draft heads on the machine's GPU, within ten minutes: right answers, then what they bring.

    python3 tests/device/draft_heads.py --build build/release --out OUT [--built-in FOLDER] [--models 20b,120b]

Checks: heads against the reference and PyTorch's goldens (eagle3_test), the same tokens of tiny with and without drafters
(speculative_answers_test, with batch-invariant kernels), compute-sanitizer over short ones. Figures, of dummy models
with a dummy head of the public sizes:

    typical   K = 3, acceptance length 2.7, drafting included            asked for: 1.2
    free      a free drafter, acceptance length 4                        asked for: 1.9
    nothing   the engine, one request whose text nobody guesses          asked for: 0.98
    batch     the engine, 64 such requests at a time                     asked for: 0.99

The engine's figures have the model twice in memory: 120b needs an H200. OUT gets draft_heads.json and draft_heads.log, the
output of all commands. What does not fit --seconds any more is named and left out.
Exit status 1 if a check fails; figures below what was asked for are marked, and are no failure.

The programs may have been built elsewhere: eagle3_test, speculative_answers_test, moesaic and speculation are needed.
Tests look for their data in the folder that they were built from: --built-in makes it a link to this one.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADS = {"mlp17280": "eagle3:dummy", "mlp2880": "eagle3:dummy,intermediate=2880"}
ASKED = {"typical": 1.2, "free": 1.9, "nothing": 0.98, "batch": 0.99}
ON_CUDA = ("Heads/Eagle3.Cuda*:Heads/Eagle3.Chunks*:Heads/Eagle3.Sequences*:Heads/Eagle3.RollBack*:Heads/Eagle3.Memory*:"
           "Eagle3Errors.*:TinyEagle3.SaysTheSameInFewerStepsOnCuda")
SANITIZED = "Heads/Eagle3.CudaDraftsWithoutTheHost/*:Heads/Eagle3.Sequences*/speculators"


class Session:
    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.seconds
        self.results = {"device": device_name(), "checks": [], "figures": [], "left_out": []}
        options.out.mkdir(parents=True, exist_ok=True)

    def program(self, path):
        return str(self.options.build / path)

    def dummy(self, model):
        return f"dummy:gpt-oss-{model}" + (f",layers={self.options.layers}" if self.options.layers else "")

    def run(self, name, command, most, fine=(0,)):
        """The output of a command that is given at most so many seconds; None if it did not run or failed."""
        left = self.end - time.monotonic()
        if left < min(most, 20):
            self.results["left_out"].append(name)
            print(f"{name}: left out, {left:.0f} s are left", flush=True)
            return None
        print("+", *command, flush=True)
        started = time.monotonic()
        with tempfile.TemporaryFile() as log:
            try:
                status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                        timeout=min(most, left), cwd=ROOT).returncode
            except subprocess.TimeoutExpired:
                status = "timed out"
            log.seek(0)
            output = log.read().decode(errors="replace")
        with open(self.options.out / "draft_heads.log", "a") as logs:
            logs.write(f"+ {' '.join(command)}\n{output}\nstatus {status}\n\n")
        print(f"{name}: status {status}, {time.monotonic() - started:.0f} s", flush=True)
        if status not in fine:
            print(output[-3000:], flush=True)
        self.last_status = status
        return output if status in fine else None

    def check(self, name, command, most):
        self.last_status = "left out"
        output = self.run(name, command, most)
        line = {"name": name, "status": self.last_status}
        if output is not None and "[  PASSED  ]" in output:
            line["tests"] = int(re.search(r"\[  PASSED  \] (\d+)", output)[1])
            line["skipped"] = len(set(re.findall(r"\[  SKIPPED \] (\S+)", output)))
            line["notes"] = [s for s in output.splitlines() if re.search(r"rms|tokens a step", s)]
            for note in line["notes"]:
                print("   ", note)
            if line["tests"] == 0 or line["skipped"] > 0:
                line["status"] = "skipped tests"
        self.results["checks"].append(line)
        self.save()

    def figure(self, name, model, gain, **more):
        asked = ASKED.get(name.split(",")[0])
        line = {"name": name, "model": model, "gain": gain, "asked": asked, **more}
        self.results["figures"].append(line)
        mark = "" if asked is None or gain >= asked else f"   below {asked}"
        print(f"    {model} {name}: {gain:.3f}{mark}", flush=True)
        self.save()

    def save(self):
        (self.options.out / "draft_heads.json").write_text(json.dumps(self.results, indent=1) + "\n")


def device_name():
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def sanitizer():
    for name in (os.environ.get("MOESAIC_COMPUTE_SANITIZER"), shutil.which("compute-sanitizer"),
                 "/usr/local/cuda/bin/compute-sanitizer"):
        if name and os.access(name, os.X_OK):
            return name
    return None


def checks(s):
    test = s.program("tests/eagle3_test")
    s.check("eagle3", [test, f"--gtest_filter={ON_CUDA}"], 120)
    s.check("answers", [s.program("tests/tiny/speculative_answers_test"), "--gtest_filter=*OnCuda"], 150)
    tool = sanitizer()
    if tool is None:
        s.results["left_out"].append("compute-sanitizer: not on this machine")
    else:
        s.check("memcheck", [tool, "--tool", "memcheck", "--error-exitcode", "1", test, f"--gtest_filter={SANITIZED}"], 120)
        s.check("synccheck", [tool, "--tool", "synccheck", "--error-exitcode", "1", test,
                              "--gtest_filter=Heads/Eagle3.CudaDraftsWithoutTheHost/flat"], 60)


def log_name(model, name):
    return f"{model}-{name}".replace(",", "-").replace(" ", "-")


def bench(s, name, model, drafter, chances, batch, dense):
    command = [s.program("apps/moesaic"), "bench", "-m", s.dummy(model), "--device", s.options.device, "--dense", dense,
               "--speculative", drafter, "--acceptance", chances, "-n", str(s.options.tokens), "-b", batch, "-r", "5",
               "-o", "json"]
    output = s.run(log_name(model, name), command, 90)
    if output is None:
        return
    for line in json.loads(output[output.index("["):]):
        keep = ("batch", "tok_s", "tok_s_without", "tokens_per_step", "draft_us", "verify_us", "take_back_us")
        s.figure(name, model, line["gain"], drafter=drafter, dense=dense, **{k: line[k] for k in keep})


def engine(s, name, model, drafter, batch, tokens):
    """From the table that `speculation` prints: its "times none" is the median over the rounds but the first."""
    path = f"{s.dummy(model)}+{ROOT}/models/tiny/tokenizer.json"
    command = [s.program("bench/speculation"), path, s.options.device, "1", str(tokens), str(batch), str(batch), "4", drafter]
    # Status 1: other tokens, as batches of different sizes round differently here.
    output = s.run(log_name(model, name), command, 90, fine=(0, 1))
    for line in (output or "").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 9 and cells[2] == drafter:
            s.figure(name, model, float(cells[4]), drafter=drafter, batch=batch, tok_s=float(cells[3]), drafts=int(cells[7]),
                     drafted=int(cells[8]), accepted=int(cells[9]))


TYPICAL = "0.8,0.7,0.6"  # 1 + 0.8 + 0.56 + 0.336 = 2.7


def figures(s, model):
    bench(s, "typical,mlp17280", model, HEADS["mlp17280"], TYPICAL, "1", "keep")
    bench(s, "free", model, "ngram", "1,1,1", "1", "keep")
    engine(s, "nothing,mlp17280", model, HEADS["mlp17280"], 1, 2 * s.options.tokens)
    engine(s, "batch,mlp17280", model, HEADS["mlp17280"], 64, s.options.tokens)


def more_figures(s, model):
    bench(s, "typical,mlp2880", model, HEADS["mlp2880"], TYPICAL, "1", "keep")
    bench(s, "typical,mlp17280,q8_0", model, HEADS["mlp17280"], TYPICAL, "1", "q8_0")
    bench(s, "one draft", model, HEADS["mlp17280"], "0.8", "1", "keep")
    bench(s, "two drafts", model, HEADS["mlp17280"], "0.8,0.7", "1", "keep")
    bench(s, "always drafting 64", model, HEADS["mlp17280"], TYPICAL, "64", "keep")
    engine(s, "nothing,ngram", model, "ngram", 1, 2 * s.options.tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--built-in", type=pathlib.Path, help="the folder that the tests were built from")
    parser.add_argument("--models", default="20b,120b")
    parser.add_argument("--seconds", type=int, default=570)
    parser.add_argument("--tokens", type=int, default=192, help="of each test")
    parser.add_argument("--device", default="cuda", help="of the figures; cpu to try this script")
    parser.add_argument("--layers", type=int, help="of the models, to try this script")
    parser.add_argument("--only", choices=["checks", "figures"])
    options = parser.parse_args()
    options.build, options.out = options.build.resolve(), options.out.resolve()
    if options.built_in and not options.built_in.exists():
        options.built_in.parent.mkdir(parents=True, exist_ok=True)
        options.built_in.symlink_to(ROOT)
    session = Session(options)
    print(session.results["device"], flush=True)
    if options.only != "figures":
        checks(session)
    models = options.models.split(",") if options.only != "checks" else []
    for measure in (figures, more_figures):
        for model in models:
            measure(session, model)
    session.save()
    failed = [c["name"] for c in session.results["checks"] if c["status"] != 0]
    print("checks that failed or did not run:", ", ".join(failed) or "none")
    print("left out:", ", ".join(session.results["left_out"]) or "nothing")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
