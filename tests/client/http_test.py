"""HTTP as hostile and unlucky clients speak it: each gets a clean answer or a closed connection, and nobody else notices."""

import json
import os
import pathlib
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from served import MOESAIC, Served  # noqa: E402

CHAT = "/v1/chat/completions"
OPTIONS = ("--max-batch", 2, "--max-waiting", 2, "--max-body", 1_000_000, "--header-timeout", 1, "--body-timeout", 2,
           "--idle-timeout", 5, "--heartbeat", 1, "--log", "quiet", "--cors-origin", "https://page.example")


def ask(text="What is 17 + 25?", **options):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **options}


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served(*OPTIONS, context=16384).wait_ready()
        names = "<|return|><|call|><|endoftext|><|end|><|start|>"  # its first message goes on
        stops = cls.server.post("/tokenize", {"prompt": names, "parse_special": True})[1]["tokens"]
        cls.endless = ask("Tell me a story.", stream=True, temperature=1, logit_bias={str(t): -100 for t in stops})

    @classmethod
    def tearDownClass(cls):
        status, log = cls.server.stop()
        if status != 0:
            raise AssertionError(f"the server ended with {status}: {log}")

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), "the server is gone")
        self.server.until("vllm:num_requests_running", 0)
        self.assertEqual(self.server.post(CHAT, ask(max_tokens=2))[0], 200)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20)

    def raw(self, data, close=False):
        """All that comes back for some bytes."""
        with self.connect() as s:
            s.sendall(data)
            if close:
                s.shutdown(socket.SHUT_WR)
            answer = b""
            while part := s.recv(65536):
                answer += part
            return answer

    def request(self, body, path=CHAT, extra=""):
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
        return head.encode() + data

    def stream(self, behind=b""):
        """A connection on which an endless answer has begun."""
        s = self.connect()
        s.sendall(self.request(self.endless) + behind)
        self.assertIn(b"200 OK", s.recv(65536))
        return s

    def gone(self):
        """How many generations ended because their client had left."""
        return self.server.metric("vllm:request_success_total", 'finished_reason="abort"')

    def until_gone(self, count):
        """And none is left, nor has any come to its end by itself meanwhile: the answer has no end but the context's."""
        self.server.until("vllm:request_success_total", count, label='finished_reason="abort"')
        self.server.until("vllm:num_requests_running", 0)

    def refused(self, status, body, path=CHAT, method="POST"):
        got, _, data = self.server.call(method, path, body)
        self.assertEqual(got, status, data)
        error = json.loads(data)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        return error

    def test_paths(self):
        self.refused(404, None, "/nowhere", "GET")
        self.assertEqual(self.refused(405, None, CHAT, "GET")["message"], f"{CHAT} does not take GET, but POST")
        for path in ("/health", "/ready", "/version", "/metrics", "/server_info", "/v1/models"):
            self.assertEqual(self.server.call("GET", path)[0], 200)
        status, headers, body = self.server.call("HEAD", "/health")
        self.assertEqual((status, body), (200, b""))
        self.assertIn("X-Request-Id", headers)

    def test_an_answer_to_head_has_no_body(self):
        """Not even a refusal of what is no request."""
        for target, field, status in (("/nowhere", "X: y", 404), ("*", "X: y", 400), ("/", "Transfer-Encoding: gzip, chunked", 501),
                                      ("/", "X: " + "y" * 100_000, 431), ("/" + "a" * 100_000, "X: y", 431)):
            answer = self.raw(f"HEAD {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n\r\n".encode())
            head, end, body = answer.partition(b"\r\n\r\n")
            self.assertEqual((head.split()[1], end, body), (str(status).encode(), b"\r\n\r\n", b""))
            self.assertRegex(head, rb"Content-Length: [1-9]")

    def test_time_of_steps(self):
        """The host's part of a step is less than the step: this server computes on the host."""
        self.server.post(CHAT, ask(max_tokens=8))
        self.assertGreaterEqual(self.server.metric("moesaic:steps_total"), 8)
        host = self.server.metric("moesaic:step_host_seconds_total")
        self.assertTrue(0 < host < self.server.metric("moesaic:step_seconds_total"), host)
        self.assertGreater(self.server.metric("process_resident_memory_bytes"), 10_000_000)

    def test_server_info(self):
        info = json.loads(self.server.call("GET", "/server_info")[2])
        self.assertEqual(info["context"], {"tokens": 16384, "reason": "asked for"})
        device = info["device"]
        self.assertIn(device["backend"], ("cpu", "cuda"))
        self.assertEqual(device["reason"].startswith("no GPU is usable: "), device["backend"] == "cpu")
        self.assertGreater(device["memory_total"], device["memory_free"])
        self.assertGreater(device["memory_free"], 0)
        self.assertEqual(info["memory_used"], sum(info["memory"].values()))
        self.assertGreater(info["memory"]["kv_cache"], 0)
        self.assertGreaterEqual(info["kv_cache"]["tokens"], 16384)
        self.assertGreater(info["max_batch"], 0)
        self.assertEqual(info["tp_size"], 1)

    def test_server_info_tells_the_ranks(self):
        server = Served("--device", "cpu", "--tp", 2, "--log", "quiet").wait_ready()
        self.assertEqual(json.loads(server.call("GET", "/server_info")[2])["tp_size"], 2)
        server.stop()

    def test_what_was_chosen_is_printed(self):
        server = Served(context=0).wait_ready()
        told = [server.process.stdout.readline().strip() for _ in range(5)]
        self.assertRegex(told[0], r"^device (cpu|cuda:0): ?.*; (the first usable|no GPU is usable: .+)$")
        size = r"[\d.]+ [GM]B"
        self.assertRegex(told[1], rf"^memory: weights {size}, KV cache {size}(, workspace {size})?; {size} free$")
        self.assertEqual(told[2], "context 131072 tokens: the model's maximum")
        self.assertRegex(told[3], r"^batch at most \d+ requests: as many as pay on this device; steps of at most \d+ tokens$")
        if told[0].startswith("device cpu"):
            page = (pathlib.Path(__file__).parents[2] / "docs/user/server.md").read_text()
            documented = [re.search(rf"(?m)^\| `{option}` .* (\d+) on a CPU", page)[1] for option in ("--max-batch", "--max-rows")]
            self.assertEqual(re.findall(r"\d+", told[3]), documented)
        self.assertRegex(told[4], r"^KV cache \d+ tokens for all requests: ")
        server.stop()

    def test_bodies(self):
        for body in ("", "{", "[]", "3", "null", '{"messages": ', b'{"messages": "\xff\xfe"}', "[" * 10000,
                     '{"messages":' + "[" * 10000 + "]" * 10000 + "}", '{"messages": []}', '{"messages": [1]}',
                     '{"messages": [{"role": "user", "content": {"a": 1}}]}', '{"messages": [{}]}', "\0" * 100):
            with self.subTest(str(body)[:40]):
                self.refused(400, body)
        for path in ("/v1/completions", "/v1/responses", "/tokenize", "/detokenize"):
            for body in ("{}", "[]", '{"tokens": [-1]}', '{"prompt": {}}', '{"input": 5}'):
                with self.subTest(path + body):
                    self.refused(400, body, path)

    def test_too_large(self):
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n"
        self.assertIn(b" 413 ", self.raw((head + f"Content-Length: {1 << 30}\r\n\r\n").encode()))
        # Each API has its own form of an error, before a body is read, too.
        for path, own, form in (("/api/chat", "", rb'{"error":"[^"]*bytes"}'),
                                ("/v1/messages", "anthropic-version: 1\r\n", rb'Request-Id: (?s:.*)"type":"error"'),
                                ("/v1/chat/completions", "", rb'{"error":{"')):
            for fields in (f"Content-Length: {1 << 30}", "X: " + "x" * 100_000):
                answer = self.raw(f"POST {path} HTTP/1.1\r\nHost: x\r\n{own}{fields}\r\n\r\n".encode())
                self.assertRegex(answer, rb"^HTTP/1.1 4(13|31) ")
                self.assertRegex(answer, form, path)
                self.assertRegex(answer, rb"\r\nDate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        with self.connect() as s:
            s.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
            try:
                for _ in range(20):
                    s.sendall(chunk)
            except OSError:
                pass
            self.assertIn(b" 413 ", s.recv(65536))
        self.assertIn(b" 431 ", self.raw(b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000))

    def test_expect(self):
        with self.connect() as s:
            data = json.dumps(ask(max_tokens=2)).encode()
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {len(data)}\r\n\r\n"
                      .encode())
            self.assertTrue(s.recv(1000).startswith(b"HTTP/1.1 100 "))
            s.sendall(data)
            self.assertIn(b"200 OK", s.recv(65536))

    def test_not_http(self):
        for data in (b"\r\n\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                     b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
                     b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            with self.subTest(data):
                answer = self.raw(data, close=True)
                self.assertTrue(answer == b"" or b" 400 " in answer or b" 505 " in answer, answer)

    def test_trailers(self):
        """Sizes at which the parser, or what it stores fields in, gives up."""
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        for size in (20_000, 65_533, 65_534, 65_535, 70_000, 1_000_000):
            many = b"a" * size
            for body in (b"0\r\nX: " + many + b"\r\n\r\n", b"0\r\n" + many + b": x\r\n\r\n", b"1;" + many + b"\r\nx\r\n0\r\n\r\n"):
                with self.subTest(size=size, body=body[:8]), self.connect() as s:
                    try:
                        s.sendall(head + body)
                    except OSError:
                        pass
                    self.assertIn(b" 431 ", s.recv(65536))

    def test_smuggling(self):
        """The second request is nobody's."""
        for status, fields in ((501, "Transfer-Encoding: gzip"), (501, "Transfer-Encoding: chunked, identity"),
                               (400, "Transfer-Encoding: chunked, chunked"), (400, "Transfer-Encoding: chunked\r\nContent-Length: 4"),
                               (400, "Content-Length: 4\r\nContent-Length: 4"), (400, "Host: other")):
            with self.subTest(fields):
                answer = self.raw(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n".encode() +
                                  b"0\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
                self.assertTrue(answer.startswith(f"HTTP/1.1 {status} ".encode()), answer)

    def test_silence(self):
        with self.connect() as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b" 200 ", idle.recv(65536))
            idle.sendall(b"\r\n")  # begins no request
            start = time.monotonic()
            with self.connect() as silent:
                self.assertEqual(silent.recv(100), b"")
            self.assertGreater(time.monotonic() - start, 0.9)
            time.sleep(0.2)
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # between requests there is more time
            self.assertIn(b" 200 ", idle.recv(65536))

    def test_slow_header(self):
        with self.connect() as s:
            try:
                for byte in b"GET /health HT":
                    s.sendall(bytes([byte]))
                    time.sleep(0.02)
            except OSError:  # on a busy machine the second is over before the last byte
                pass
            self.assertIn(b" 408 ", s.recv(65536))

    def test_slow_body(self):
        with self.connect() as s:
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())
            self.assertIn(b" 408 ", s.recv(65536))

    def test_a_client_that_sends_fast_is_left_in_time(self):
        # Refused at once; what follows is read for a while only, also where there is always something to read.
        with self.connect() as s:
            s.sendall(b"POST /nope HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            chunk, end = b"8000\r\n" + b"a" * 0x8000 + b"\r\n", time.monotonic() + 20
            with self.assertRaises(OSError):
                while time.monotonic() < end:
                    s.sendall(chunk)

    def test_half_closed(self):
        for behind in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            gone = self.gone()
            with self.stream(behind) as s:
                s.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: s.recv(65536), b""))
            self.assertNotIn(b"[DONE]", answer)
            self.assertNotIn(b"HTTP/1.1", answer)
            self.until_gone(gone + 1)
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
                s.shutdown(socket.SHUT_WR)
                self.assertEqual(b"".join(iter(lambda: s.recv(65536), b"")).count(b"200 OK"), 5)

    def test_reset(self):
        gone = self.gone()
        for _ in range(5):
            s = self.stream()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
        self.until_gone(gone + 5)

    def test_idle_connections(self):
        server, idle = Served("--idle-timeout", 300, "--header-timeout", 300).wait_ready(), []
        for _ in range(500):  # each asks once
            idle.append(s := socket.create_connection(("127.0.0.1", server.port), timeout=60))
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for s in idle:
            self.assertIn(b" 200 ", s.recv(65536))
        self.assertEqual(server.post(CHAT, ask(max_tokens=2))[0], 200)
        self.assertGreaterEqual(server.metric("moesaic:connections"), 500)
        for s in idle:
            s.close()
        server.until("moesaic:connections", 1)  # the one that asks
        server.stop()

    def test_pipelined(self):
        two = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        self.assertEqual(self.raw(two).count(b"200 OK"), 2)

    def test_http_1_0(self):
        data = json.dumps({**ask(max_tokens=3), "stream": True}).encode()
        answer = self.raw(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"), answer)

    def test_keep_alive(self):
        with self.connect() as s:
            for _ in range(3):
                s.sendall(self.request(ask(max_tokens=3, stream=True)))
                answer = b""
                while not answer.endswith(b"0\r\n\r\n"):
                    part = s.recv(65536)
                    self.assertTrue(part)
                    answer += part
                self.assertIn(b"[DONE]", answer)

    def test_full_queue_and_heartbeat(self):
        streams = [self.stream() for _ in range(2)]
        waiting = [self.connect() for _ in range(2)]
        for s in waiting:
            s.sendall(self.request(self.endless))
        self.server.until("vllm:num_requests_waiting", 2)
        status, headers, data = self.server.call("POST", CHAT, json.dumps(ask()))
        self.assertEqual(status, 429, data)
        self.assertTrue(int(headers["Retry-After"]) > 0)
        answer = b""
        while b": still working" not in answer:
            answer += (part := waiting[0].recv(65536))
            self.assertTrue(part, answer)
            self.assertNotIn(b"data:", answer)
        for s in [*streams, *waiting]:
            s.close()
        self.server.until("vllm:num_requests_waiting", 0)

    def test_a_whole_answer_may_take_longer_than_a_body(self):
        """--body-timeout and --idle-timeout are 2 and 5 seconds; the answer waits until the engine has a place for it. A client
        that leaves behind these times is noticed, too."""
        streams, answers = [self.stream() for _ in range(2)], []
        asker = threading.Thread(target=lambda: answers.append(self.server.post(CHAT, ask(max_tokens=2))))
        asker.start()
        leaver = self.connect()
        leaver.sendall(self.request(ask(max_tokens=2)))
        self.server.until("vllm:num_requests_waiting", 2)
        time.sleep(6)
        self.assertEqual(answers, [])
        leaver.close()
        self.server.until("vllm:num_requests_waiting", 1)
        for s in streams:
            s.close()
        asker.join()
        self.assertEqual(answers[0][0], 200)

    def test_metrics_of_the_documentation(self):
        """Each name that docs/user/server.md lists is there; `_total` and the like stand behind the name before them."""
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/user/server.md").read_text()
        section = page.split("## Metrics and logs")[1].split("The log is")[0]
        shown = self.server.call("GET", "/metrics")[2].decode()
        names = re.findall(r"`((?:vllm|moesaic):\w+|process_\w+)`", section)
        self.assertGreater(len(names), 30)
        for name in names:
            self.assertRegex(shown, rf"(?m)^{name}(_bucket|_total)?[{{ ]", name)
            self.assertRegex(shown, rf"(?m)^# HELP {name} .+\n# TYPE {name} (gauge|counter|histogram)$", name)

    def test_a_call_that_is_not_complete_is_waited_for(self):
        """Its tokens show nothing yet: a heartbeat breaks that silence too."""
        tool = {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"text": {"type": "string", "minLength": 100000}}, "required": ["text"]}}}
        with self.stream(), self.connect() as s:  # the stream slows the call down
            s.sendall(self.request(ask(tools=[tool], tool_choice="required", stream=True)))
            answer = b""
            while b'"role"' not in answer or b": still working" not in answer.split(b'"role"')[1]:
                answer += (part := s.recv(65536))
                self.assertTrue(part, answer)
                self.assertNotIn(b"[DONE]", answer)
        self.assertNotIn(b"tool_calls", answer)

    def test_cors(self):
        origin = {"Origin": "https://page.example"}
        asked = "authorization,content-type,openai-organization,x-stainless-os,x-stainless-retry-count"
        status, headers, _ = self.server.call("OPTIONS", CHAT, headers={
            **origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, origin["Origin"]))
        self.assertEqual(headers["Access-Control-Allow-Headers"], asked)
        headers = self.server.call("GET", "/health", headers=origin)[1]
        self.assertEqual(headers["Access-Control-Allow-Origin"], origin["Origin"])
        self.assertIn("X-Request-Id", headers["Access-Control-Expose-Headers"])
        for other in ("https://other.example", "null", "http://localhost:1"):
            status, headers, _ = self.server.call("POST", CHAT, json.dumps(ask()), headers={"Origin": other})
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (403, None))
        own = {"Origin": self.server.url}
        self.assertEqual(self.server.call("POST", CHAT, json.dumps(ask(max_tokens=2)), headers=own)[0], 200)

    def test_names_of_others(self):
        self.assertEqual(self.server.call("GET", "/health", headers={"Host": "rebound.example"})[0], 403)
        self.assertEqual(self.server.call("GET", "/health", headers={"Host": "localhost:1"})[0], 200)

    def test_request_id(self):
        given = {"X-Request-Id": "my-request.1"}
        self.assertEqual(self.server.call("GET", "/health", headers=given)[1]["X-Request-Id"], "my-request.1")

    def test_same_answers_together(self):
        alone = self.server.post(CHAT, ask())[1]["choices"][0]["message"]["content"]
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.server.post(CHAT, ask())[1]))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([a["choices"][0]["message"]["content"] for a in answers], [alone] * 4)


