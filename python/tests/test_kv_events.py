"""serve --kv-events: a subscriber written from vLLM's format (vllm/distributed/kv_events.py) follows the prefix cache. In the
end its picture is the server's: as many blocks, and for every prompt the same beginning. MOESAIC_KV_REQUESTS=10000 for more."""

import concurrent.futures
import ctypes.util
import http.client
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
import urllib.request

import pytest

zmq = pytest.importorskip("zmq")
msgpack = pytest.importorskip("msgpack")

REQUESTS = int(os.environ.get("MOESAIC_KV_REQUESTS", "200"))
BLOCK = 32  # tokens
pytestmark = pytest.mark.skipif(ctypes.util.find_library("zmq") is None, reason="libzmq.so.5 is not installed (libzmq5)")


class Picture:
    """What a router knows: blocks by hash, and those that follow each."""

    def __init__(self, endpoint):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        connected = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.socket.connect(endpoint)
        assert connected.poll(20_000)  # until then messages are lost
        self.socket.disable_monitor()
        self.blocks, self.next, self.removed = {}, 0, 0

    def read(self, milliseconds):
        """Takes one message; False where none came."""
        if not self.socket.poll(milliseconds):
            return False
        topic, number, payload = self.socket.recv_multipart()
        assert topic == b"kv@here@tiny" and struct.unpack(">Q", number) == (self.next,)
        self.next += 1
        seconds, events = msgpack.unpackb(payload)
        assert abs(time.time() - seconds) < 600
        for event in events:
            getattr(self, event[0])(*event[1:])
        return True

    def BlockStored(self, hashes, parent, tokens, block_size, lora, medium):
        assert (len(hashes), len(tokens), block_size, lora, medium) == (1, BLOCK, BLOCK, None, "GPU")
        assert hashes[0] not in self.blocks and (parent is None or parent in self.blocks)
        self.blocks[hashes[0]] = parent, tuple(tokens)

    def BlockRemoved(self, hashes, medium):
        assert medium == "GPU"
        for name in hashes:
            del self.blocks[name]
            self.removed += 1

    def AllBlocksCleared(self):
        self.blocks.clear()

    def known(self, tokens):
        """How many of a prompt's tokens are cached, in whole blocks, at least one being left to compute."""
        children = {block: name for name, block in self.blocks.items()}
        parent, count = None, 0
        while count + BLOCK < len(tokens):
            parent = children.get((parent, tuple(tokens[count:count + BLOCK])))
            if parent is None:
                break
            count += BLOCK
        return count


class Server:
    def __init__(self, endpoint):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moesaic", "serve", "-m", "tiny", "--port", "0", "--device", "cpu", "-t", "1", "--log", "quiet",
             "--ctx", "512", "--kv-tokens", "4096", "--max-batch", "4", "--kv-events", endpoint, "--kv-events-topic", "kv@here@tiny"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)\n", line)[1])

    def complete(self, tokens):
        """Tokens of the prompt that the server had cached."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        for _ in range(600):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": tokens, "max_tokens": 1}))
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status == 200:
                return body["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert answer.status == 503, body
            time.sleep(0.05)
        raise AssertionError("the server did not become ready")

    def metric(self, name):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60).read().decode()
        return float(re.search(rf"^{re.escape(name)}{{.*}} (\S+)$", text, re.MULTILINE)[1])


def prompts(seed):
    """Some beginnings that many prompts share, forks, and prompts of their own."""
    random_ = random.Random(seed)
    tokens = lambda count: [random_.randrange(200, 4000) for _ in range(count)]
    beginnings = [tokens(random_.randrange(40, 300)) for _ in range(12)]
    for _ in range(REQUESTS):
        shared = random_.choice(beginnings)
        yield (shared[:random_.randrange(1, len(shared))] if random_.random() < 0.3 else shared) + tokens(random_.randrange(1, 100))


def test_a_subscribers_picture_is_the_servers(tmp_path):
    endpoint = f"ipc://{tmp_path}/kv"
    server, picture = Server(endpoint), Picture(endpoint)
    asked = list(prompts(3))
    server.complete([300])  # waits until the model is loaded, and stores nothing
    with concurrent.futures.ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.complete, prompt) for prompt in asked]
        while not all(answer.done() for answer in answers):
            picture.read(20)
    hits = sum(answer.result() for answer in answers)
    while picture.read(300):
        pass
    # Nothing runs: every cached page is idle.
    assert len(picture.blocks) == server.metric("moesaic:kv_pages_cached") > 0
    assert hits > 0 and picture.removed > 0
    # A hit also needs the sliding layers' pages, so the server may find less than the picture has; never more.
    found = []
    for prompt in asked[-20:]:
        known = picture.known(prompt)
        cached = server.complete(prompt)
        assert cached <= known
        found.append((cached, known))
        while picture.read(100):
            pass
    assert sum(cached for cached, _ in found) > 0
    assert server.metric("vllm:gpu_prefix_cache_hits_total") == server.metric("vllm:prefix_cache_hits_total") > 0
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_an_address_that_cannot_be_bound_is_one_line():
    done = subprocess.run([sys.executable, "-m", "moesaic", "serve", "-m", "tiny", "--port", "0", "--kv-events", "tcp://nowhere"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("moesaic: --kv-events tcp://nowhere: ")
