"""Many requests of every kind and length at once, for long: does memory stay, and does each answer say what it says alone?

    moesaic serve -m MODEL --batch-invariant --max-batch 1024     (elsewhere; on cpu that option changes nothing)
    python3 tests/load/soak.py --url http://127.0.0.1:8080 --requests 20000 --live 1024

A row every few seconds: requests and tokens a second, requests at work and waiting, memory of the server (and of the GPU, where
nvidia-smi is), steps captured a minute, steps a second, milliseconds of a step and of its host's part. Then some of the requests
are sent again, each alone. The status is 1 if anything fails: an answer with a status that is not right for it or without an
end, a stream that stands still, an answer that differs, pages or connections that stay, memory that grows once the prefix
cache is full."""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import queue
import random
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import soak_requests

STALL = 1800  # seconds without a byte after which an answer counts as lost
BUSY = (429, 503)


class Lost(Exception):
    pass


def request_bytes(request, close):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (
        request.path.encode(), b"Connection: close\r\n" if close else b"", len(request.body)) + request.body


def ends(data):
    """The place where an answer's header ends and whether the answer is whole."""
    header = data.find(b"\r\n\r\n") + 4
    if header < 4:
        return 0, False
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", data[:header])
    return header, len(data) == header + int(length[1]) if length else data.endswith(b"\r\n0\r\n\r\n")


def body_of(data, header):
    if b"chunked" not in data[:header].lower():
        return bytes(data[header:])
    body, at = bytearray(), header
    while (end := data.find(b"\r\n", at)) >= 0 and (size := int(data[at:end], 16)) > 0:
        body += data[end + 2:end + 2 + size]
        at = end + 4 + size
    return bytes(body)