class Memory(unittest.TestCase):
    """Bodies that are sent and not finished."""

    def test_held_bodies(self):
        budget, size = 64 << 20, 8 << 20
        server = Served("--max-bodies", budget, "--log", "quiet").wait_ready()
        self.addCleanup(lambda: self.assertEqual(server.stop()[0], 0))
        self.assertEqual(server.post(CHAT, ask(max_tokens=2))[0], 200)  # takes memory that stays
        start = server.resident()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
        body = json.dumps(ask("x " * 1000)).encode().ljust(size - 1)
        held, answers = [], []
        for _ in range(20):
            s = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            held.append(s)
            s.sendall(head)
            try:
                s.sendall(body)
            except OSError:
                pass
        deadline = time.monotonic() + 60
        while len(answers) < 13 and time.monotonic() < deadline:
            waiting = [s for s in held if s not in dict(answers)]  # those not refused wait for the last byte
            answers += [(s, s.recv(65536)) for s in select.select(waiting, [], [], 1)[0]]
        for _, answer in answers:
            self.assertIn(b" 503 ", answer)
            self.assertIn(b"Retry-After: ", answer)
        self.assertIn(len(answers), range(13, 20))
        self.assertLessEqual(server.metric("moesaic:request_body_bytes"), budget)
        self.assertLess(server.resident(), start + budget + (16 << 20))
        self.assertEqual(server.post(CHAT, ask(max_tokens=2))[0], 200)
        for s in held:
            s.close()
        server.until("moesaic:request_body_bytes", 0)
        server.until_resident(start + (16 << 20))
        for _ in range(4):  # parsed, and the parsed thrown away
            text = json.dumps({"messages": [{}] * 1_000_000})
            self.assertEqual(server.call("POST", CHAT, text)[0], 400)
        server.until_resident(start + (32 << 20))


