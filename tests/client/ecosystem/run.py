"""`make clients`: clients from PyPI, unmodified, against `moesaic serve -m tiny` on 127.0.0.1. Each client has a virtual
environment of its own under build/clients and its cases in NAME_test.py; what the cases print goes to build/clients/NAME.log.
"known" are cases marked with @known, a fault of the server that is not mended yet: they fail, and must.

    run.py [CLIENT...]     MOESAIC: the program; LATEST=1: the newest versions instead of those in requirements.txt

Exit status 1 if a case failed or a client could not be installed, 0 otherwise."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "clients"
INSTALL_SECONDS, CASES_SECONDS = 600, 600
NO_TELEMETRY = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
    "LANGCHAIN_TRACING_V2": "false", "LANGSMITH_TRACING": "false", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "ANONYMIZED_TELEMETRY": "False", "OTEL_SDK_DISABLED": "true",
    "LOGFIRE_SEND_TO_LOGFIRE": "false", "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false",
}


class Skipped(Exception):
    pass


def requirements():
    """{client: requirement}, such as {"pydantic_ai": "pydantic-ai-slim[openai]==2.68.0"}."""
    lines = (HERE / "requirements.txt").read_text().splitlines()
    wanted = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    named = {distribution(line).removesuffix("-slim").replace("-", "_"): line for line in wanted}
    return {**named, "habits": None, "agents": None}  # these need nothing but Python


def distribution(requirement):
    return re.split(r"[\[=<>~! ]", requirement)[0]


def run(command, seconds, **options):
    """(exit status, output); a command that takes longer is ended and fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, **options)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        return 1, f"{out.decode(errors='replace') if isinstance(out, bytes) else out}\nended after {seconds} s\n"


def python_for(requirement):
    """(an interpreter, the requirement without "python>=", why there is none)."""
    wanted = re.search(r"\bpython>=3\.(\d+) ?", requirement)
    if not wanted:
        return sys.executable, requirement, None
    least, rest = int(wanted[1]), requirement.replace(wanted[0], "")
    if sys.version_info >= (3, least):
        return sys.executable, rest, None
    paths = [path for minor in range(least, least + 6) if (path := shutil.which(f"python3.{minor}"))]
    found = [path for path in paths if run([path, "-c", ""], 60)[0] == 0]  # pyenv has names for what it does not start
    return (found[0], rest, None) if found else (None, rest, f"needs Python 3.{least}, as python3.{least}")


def make_environment(home, with_pip, python=sys.executable):
    try:
        if python == sys.executable:
            venv.create(home, with_pip=with_pip, clear=True)
        else:
            subprocess.run([python, "-m", "venv", "--clear", *([] if with_pip else ["--without-pip"]), home], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"no virtual environment can be made in {home} ({error}); Debian: apt-get install python3-venv")


def uv():
    """uv, which takes seconds for all the clients and keeps one copy of the files that they share; None without it."""
    home = BUILD / "uv"
    program = home / "bin" / "uv"
    if not program.exists():
        make_environment(home, with_pip=True)
        status, _ = run([home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv"],
                        INSTALL_SECONDS)
        if status != 0:
            return None
    return program


def install(client, requirement, installer):
    """(python of the client's environment, why there is none). Skipped: this machine lacks the Python that it needs."""
    if requirement is None:
        return sys.executable, None
    base, requirement, lacking = python_for(requirement)
    if lacking:
        raise Skipped(lacking)
    home = BUILD / client
    python, stamp = home / "bin" / "python", home / "installed"
    if os.environ.get("LATEST"):
        requirement = re.sub(r"==\S+", "", requirement)
    elif stamp.exists() and stamp.read_text() == requirement:
        return python, None
    make_environment(home, with_pip=installer is None, python=base)
    command = ([installer, "pip", "install", "--python", python] if installer else
               [python, "-m", "pip", "install", "--disable-pip-version-check"])
    words = requirement.replace("HERE", str(HERE)).split()
    status, output = run([*command, *words], INSTALL_SECONDS, env={**os.environ, "UV_CACHE_DIR": str(BUILD / "cache")})
    if status != 0:
        return None, f"{requirement} could not be installed: {' '.join(output.split())[-400:]}"
    stamp.write_text(requirement)
    return python, None


def run_cases(client, python):
    """The counts that cases.py prints as its last line."""
    home = BUILD / client / "home"  # files that a client keeps or caches stay in build/
    home.mkdir(parents=True, exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("OPENAI_")}
    env.update(NO_TELEMETRY, HOME=str(home), MOESAIC=program(), PYTHONPATH=str(HERE / "local_only"))
    _, output = run([python, "-B", HERE / "cases.py", f"{client}_test"], CASES_SECONDS, env=env, cwd=home)
    (BUILD / f"{client}.log").write_text(output)
    try:
        return json.loads(output.splitlines()[-1]), output
    except (ValueError, IndexError):
        return {"passed": 0, "failed": 1, "skipped": 0, "known": [], "errors": ["the cases did not come to their end"]}, output


def program():
    return str(pathlib.Path(os.environ.get("MOESAIC", ROOT / "build/release/apps/moesaic")).resolve())


def version(requirement, python):
    if requirement is None:
        return "-"
    code = f"from importlib.metadata import version as v; print(v({distribution(requirement)!r}))"
    return run([python, "-c", code], 60)[1].strip()


def main(chosen):
    wanted = requirements()
    unknown = [name for name in chosen if name not in wanted]
    if unknown:
        sys.exit(f"no such client: {', '.join(unknown)}; there are {', '.join(wanted)}")
    if not os.access(program(), os.X_OK):
        sys.exit(f"{program()} is no program; make build, or MOESAIC=path")
    BUILD.mkdir(parents=True, exist_ok=True)
    installer = uv()
    print(f"{'client':<18} {'version':<10} {'passed':>6} {'failed':>6} {'skipped':>7} {'known':>5} {'seconds':>7}", flush=True)
    notes, total = [], {"passed": 0, "failed": 0, "skipped": 0}
    for client in chosen or wanted:
        start = time.monotonic()
        try:
            python, reason = install(client, wanted[client], installer)
        except Skipped as lacking:
            print(f"{client:<18} skipped: {lacking}", flush=True)
            total["skipped"] += 1
            continue
        if reason:
            print(f"{client:<18} not installed", flush=True)
            notes.append(f"{client}: {reason}")
            total["failed"] += 1
            continue
        counts, output = run_cases(client, python)
        print(f"{client:<18} {version(wanted[client], python):<10} {counts['passed']:>6} {counts['failed']:>6} "
              f"{counts['skipped']:>7} {len(counts['known']):>5} {time.monotonic() - start:>7.1f}", flush=True)
        total = {key: total[key] + counts[key] for key in total}
        notes += [f"{client}: FAILED {error}" for error in counts["errors"]]
        notes += [f"{client}: known: {fault}" for fault in counts["known"]]
        if counts["failed"]:
            notes.append(f"see {BUILD / client}.log; its end:\n" + "\n".join(output.splitlines()[-40:-1]))
    print("\n".join(["", *notes, ", ".join(f"{count} {name}" for name, count in total.items())]))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