class Connection:
    """To the server, kept between requests where both sides want it."""

    def __init__(self, host, port, address):
        self.host, self.port, self.address, self.reader, self.writer = host, port, address, None, None

    async def open(self):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, local_addr=self.address)

    def close(self):
        if self.writer is not None:
            self.writer.transport.abort()
        self.writer = None

    async def read(self, data):
        part = await asyncio.wait_for(self.reader.read(1 << 16), STALL)
        data += part
        return len(part) > 0

    async def ask(self, request, random_):
        """(status, body, whole): status 0 where the client left before there was one."""
        data, left = bytearray(), request.behaviour
        sent = request_bytes(request, random_.random() < 0.3)
        await self.open()
        try:
            self.writer.write(sent[:len(sent) // 2] if left == "leaves within its body" else sent)
            if left == "closes its half":
                self.writer.write_eof()
            if left == "reads late":
                await asyncio.sleep(random_.random())
            least = {"leaves at once": 0, "leaves within its body": 0, "leaves at the first bytes": 1,
                     "leaves later": random_.randint(1, 20_000)}.get(left, 1 << 62)
            whole = False
            while not whole and len(data) < least and await self.read(data):
                whole = ends(data)[1]
            header = ends(data)[0]
            return int(data[9:12]) if header else 0, body_of(data, header) if header else b"", whole
        finally:
            keeps = left in ("stays", "reads late") and b"connection: close" not in (sent[:200] + data[:500]).lower()
            if not keeps or not ends(data)[1]:
                self.close()


async def ask_until_served(connection, request, random_, busy):
    while True:
        try:
            status, body, whole = await connection.ask(request, random_)
        except (ConnectionError, asyncio.IncompleteReadError):
            connection.close()
            return 0, b"", False
        if status not in BUSY:
            return status, body, whole
        with busy.get_lock():
            busy.value += 1
        await asyncio.sleep(random_.uniform(0.2, 1))


def judge(request, status, body, whole):
    """What is wrong with it, or None."""
    if request.behaviour == "closes its half" or (request.behaviour.startswith("leaves") and not whole):
        return None
    if status not in request.statuses:
        return f"status {status}: {body[:200]}"
    if not whole:
        return "no end"
    return f"an error in the stream: {body[-300:]}" if b'data: {"error"' in body else None


class Worker:
    """A share of the clients, in a process of its own."""

    def __init__(self, options, number, shared):
        self.o, self.number = options, number
        self.next, self.done, self.busy, self.results = shared

    def take(self):
        with self.next.get_lock():
            self.next.value += 1
            return self.next.value - 1

    async def client(self, number):
        o = self.o
        address = (f"127.0.1.{number % o.addresses + 1}", 0) if o.addresses else None
        connection = Connection(o.host, o.port, address)
        while (index := self.take()) < o.requests:
            request = soak_requests.make(o.seed, index, o.model, o.words, o.tokens)
            random_ = random.Random(index)
            try:
                status, body, whole = await ask_until_served(connection, request, random_, self.busy)
                failure = judge(request, status, body, whole)
            except asyncio.TimeoutError:
                status, body, whole, failure = 0, b"", False, f"nothing came for {STALL} s"
                connection.close()
            kept = body if status == 200 and index in o.checked else None
            self.results.put((index, status, whole, kept, failure))
            with self.done.get_lock():
                self.done.value += 1
        connection.close()

    async def all_clients(self):
        await asyncio.gather(*(self.client(i) for i in range(self.number, self.o.live, self.o.processes)))

    def run(self):
        asyncio.run(self.all_clients())
        self.results.put(None)


class Server:
    """What its metrics say."""

    def __init__(self, url):
        self.url = url

    def metrics(self):
        text = urllib.request.urlopen(self.url + "/metrics", timeout=60).read().decode()
        return {name: float(value) for name, value in re.findall(r"^([\w:]+)(?:{[^}]*})? (\S+)$", text, re.MULTILINE)}

    def until_empty(self):
        for _ in range(600):
            m = self.metrics()
            if m["vllm:num_requests_running"] + m["moesaic:num_requests_preparing"] + m["moesaic:kv_pages_used"] == 0 \
                    and m["moesaic:connections"] == 1:
                return None
            time.sleep(0.1)
        return f"{m['moesaic:kv_pages_used']:.0f} pages and {m['moesaic:connections'] - 1:.0f} connections are still held"


def gpu_mib():
    if shutil.which("nvidia-smi") is None:
        return 0
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True)
    return sum(map(int, done.stdout.split())) if done.returncode == 0 else 0


class Watch:
    """A row for each interval."""

    def __init__(self, server):
        self.server, self.begun, self.rows = server, time.time(), []
        self.last, self.last_time, self.last_done = server.metrics(), self.begun, 0
        print("     s   done  req/s   tok/s running waiting  RSS MiB GPU MiB captures/min steps/s step ms host ms", flush=True)

    def row(self, done):
        m, now = self.server.metrics(), time.time()
        gone = {name: m[name] - self.last.get(name, 0) for name in m}
        seconds, steps = now - self.last_time, max(1, gone["moesaic:steps_total"])
        mib = m["process_resident_memory_bytes"] / (1 << 20)
        print(f"{now - self.begun:6.0f} {done:6} {(done - self.last_done) / seconds:6.0f} {gone['vllm:generation_tokens_total'] / seconds:7.0f} "
              f"{m['vllm:num_requests_running']:7.0f} {m['vllm:num_requests_waiting']:7.0f} {mib:8.1f} {gpu_mib():7} "
              f"{gone['moesaic:step_captures_total'] * 60 / seconds:12.0f} {steps / seconds:7.0f} "
              f"{1000 * gone['moesaic:step_seconds_total'] / steps:7.2f} {1000 * gone['moesaic:step_host_seconds_total'] / steps:7.3f}", flush=True)
        empty = m["moesaic:kv_pages_total"] - m["moesaic:kv_pages_used"] - m["moesaic:kv_pages_cached"]
        self.rows.append((mib, empty < 0.05 * m["moesaic:kv_pages_total"]))
        self.last, self.last_time, self.last_done = m, now, done

    def growth(self):
        """The median MiB of the second and of the last third of the rows since the prefix cache is full; None if these are too few.
        Before that memory grows with the cache: its index takes some 250 bytes a page, and on the CPU K and V are touched."""
        full = [mib for mib, is_full in itertools.dropwhile(lambda row: not row[1], self.rows)]
        third = len(full) // 3
        return (statistics.median(full[third:2 * third]), statistics.median(full[-third:])) if third >= 3 else None


def soak(options, server):
    """{index: (status, whole, body or None, failure or None)}"""
    shared = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0), multiprocessing.Value("q", 0), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=Worker(options, i, shared).run, daemon=True) for i in range(options.processes)]
    watch = Watch(server)
    for worker in workers:
        worker.start()
    results, ended, late = {}, 0, time.time() + options.every
    while ended < len(workers):
        try:
            result = shared[3].get(timeout=max(0.01, late - time.time()))
            ended += result is None
            if result is not None:
                results[result[0]] = result[1:]
        except queue.Empty:
            if not all(w.is_alive() or w.exitcode == 0 for w in workers):
                raise Lost("a process of clients ended")
        if time.time() >= late:
            watch.row(shared[1].value)
            late += options.every
    watch.row(shared[1].value)
    return results, watch, shared[2].value