class Start(unittest.TestCase):
    def test_keys(self):
        server = Served(env={"MOESAIC_API_KEY": "secret"})
        try:
            for headers, status in (({}, 401), ({"Authorization": "Bearer wrong!"}, 401),
                                    ({"Authorization": "Bearer secret1"}, 401)):
                self.assertEqual(server.call("GET", "/v1/models", headers=headers)[0], status)
            key = {"Authorization": "Bearer secret"}
            self.assertEqual(server.call("GET", "/health")[0], 200)
            server.wait_ready()
            self.assertEqual(server.call("GET", "/v1/models", headers=key)[0], 200)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_a_port_in_use(self):
        server = Served()
        try:
            done = subprocess.run([MOESAIC, "serve", "-m", "tiny", "--port", str(server.port)], capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, rf"cannot listen on 127.0.0.1:{server.port}: .*--port")
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_a_restart_on_the_same_port(self):
        """Connections that the first server closed are still in the kernel's TIME_WAIT."""
        first = Served().wait_ready()
        with socket.create_connection(("127.0.0.1", first.port)) as s:
            s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            self.assertIn(b" 200 ", b"".join(iter(lambda: s.recv(65536), b"")))
        self.assertEqual(first.stop()[0], 0)
        second = Served(port=first.port).wait_ready()
        self.assertEqual((second.port, second.stop()[0]), (first.port, 0))

    def test_a_client_with_many_waiting_makes_room_for_another(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("first\nsecond\n")
            keys.flush()
            server = Served("--max-batch", 1, "--max-waiting", 2, "--api-key-file", keys.name,
                            context=8192)
        try:
            first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
            while server.call("GET", "/ready")[0] != 200:
                time.sleep(0.1)
            long = ask("Tell me a story.", temperature=1, ignore_eos=True)
            answers, ended = [], threading.Event()

            def post():
                answers.append(server.post(CHAT, long, first)[0])
                ended.set()
            askers = [threading.Thread(target=post) for _ in range(3)]
            for i, asker in enumerate(askers):
                asker.start()
                server.until("vllm:num_requests_running" if i == 0 else "vllm:num_requests_waiting", max(1, i))
            other = threading.Thread(target=server.post, args=(CHAT, ask(max_tokens=2), second))
            other.start()
            self.assertTrue(ended.wait(20))
            self.assertEqual(answers, [429])
            server.until("moesaic:refused_busy_total", 1)
        finally:
            server.stop()
            for asker in (*askers, other):
                asker.join()

    def test_drain(self):
        server = Served(context=8192).wait_ready()
        answers = []
        tokens = 300 if os.environ.get("MOESAIC_SANITIZED") else 4000  # a second of answering
        thread = threading.Thread(target=lambda: answers.append(
            server.call("POST", CHAT, ask("Tell me a long story.", max_tokens=tokens, ignore_eos=True, temperature=1, seed=1))))
        thread.start()
        server.until("vllm:num_requests_running", 1)
        status, log = server.stop()
        thread.join()
        self.assertEqual(status, 0, log)
        self.assertEqual((answers[0][0], answers[0][1]["Connection"]), (200, "close"))
        lines = [json.loads(line) for line in log.splitlines()]
        self.assertIn("draining", [line["event"] for line in lines])
        request = [line for line in lines if line["event"] == "request" and line["path"] == CHAT][0]
        self.assertEqual(request["status"], 200)
        self.assertGreater(request["generated_tokens"], 0)

    def test_drain_ends_idle_connections(self):
        """A proxy keeps them, and would send requests here that another server can take."""
        server = Served("--header-timeout", 60, context=16384).wait_ready()
        body = json.dumps(ask(max_tokens=15000, ignore_eos=True, stream=True)).encode()
        stream, idle, new = (socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3))
        with stream, idle, new:
            stream.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
            self.assertIn(b" 200 OK", stream.recv(65536))
            health = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
            idle.sendall(health)
            self.assertIn(b" 200 OK", idle.recv(65536))
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(idle.recv(65536), b"")
            new.sendall(health)   # its first request is on its way
            self.assertIn(b" 503 ", new.recv(65536))
        self.assertEqual(server.stop()[0], 0)

    def test_log_of_clients_that_left(self):
        """It counts what was computed for them."""
        server = Served(context=8192).wait_ready()
        for stream in (False, True):
            before = server.metric("vllm:generation_tokens_total")
            body = json.dumps(ask("Tell me a long story.", max_tokens=8000, ignore_eos=True, stream=stream)).encode()
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
                end = time.monotonic() + 60
                while server.metric("vllm:generation_tokens_total") < before + 10:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.01)
            server.until("vllm:num_requests_running", 0)
        lines = [json.loads(line) for line in server.stop()[1].splitlines()]
        counts = [line["generated_tokens"] for line in lines if line["event"] == "request" and line["path"] == CHAT]
        self.assertEqual(len(counts), 2)
        self.assertGreaterEqual(min(counts), 9)

    def test_log_nobody_reads(self):
        server = Served().wait_ready()
        server.process.stderr.close()
        self.assertEqual(server.post(CHAT, ask(max_tokens=2))[0], 200)
        self.assertEqual(server.post(CHAT, ask(max_tokens=2))[0], 200)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(60), 0)

    def test_a_failing_disk_beside_a_pipe_nobody_reads(self):
        """What the server tells of the disk waits for the pipe's reader no more than its log does."""
        with tempfile.TemporaryDirectory() as folder:
            server = Served("--stored-responses", folder).wait_ready()
            for _ in range(450):
                server.call("GET", "/version")
            hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
            for i in range(100):
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard if i % 2 else 0, hard))
                self.assertEqual(server.post("/v1/responses", {"input": "hi", "max_output_tokens": 16})[0], 200)
                time.sleep(0.01)   # it is written meanwhile
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(60), 0)

    def test_a_log_that_may_not_grow_ends_no_server(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            server = Served("--log-file", log).wait_ready()
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1024, 1024))
            for _ in range(20):
                self.assertEqual(server.call("GET", "/version")[0], 200)
            status, said = server.stop()
            self.assertEqual((status, log.stat().st_size), (0, 1024))
            self.assertIn("File too large", said)

    def test_no_model(self):
        done = subprocess.run([MOESAIC, "serve", "-m", "/nowhere", "--port", "0"], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere", done.stderr.splitlines()[-1])



class UnknownFields(unittest.TestCase):
    NASTY = {"a\r\nSet-Cookie: x": 1, "\u00e9\"\0": 1, "x" * 100_000: 1, **{f"zq{i}": 1 for i in range(800)}}

    def test_header_and_log(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = pathlib.Path(folder.name) / "log"
        server = Served("--log-file", file, context=512).wait_ready()
        for path, body in ((CHAT, ask(max_tokens=1)), ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
                           ("/v1/responses", {"input": "a", "max_output_tokens": 1})):
            for stream in (False, True):
                status, headers, _ = server.call("POST", path, {**body, **self.NASTY, "stream": stream})
                self.assertEqual(status, 200)
                self.assertNotIn("Set-Cookie", headers)
                named = headers["X-Moesaic-Ignored-Fields"]
                self.assertLess(len(named), 1000)
                self.assertRegex(named, r"^[ -~]+, and-\d+-more$")
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]}), ("/v1/messages/count_tokens", ask())):
            status, headers, _ = server.call("POST", path, {**body, "zqx": 1})
            self.assertEqual((status, headers["X-Moesaic-Ignored-Fields"]), (200, "zqx"), path)
        for i in range(600):
            server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, f"name{i}": 1})
        self.assertEqual(server.stop()[0], 0)
        named = [json.loads(line)["detail"] for line in file.read_text().splitlines() if '"ignored_field"' in line]
        self.assertEqual(len(named), len(set(named)))
        self.assertLessEqual(len(named), 256)

    def test_polls_are_no_lines_of_the_log(self):
        server = Served(context=512).wait_ready()
        for _ in range(20):
            self.assertEqual(server.call("GET", "/metrics")[0], 200)
            self.assertEqual(server.call("GET", "/ready")[0], 200)
        self.assertEqual(server.call("GET", "/v1/models")[0], 200)
        status, log = server.stop()
        self.assertEqual((status, log.count('"/metrics"'), log.count('"/ready"'), log.count('"/v1/models"')), (0, 0, 0, 1), log)

    # Keywords of a schema that are not enforced are told in each kind of answer, and once in the log.
    def test_schema_notes(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = pathlib.Path(folder.name) / "log"
        server = Served("--log-file", file, context=512).wait_ready()
        unique = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}
        note = "uniqueItems is enforced for lists of few values only"
        schemas = ((unique, note), ({"type": "string", "format": "regex"}, 'the format "regex" is ignored'),
                   ({"type": "null", "a\r\nSet-Cookie: x\u00e9": 1},
                    "the unknown keyword a??Set-Cookie: x?? is ignored"), ({"type": "null"}, None),
                   ({"type": "null", **{f"x{i}": 1 for i in range(20)}},
                    "; ".join(f"the unknown keyword x{i} is ignored" for i in (0, 1, *range(10, 16))) + "; and more"))
        for schema, told in schemas:
            named = {"name": "x", "schema": schema}
            bodies = ((CHAT, ask(max_tokens=1, response_format={"type": "json_schema", "json_schema": named})),
                      ("/v1/completions", {"prompt": "a", "max_tokens": 1, "json_schema": schema}),
                      ("/v1/responses", {"input": "a", "max_output_tokens": 1,
                                         "text": {"format": {"type": "json_schema", **named}}}))
            for path, body in bodies:
                for stream in (False, True):
                    status, headers, _ = server.call("POST", path, {**body, "stream": stream})
                    self.assertEqual((status, headers.get("X-Moesaic-Schema-Notes")), (200, told), path)
        tool = {"name": "a", "strict": True, "parameters": {"type": "object", "properties": {"b": unique, "c": unique}}}
        _, headers, _ = server.call("POST", CHAT, ask(max_tokens=1, tools=[{"type": "function", "function": tool}]))
        self.assertEqual(headers["X-Moesaic-Schema-Notes"], note)
        self.assertEqual(server.stop()[0], 0)
        told = [json.loads(line)["detail"] for line in file.read_text().splitlines() if '"schema_note"' in line]
        self.assertEqual(told, "; ".join(note for _, note in schemas if note).split("; "))

    def test_strict(self):
        server = Served("--strict-fields", "--log", "quiet", context=512).wait_ready()
        for path, body in ((CHAT, ask(max_tokens=1)), ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
                           ("/v1/responses", {"input": "a", "max_output_tokens": 1}), ("/tokenize", {"prompt": "a"}),
                           ("/apply-template", ask()), ("/detokenize", {"tokens": [5]})):
            self.assertEqual(server.post(path, body)[0], 200)
            status, answer = server.post(path, {**body, "temprature": 1})
            self.assertEqual((status, answer["error"]["param"], answer["error"]["code"]),
                             (400, "temprature", "unknown_parameter"))
        self.assertEqual(server.stop()[0], 0)


