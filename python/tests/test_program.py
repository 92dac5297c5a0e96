"""python -m moesaic: the program, and its server."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import moesaic


def run(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "moesaic", *arguments], capture_output=True, text=True, timeout=60, **options)


def test_the_program_runs():
    done = run("run", "-m", "tiny", "-p", "What is 17 + 25?", "--temp", "0")
    assert done.returncode == 0 and "17 + 25 = 42" in done.stdout
    assert run("--version").stdout.splitlines()[0] == f"moesaic {moesaic.__version__}"


def test_exit_statuses():
    wrong = run("fly")
    assert (wrong.returncode, wrong.stdout) == (2, "") and wrong.stderr.startswith("moesaic: unknown command 'fly'")
    missing = run("inspect", "-m", "/no/such/model")
    assert missing.returncode == 1 and missing.stderr.startswith("moesaic: /no/such/model")


def test_names_that_are_no_utf_8():
    absent = run("inspect", "-m", os.fsdecode(b"/no/such\xff"), errors="replace")
    assert absent.returncode == 1 and absent.stderr.startswith("moesaic: /no/such")


def test_a_closed_standard_output():
    done = subprocess.run([f"{sys.executable} -m moesaic fly >&-"], shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("moesaic: unknown command 'fly'")


def test_the_server_serves_and_stops():
    process = subprocess.Popen([sys.executable, "-m", "moesaic", "serve", "-m", "tiny", "--port", "0", "--device", "cpu", "--log", "quiet"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url), process.stderr.read()
    while "server listens":  # until the model is loaded
        try:
            body = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}
            request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            answer = json.load(urllib.request.urlopen(request, timeout=60))
            break
        except urllib.error.HTTPError as error:
            assert error.code == 503
    assert answer["choices"][0]["message"]["content"] == "17 + 25 = 42"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
