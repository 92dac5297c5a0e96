"""Clients that cost as much as they can, and what the others notice of them."""

import itertools
import multiprocessing
import signal
import subprocess
import threading
import time

from load_common import QUIET, Served, all_pages_free, exchange, load, post, require, stop, tokenize_request
from served import MOESAIC


def doubled_schema(serial):
    """1.9 KB that say the same thing 2^25 times."""
    definitions = {"d0": {"type": "object", "title": str(serial)}}
    for i in range(25):
        definitions[f"d{i + 1}"] = {"allOf": [{"$ref": f"#/$defs/d{i}"}] * 2}
    return {"$ref": "#/$defs/d25", "$defs": definitions}


def schema_request(schema):
    return post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is 17 + 25?"}], "max_tokens": 64,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}})


def pattern_request(serial):
    text = {"type": "string", "pattern": "^(.?){800}$", "title": str(serial)}
    return schema_request({"type": "object", "properties": {"a": text}, "required": ["a"], "additionalProperties": False})


def costly_grammars():
    """Forms whose ways to be read multiply, each in its own way."""
    nested = ["root ::= [a-z ]{60} r0 \"x\"", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40))]
    return [
        "\n".join(nested + ['r40 ::= ""']),
        "\n".join(nested + ["r40 ::= [a-z]?"]),
        "root ::= (" + "|".join(['[a-z ]'] + ['""'] * 20_000) + ")*",
        'root ::= [a-z ] root "1" | [a-z ] root "2" | "~"',
        'root ::= [a-z ] root e | "~"\ne ::= "1"?',
        "root ::= [a-z ] root root root | [a-z ] root root | [a-z ]",
        "root ::= " + "[a-z ]? " * 4_000,
        "root ::= ((([a-z ]{1,50}){1,50}){1,50}){1,50}",
        "root ::= ([a-z ] | [a-z ] [a-z ] | [a-z ] [a-z ] [a-z ]){0,10000}",
    ]


GRAMMARS = costly_grammars()


def grammar_request(serial):
    """A costly form that no cache knows."""
    grammar = f"{GRAMMARS[serial % len(GRAMMARS)]}\n# {serial}"
    return post("/v1/completions", {"prompt": "once upon a time", "max_tokens": 200, "temperature": 1.5, "grammar": grammar})


def hostile_requests(short):
    """Each kind's requests without end. What could be kept from one to the next differs."""
    megabytes, messages = (3, 1_000_000) if short else (15, 5_000_000)
    tokenized = tokenize_request(megabytes)
    empty = post("/v1/chat/completions", b'{"messages": [%s{}]}' % (b"{}," * (messages - 1)))
    return {"tokenize": itertools.repeat(tokenized), "messages": itertools.repeat(empty),
            "schema": (schema_request(doubled_schema(i)) for i in itertools.count()),
            "pattern": map(pattern_request, itertools.count()), "grammar": map(grammar_request, itertools.count())}