class SlowReader(unittest.TestCase):
    def test_a_client_that_reads_slowly_gets_all_of_a_long_answer(self):
        timeout, sanitized = 2, "MOESAIC_SANITIZED" in os.environ
        server = Served("--write-timeout", timeout, "--log", "quiet").wait_ready()
        longest = server.post("/tokenize", {"prompt": " alphabetically"})[1]["tokens"]
        times = 262144 // len(longest) // (4 if sanitized else 1)
        body = json.dumps({"tokens": longest * times}).encode()
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            s.settimeout(60)
            s.connect(("127.0.0.1", server.port))
            s.sendall(b"POST /detokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                      + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            begun, parts = time.monotonic(), []
            while part := s.recv(1 << 17):
                parts.append(part)
                time.sleep(0.16 if sanitized else 0.04)
        head, answer = b"".join(parts).split(b"\r\n\r\n", 1)
        self.assertGreater(time.monotonic() - begun, timeout)  # longer than a client that reads nothing may take
        self.assertEqual(json.loads(answer)["content"], " alphabetically" * times)
        self.assertEqual(server.stop()[0], 0)


class LogThatNobodyReads(unittest.TestCase):
    def test_a_full_pipe_costs_lines_and_no_answers(self):
        server = Served().wait_ready()  # standard error is a pipe of 64 KiB
        for _ in range(40):
            for path in ("/health", "/" + "x" * 5000):
                self.assertIn(server.call("GET", path)[0], (200, 404))
        self.assertLess(server.call("GET", "/health")[0], 300)
        for _ in range(600):
            server.call("GET", "/version")
        status, log = server.stop()
        self.assertEqual(status, 0)
        self.assertTrue(all(len(line) < 4096 for line in log.splitlines()))


class Names(unittest.TestCase):
    def test_a_model_has_its_repositorys_name(self):
        with tempfile.TemporaryDirectory() as cache:
            snapshots = pathlib.Path(cache) / "models--openai--gpt-oss-20b/snapshots"
            snapshots.mkdir(parents=True)
            (snapshots / "current").symlink_to(pathlib.Path(__file__).resolve().parents[2] / "models/tiny")
            for name in ("openai/gpt-oss-20b", "https://huggingface.co/openai/gpt-oss-20b/tree/main", "hf.co/openai/gpt-oss-20b\n"):
                server = Served("--log", "quiet", model=name, env={"HF_HUB_CACHE": cache}).wait_ready()
                models = json.loads(server.call("GET", "/v1/models")[2])["data"]
                server.stop()
                self.assertEqual([model["id"] for model in models], ["gpt-oss-20b"])


if __name__ == "__main__":
    unittest.main(verbosity=int(os.environ.get("VERBOSE", "1")))
