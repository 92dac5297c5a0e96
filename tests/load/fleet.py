"""Routers from PyPI in front of two workers, of which one is killed (SIGKILL) in the middle: are requests lost?
    MOESAIC=build/release/apps/moesaic python3 tests/load/fleet.py smg --requests 1000 --kill
    MOESAIC=build/release/apps/moesaic python3 tests/load/fleet.py vllm-router --policy round_robin
Needs the router's program in PATH (pip install smg vllm-router). Prints how many answers were right, which statuses the others
had, and how many tokens of prompts the workers found in their caches.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "client"))
from served import Served  # noqa: E402

COMMANDS = {
    "smg": lambda urls, port, policy: ["smg", "launch", "--worker-urls", *urls, "--policy", policy, "--port", port],
    "vllm-router": lambda urls, port, policy: ["vllm-router", "--worker-urls", *urls, "--policy", policy, "--port", port],
}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Router:
    def __init__(self, kind, workers, policy):
        self.port = free_port()
        self.log = open(f"/tmp/fleet-{kind}.log", "w")
        self.process = subprocess.Popen(COMMANDS[kind]([w.url for w in workers], str(self.port), policy), stdout=self.log,
                                        stderr=subprocess.STDOUT)

    def ask(self, prompt):
        """(status, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data)["choices"][0]["text"] if answer.status == 200 else data[:200].decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    def wait(self):
        deadline = time.time() + 180
        while self.ask("Once")[0] != 200:
            if time.time() > deadline:
                raise RuntimeError(f"the router did not become ready: {self.ask('Once')}; see {self.log.name}")
            time.sleep(0.2)


def prompts(count):
    """Thirty conversations that grow: whoever has seen the beginning need not compute it again."""
    words = "the sun a cat walks over blue hills and then sings of rain in some old town by night".split()
    random_ = random.Random(1)
    said = [" ".join(random_.choices(words, k=60)) for _ in range(30)]
    for i in range(count):
        said[i % 30] += " " + " ".join(random_.choices(words, k=4))
        yield said[i % 30]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("router", choices=COMMANDS)
    parser.add_argument("--policy", default="cache_aware")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    workers = [Served("--name", "tiny", "--owned-by", "vllm", "--log", "quiet", "--max-batch", 8, context=2048).wait_ready() for _ in range(2)]
    asked = list(prompts(options.requests))
    expected = {p: workers[0].post("/v1/completions", {"prompt": p, "max_tokens": 8, "temperature": 0, "cache_prompt": False})[1]["choices"][0]["text"] for p in asked[:60]}
    router = Router(options.router, workers, options.policy)
    router.wait()
    done, killed = 0, threading.Event()
    lock = threading.Lock()

    def one(prompt):
        nonlocal done
        result = router.ask(prompt)
        with lock:
            done += 1
            if options.kill and done == options.requests // 2:
                workers[1].process.send_signal(signal.SIGKILL)
                killed.set()
        return prompt, *result

    before = [w.metric("vllm:prefix_cache_hits_total") for w in workers]
    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(options.clients) as clients:
        results = list(clients.map(one, asked))
    seconds = time.time() - start
    statuses = collections.Counter(status for _, status, _ in results)
    wrong = [(p, t) for p, s, t in results if s == 200 and p in expected and expected[p] != t]
    print(f"{options.router} {options.policy}: {statuses[200]} of {len(results)} answered in {seconds:.1f} s; statuses {dict(statuses)}; "
          f"{len(wrong)} of {len(expected)} compared differ; killed one: {killed.is_set()}")
    for _, status, text in results:
        if status != 200:
            print(f"  {status}: {text}")
    for worker, hits in list(zip(workers, before))[:1 if options.kill else 2]:
        print(f"  worker {worker.port}: {worker.metric('vllm:prefix_cache_hits_total') - hits:.0f} of "
              f"{worker.metric('vllm:prefix_cache_queries_total'):.0f} prompt tokens were cached")
    router.process.terminate()
    router.process.wait(30)
    for worker in workers[:1 if options.kill else 2]:
        worker.stop()
    sys.exit(statuses[200] != len(results) or bool(wrong))


if __name__ == "__main__":
    main()