def lone(options, request):
    async def ask():
        connection = Connection(options.host, options.port, None)
        try:
            return await connection.ask(request.alone(), random.Random(1))
        finally:
            connection.close()
    return asyncio.run(ask())


def compare(options, results):
    """Sends what was kept again, each alone; the lines of what differs."""
    wrong, whole_ones, kept = [], 0, {i: r for i, r in results.items() if r[2] is not None}
    for index, (_, whole, body, _) in sorted(kept.items()):
        request = soak_requests.make(options.seed, index, options.model, options.words, options.tokens)
        status, again, _ = lone(options, request)
        before = soak_requests.said(body) if whole or body.startswith((b"data", b"event", b":")) else {}
        now = soak_requests.said(again) if status == 200 else {"status": status}
        whole_ones += whole
        if now != before if whole else not soak_requests.begins(before, now):
            wrong.append(f"request {index} ({request.behaviour}): {request.path} {request.body[:600].decode()}\n"
                         f"    in company: {str(before)[-400:]}\n    alone:      {str(now)[-400:]}")
    print(f"{len(kept)} requests again alone, {len(kept) - whole_ones} of them of clients that had left: {len(wrong)} differ", flush=True)
    return wrong


def summary(options, results, watch, busy):
    took = watch.last_time - watch.begun
    statuses = {}
    for status, whole, _, _ in results.values():
        key = f"{status}" if whole else "left"
        statuses[key] = statuses.get(key, 0) + 1
    print(f"{len(results)} requests in {took:.0f} s, {options.live} at a time: {len(results) / took:.0f} a second; "
          f"{statuses}; {busy} times busy", flush=True)


def failures_of(options):
    server = Server(options.url)
    results, watch, busy = soak(options, server)
    summary(options, results, watch, busy)
    failures = [f"request {i}: {r[3]}" for i, r in sorted(results.items()) if r[3]]
    if len(results) != options.requests:
        failures.append(f"{options.requests - len(results)} requests have no result")
    failures += filter(None, [server.until_empty()])
    if (memory := watch.growth()) is None:
        print("memory: not judged, as the prefix cache was not full for nine rows: take more requests or a smaller --kv-tokens", flush=True)
    else:
        print("memory since the prefix cache is full: %.1f MiB in the second third of the rows, %.1f in the last" % memory, flush=True)
        if memory[1] > 4 + (1 + options.growth / 100) * memory[0]:
            failures.append("memory grows")
    return failures + compare(options, results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--live", type=int, default=1024, help="clients at a time")
    parser.add_argument("--words", type=int, default=40, help="most words of a prompt, and of a beginning that it shares")
    parser.add_argument("--tokens", type=int, default=800, help="most tokens of an answer")
    parser.add_argument("--check", type=int, default=1000, help="requests that are sent again, alone")
    parser.add_argument("--processes", type=int, default=0, help="of clients; 0: as this machine takes")
    parser.add_argument("--addresses", type=int, default=8, help="clients by address; 0: one (for a server that is not here)")
    parser.add_argument("--growth", type=float, default=2, help="percent that memory may grow, beside 4 MiB")
    parser.add_argument("--every", type=float, default=10, help="seconds between rows")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    url = urllib.parse.urlsplit(options.url)
    options.host, options.port = socket.gethostbyname(url.hostname), url.port or 80
    models = json.load(urllib.request.urlopen(options.url + "/v1/models", timeout=60))
    options.model = models["data"][0]["id"]
    options.addresses = options.addresses if options.host == "127.0.0.1" else 0
    options.processes = options.processes or max(1, min(8, len(os.sched_getaffinity(0)) // 2, options.live // 32))
    options.checked = set(random.Random(options.seed).sample(range(options.requests), min(options.check, options.requests)))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    failures = failures_of(options)
    for failure in failures[:20]:
        print(failure)
    print(f"{len(failures)} failures" if failures else "all well")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
