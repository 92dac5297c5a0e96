"""The server under load, with models/tiny on the CPU:  load.py [short] [TEST...] [--json FILE]

Tests, each of which prints what it measured: streams memory soak bodies faults hostile scaling peer; of the faults, full_pages,
terminated and cut also by themselves. `short`: small, and with wide limits on times or none, since a machine that is busy otherwise
cannot keep them; without tests it is streams, memory, soak, bodies, faults and hostile, which ctest runs. MOESAIC is the program; LLAMA_SERVER is llama.cpp's server, for `peer`.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "client"))
from served import MOESAIC, Served  # noqa: E402

from load_common import QUIET, Failed, all_pages_free, exchange, load, post, require, stop, tokenize_request  # noqa: E402
from attacks import hostile  # noqa: E402

def line(name, report):
    first, between = report["time_to_first_token_ms"], report["inter_token_ms"]
    print(f"{name:<12} {report['streams']:>4} streams {report['requests']:>7} requests {report['failed']:>4} failed "
          f"{report['tokens_per_second']:>8.0f} tok/s   first token {first['p50']:7.1f} p99 {first['p99']:7.1f} ms   "
          f"between {between['p50']:6.2f} p99 {between['p99']:6.2f} ms", flush=True)


def streams(short):
    """Many streams at a time: none lost, none mixed (each is compared with its prompt's only answer), steady."""
    count, seconds = (50, 2) if short else (200, 60)
    server = Served("--max-batch", count, *QUIET).wait_ready()
    report = load(server.url, "--streams", count, "--seconds", seconds, "--check", "-n", 128)[0]
    line("streams", report)
    require(report["failed"] == 0, "answers were lost or mixed")
    require(report["tokens"] == report["requests"] * 128, "tokens were lost")
    all_pages_free(server)
    stop(server)
    between = report["inter_token_ms"]
    if not short:
        require(between["p99"] <= 3 * between["p50"], f"p99 between tokens is {between['p99'] / between['p50']:.1f} medians")
    return report


def resident(server):
    """MiB."""
    return server.resident() / (1 << 20)


def memory(short):
    """Memory stops growing while requests come and go. An allocator may take a few MiB once, even late; a leak never ends."""
    requests = 300 if short else 10_000
    server = Served("--max-batch", 32, *QUIET).wait_ready()
    sizes, steady = [], False
    while not steady and len(sizes) < 20:
        report = load(server.url, "--streams", 32, "--requests", requests, "-p", 4, "-n", 8)[0]
        sizes.append(resident(server))
        print(f"memory {requests * len(sizes):>8} requests {sizes[-1]:7.1f} MiB {report['requests'] / report['seconds']:6.0f} requests/s",
              flush=True)
        steady = len(sizes) >= 10 and sizes[-1] - sizes[-5] < 0.005 * sizes[-1]
    all_pages_free(server)
    stop(server)
    require(steady, f"it still grows, by {sizes[-1] - sizes[-5]:.1f} MiB in the last {4 * requests} requests")
    return {"requests": requests * len(sizes), "MiB": sizes}


def soak(short):
    """Requests of every kind, more at a time than have places: none lost, each says what it says alone, memory stays."""
    size = ("--requests", 300, "--live", 48, "--words", 30, "--tokens", 40, "--check", 100) if short else \
           ("--requests", 6_000, "--live", 512, "--words", 100, "--tokens", 100, "--check", 1_000, "--every", 2)
    server = Served("--max-batch", size[3] // 2, "--max-waiting", 2 * size[3], "--kv-tokens", 32_768, *QUIET, context=4096).wait_ready()
    command = [sys.executable, "-B", str(pathlib.Path(__file__).with_name("soak.py")), "--url", server.url, *map(str, size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print("".join(f"soak         {text}\n" for text in done.stdout.splitlines()), end="", flush=True)
    require(done.returncode == 0, "see above")
    stop(server)


def bodies(short):
    """Memory after large bodies of every kind: what they took is given back."""
    count, megabytes = (10, 4) if short else (100, 15)
    server = Served("--max-batch", 8, *QUIET).wait_ready()
    load(server.url, "--streams", 8, "--requests", 32, "-n", 8)
    size = megabytes << 20
    kinds = [tokenize_request(megabytes), post("/tokenize", b'{"prompt": "%s"}' % (b"a" * size)),
             post("/v1/completions", b'{"prompt": [%s1]}' % (b"199999," * (size // 7))),
             post("/v1/chat/completions", b'{"messages": [%s{}]}' % (b"{}," * (size // 3))),
             post("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"word " * (size // 5)))]
    sizes = [resident(server)]
    for body in kinds * 2:
        threads = [threading.Thread(target=exchange, args=(server.port, body)) for _ in range(count // 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sizes.append(resident(server))
    most = sizes[0] + (60 if short else 100)
    for _ in range(300):
        if sizes[-1] < most:
            break
        time.sleep(0.1)
        sizes[-1] = resident(server)
    stop(server)
    print(f"bodies       {count} of {megabytes} MB, {count // 10} at a time; MiB resident before and after each ten: ",
          *(f"{s:.0f}" for s in sizes), flush=True)
    require(sizes[-1] < most, f"it grew from {sizes[0]:.0f} to {sizes[-1]:.0f} MiB")
    return {"MiB": sizes}


def full_disk():
    """A log that cannot be written costs the log, and one line on standard error."""
    server = Served("--log-file", "/dev/full").wait_ready()
    report = load(server.url, "--streams", 4, "--requests", 32, "-n", 8)[0]
    require(report["failed"] == 0, "answers failed for want of a log")
    log = stop(server)
    require(re.fullmatch(r"moesaic: /dev/full: cannot write the log: No space left on device; .*\n", log), f"it said {log!r}")
    print("full disk    32 answers, and the server said:", log.strip(), flush=True)


def log_comes_back():
    """A small file system fills up and is emptied; the log tells what was lost. As root only: it mounts."""
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", folder], capture_output=True).returncode != 0:
            return print("full disk    not tried with a file system of its own: cannot mount", flush=True)
        try:
            path = pathlib.Path(folder) / "log"
            server = Served("--log-file", path).wait_ready()
            require(load(server.url, "--streams", 4, "--requests", 300, "-n", 2)[0]["failed"] == 0, "answers failed")
            path.write_bytes(b"")
            server.call("GET", "/health")
            require(stop(server).count("\n") == 1, "more or less than one line")
            lost = [json.loads(text) for text in path.read_text().splitlines() if text]
            require(any(entry["event"] == "log" for entry in lost), f"nothing was said about lost lines: {lost}")
            print("full disk   ", [entry["detail"] for entry in lost if entry["event"] == "log"][0], "(16 KiB tmpfs)", flush=True)
        finally:
            subprocess.run(["umount", folder], check=True)


def full_pages(short):
    """More than the pages hold: requests yield, wait and are computed again, and say what they say alone."""
    count, context, words, tokens = (8, 96, 4, 32) if short else (32, 1024, 32, 300)
    server = Served("--max-batch", count, "--kv-tokens", context, *QUIET, context=context).wait_ready()
    report = load(server.url, "--streams", count, "--requests", (2 if short else 3) * count, "--check", "-p", words, "-n", tokens)[0]
    line("full pages", report)
    require(report["failed"] == 0, "answers were lost or mixed")
    preempted = server.metric("vllm:num_preemptions_total")
    require(preempted > 0, "nothing was preempted, so nothing was tested")
    print(f"full pages   {preempted:.0f} preemptions", flush=True)
    all_pages_free(server)
    stop(server)


def terminated(short):
    """SIGTERM under load: answers in flight finish, nobody else is let in, status 0. The answers are long: all of them begin and end
    at about one time, and between two of a client none is in flight."""
    count, tokens = 8 if short else 32, 300
    server = Served("--max-batch", count, *QUIET).wait_ready()
    command = [MOESAIC, "bench-serve", "--url", server.url, "-o", "json", "--streams", str(count), "--requests", str(4 * count), "-n", str(tokens)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    server.until("vllm:num_requests_running", count)
    server.process.send_signal(signal.SIGTERM)
    _, log = server.process.communicate(timeout=60)
    require(server.process.returncode == 0, f"it ended with {server.process.returncode}")
    in_flight = int(re.search(r"(\d+) answers in flight", log)[1])
    report = json.loads(client.communicate(timeout=60)[0])[0]
    whole = report["requests"] - report["failed"]
    require(whole >= count and in_flight >= 1, f"{whole} whole answers, {in_flight} in flight")
    require(report["tokens"] == tokens * whole, "an answer was cut")
    print(f"terminated   {in_flight} answers in flight at SIGTERM, {whole} whole ones, none cut", flush=True)


def cut(short):
    """SIGTERM and no time to finish, or two of them: streams end with an error, whole answers with 503, status 0."""
    request = {"prompt": "a", "max_tokens": 16000, "ignore_eos": True}
    streams, whole = post("/v1/completions", {**request, "stream": True}), post("/v1/completions", request)
    for options, signals in ((("--drain-timeout", 0), 1), ((), 2)):
        server = Served("--max-batch", 16, *options, *QUIET, context=16384).wait_ready()
        answers, begun = [], threading.Semaphore(0)

        def ask(data):
            answers.append(exchange(server.port, data, begun=begun.release))

        clients = [threading.Thread(target=ask, args=(data,)) for data in [streams] * 4 + [whole] * 4]
        for client in clients:
            client.start()
        server.until("vllm:num_requests_running", 8)
        # A stream without a first token would end with a status as well.
        require(all(begun.acquire(timeout=60) for _ in range(4)), "a stream did not begin")
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        start = time.time()
        server.process.communicate(timeout=60)
        for client in clients:
            client.join()
        require(server.process.returncode == 0, f"it ended with {server.process.returncode}")
        require(sorted(status for status, _ in answers) == [200] * 4 + [503] * 4, f"it answered {[status for status, _ in answers]}")
        require(all(b'"shutting_down"' in body for _, body in answers), "an answer does not say why it ended")
        require(all(body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for status, body in answers if status == 200), "a stream has no end")
        print(f"cut          4 streams and 4 answers ended with an error, {time.time() - start:.2f} s after {signals} SIGTERM", flush=True)


def killed():
    """Clients that die by kill -9 with their answers in flight: every page is free again, others notice nothing."""
    server = Served("--max-batch", 64, *QUIET).wait_ready()
    command = [MOESAIC, "bench-serve", "--url", server.url, "--streams", "32", "--seconds", "30", "-n", "500"]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server.until("vllm:num_requests_running", 32)
    client.kill()
    client.wait()
    start = time.time()
    report = load(server.url, "--streams", 8, "--requests", 32, "--check", "-n", 50)[0]
    require(report["failed"] == 0, "another client's answers failed")
    all_pages_free(server)
    print(f"killed       32 streams of a client that died; pages free and 96 answers of another one after {time.time() - start:.1f} s",
          flush=True)
    stop(server)


def idle(count):
    """Connections that say nothing: others are served, and they cost little."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    count = min(count, limit // 4)  # the server keeps some for other things, and a quarter for other clients
    server = Served("--idle-timeout", 300, "--header-timeout", 300, *QUIET).wait_ready()
    before = resident(server)
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
    report = load(server.url, "--streams", 8, "--requests", 32, "-n", 50)[0]
    require(report["failed"] == 0, "answers failed beside idle connections")
    server.until("moesaic:connections", count + 1)  # the one that asks
    print(f"idle         {count} connections, {1024 * (resident(server) - before) / count:.1f} KiB each; 32 answers beside them",
          flush=True)
    for s in sockets:
        s.close()
    server.until("moesaic:connections", 1)
    stop(server)


def faults(short):
    full_disk()
    log_comes_back()
    full_pages(short)
    terminated(short)
    cut(short)
    killed()
    idle(500 if short else 10_000)


def scaling(short):
    """Many streams against one, through the server and without it."""
    server = Served("--max-batch", 128, *QUIET).wait_ready()
    reports = load(server.url, "--streams", "1,8,32,128", "-n", 200)
    for report in reports:
        line("scaling", report)
    stop(server)
    rates = [report["tokens_per_second"] for report in reports]
    print("scaling      to one stream:", ", ".join(f"{report['streams']}: {rate / rates[0]:.2f}" for report, rate in zip(reports, rates)))
    return reports


class Peer:
    """llama-server on the same GGUF, with the same threads, context and slots."""

    def __init__(self, gguf, slots, context):
        self.port = 18_081
        self.url = f"http://127.0.0.1:{self.port}"
        command = [os.environ["LLAMA_SERVER"], "-m", gguf, "--port", self.port, "-t", 1, "-tb", 1, "-np", slots, "-c",
                   slots * context, "--no-webui"]
        self.process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                if urllib.request.urlopen(self.url + "/health", timeout=5).status == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise Failed("llama-server did not become ready")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def peer(short):
    """Beside llama-server: each number of streams on one, then on the other, three times; medians."""
    reports = {}
    with tempfile.TemporaryDirectory() as folder:
        gguf = pathlib.Path(folder) / "tiny.gguf"
        model = pathlib.Path(__file__).resolve().parents[2] / "models/tiny"
        subprocess.run([MOESAIC, "convert", model, gguf], check=True, capture_output=True)
        for count in (1, 8, 32, 128):
            ours = Served("--max-batch", count, *QUIET, model=gguf).wait_ready()
            theirs = Peer(gguf, count, 1024)
            for _ in range(3):
                for name, server in (("moesaic", ours), ("llama.cpp", theirs)):
                    report = load(server.url, "--streams", count, "-n", 128)[0]
                    reports.setdefault((name, count), []).append(report)
                    line(name, report)
            stop(ours)
            theirs.stop()
    return compare(reports)


def median(values):
    return sorted(values)[len(values) // 2]


def compare(reports):
    print("| streams | tok/s moesaic | llama.cpp | ratio | p99 between, ms, moesaic | llama.cpp | first token p99, ms, moesaic | llama.cpp |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    behind = []
    for count in (1, 8, 32, 128):
        rate, late, first = ([median([get(r) for r in reports[name, count]]) for name in ("moesaic", "llama.cpp")] for get in (
            lambda r: r["tokens_per_second"], lambda r: r["inter_token_ms"]["p99"], lambda r: r["time_to_first_token_ms"]["p99"]))
        print(f"| {count} | {rate[0]:.0f} | {rate[1]:.0f} | {rate[0] / rate[1]:.2f} | {late[0]:.2f} | {late[1]:.2f} | {first[0]:.1f} | {first[1]:.1f} |")
        if rate[0] < rate[1] or late[0] > late[1]:
            behind.append(count)
    require(not behind, f"behind at {behind} streams")
    return [{"server": name, "streams": count, "runs": runs} for (name, count), runs in reports.items()]


TESTS = {test.__name__: test for test in (streams, memory, soak, bodies, faults, full_pages, terminated, cut, hostile, scaling, peer)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help=" ".join(["short", *TESTS]))
    parser.add_argument("--json", type=pathlib.Path, help="all that was measured")
    options = parser.parse_args()
    for name in set(options.tests) - {"short", *TESTS}:
        parser.error(f"there is no test {name}")
    short = "short" in options.tests
    chosen = [name for name in options.tests if name != "short"]
    results, failed = {}, []
    for name in chosen or ["streams", "memory", "soak", "bodies", "faults", "hostile"] + ["scaling"] * (not short):
        try:
            results[name] = TESTS[name](short)
        except Failed as failure:
            print(f"{name}: FAILED: {failure}", flush=True)
            failed.append(name)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