def attack(port, kind, short, until, statuses):
    """Eight clients that send a kind of request again and again; how often each status came."""
    requests, lock, counts = hostile_requests(short)[kind], threading.Lock(), {}

    def client(address):
        # Half of those that send grammars leave before their answer.
        timeout = 3 if kind == "grammar" and address % 2 else 120
        while time.time() < until:
            with lock:
                request = next(requests)
            try:
                status = exchange(port, request, f"127.0.1.{address}", timeout)[0]
            except OSError as failure:
                status = type(failure).__name__
            with lock:
                counts[status] = counts.get(status, 0) + 1

    threads = [threading.Thread(target=client, args=(i + 1,), daemon=True) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(until + 60 - time.time())
    statuses.put(counts)


def health_times(server, until):
    """Milliseconds of each /health, asked for 50 times a second."""
    times = []
    while time.time() < until:
        start = time.perf_counter()
        require(server.call("GET", "/health")[0] == 200, "/health failed")
        times.append(1000 * (time.perf_counter() - start))
        time.sleep(0.02)
    return sorted(times)


def schema_times(server, until, times):
    """Milliseconds of each answer of a small schema, asked for by another client."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "warm": {"type": "boolean"}},
              "required": ["city", "warm"], "additionalProperties": False}
    request = post("/v1/completions", {"prompt": "hello", "max_tokens": 40, "guided_json": schema})
    while time.time() < until:
        start = time.perf_counter()
        status, body = exchange(server.port, request, "127.0.2.1")
        require(status == 200, f"a schema was answered with {status}: {body[:200]}")
        times.append(1000 * (time.perf_counter() - start))
        time.sleep(0.05)


def beside(server, kind, seconds, short):
    """One stream, and /health, beside eight clients of a kind."""
    until = time.time() + seconds + 1
    statuses = multiprocessing.Queue()
    if kind == "ordinary":
        command = [MOESAIC, "bench-serve", "--url", server.url, "--streams", "8", "--seconds", str(seconds + 1), "-n", "64"]
        others = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    else:
        others = multiprocessing.Process(target=attack, args=(server.port, kind, short, until, statuses), daemon=True)
        others.start()
    time.sleep(1)
    reports = []
    stream = threading.Thread(target=lambda: reports.extend(load(server.url, "--streams", 1, "--seconds", seconds, "-n", 256, check=False)))
    stream.start()
    schemas = []
    schema = threading.Thread(target=schema_times, args=(server, until, schemas))
    schema.start()
    health = health_times(server, until)
    stream.join()
    schema.join()
    schemas.sort()
    require(schemas, "no schema was answered")
    counts = {} if kind == "ordinary" else statuses.get(timeout=120)
    others.wait() if kind == "ordinary" else others.join(60)
    require(reports and reports[0]["failed"] == 0, "the stream failed")
    gaps = reports[0]["inter_token_ms"]
    late = health[len(health) * 99 // 100]
    print(f"hostile      beside 8 x {kind:<9} between tokens {gaps['p50']:6.2f} p99 {gaps['p99']:7.2f} most {gaps['max']:7.1f} ms   a schema p50 {schemas[len(schemas) // 2]:5.1f} most {schemas[-1]:6.1f} ms   /health "
          f"p50 {health[len(health) // 2]:5.1f} p99 {late:6.1f} ms   first token p99 {reports[0]['time_to_first_token_ms']['p99']:7.1f} ms   "
          f"answers {counts}", flush=True)
    return {"kind": kind, "between": gaps, "health_p99_ms": late, "schema_ms": schemas[-1], "statuses": counts}


def terminated_beside_grammars(short):
    """SIGTERM while costly forms are followed: the process ends in its time to drain."""
    drain = 5
    server = Served("--max-batch", 16, "--drain-timeout", drain, *QUIET).wait_ready()
    statuses = multiprocessing.Queue()
    others = multiprocessing.Process(target=attack, args=(server.port, "grammar", short, time.time() + 120, statuses), daemon=True)
    others.start()
    while server.metric("vllm:num_requests_running") < 4:
        require(others.is_alive(), "the grammars were never followed at a time")
        time.sleep(0.01)
    start = time.time()
    server.process.send_signal(signal.SIGTERM)
    server.process.communicate(timeout=60)
    took = time.time() - start
    others.terminate()
    others.join(60)
    print(f"hostile      ended {took:.2f} s after SIGTERM beside 8 x grammar", flush=True)
    require(server.process.returncode == 0, f"it ended with {server.process.returncode}")
    require(took < drain + (10 if short else 1), f"it ended {took:.1f} s after SIGTERM")


def hostile(short):
    """Clients that cost as much as they can: a stream beside them goes on as beside eight ordinary ones."""
    server = Served("--max-batch", 16, *QUIET).wait_ready()
    seconds = 2 if short else 10
    ordinary = beside(server, "ordinary", seconds, short)
    results = [ordinary]
    for kind in ("tokenize", "messages", "schema", "pattern", "grammar"):
        results.append(beside(server, kind, seconds, short))
    all_pages_free(server)
    server.until("moesaic:num_requests_preparing", 0, 60)
    stop(server)
    terminated_beside_grammars(short)
    failures = []
    for result in results[1:]:
        most = 500 + 20 * ordinary["between"]["p99"] if short else 1.5 * ordinary["between"]["p99"]
        if result["between"]["p99"] > most:
            failures.append(f"beside {result['kind']}, p99 between tokens is {result['between']['p99']:.1f} ms, over {most:.1f}")
        if result["health_p99_ms"] > (1000 + 20 * ordinary["health_p99_ms"] if short else 50):
            failures.append(f"beside {result['kind']}, p99 of /health is {result['health_p99_ms']:.1f} ms")
        if result["kind"] == "grammar" and not short and (result["between"]["max"] > 100 or result["schema_ms"] > 300):
            failures.append(f"beside grammars, a stream stood still for {result['between']['max']:.0f} ms and a schema took {result['schema_ms']:.0f} ms")
        if not set(result["statuses"]) <= {200, 400, 429} | ({"TimeoutError"} if result["kind"] == "grammar" else set()):
            failures.append(f"{result['kind']} was answered with {result['statuses']}")
    require(not failures, "; ".join(failures))
    return results
