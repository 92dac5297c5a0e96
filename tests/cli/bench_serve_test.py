"""bench-serve against servers that answer oddly: what it tells must be true, whatever they send."""

import json
import re
import resource
import socket
import threading
import time
import unittest

from cli import SANITIZED, Cli

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
DONE = b"data: [DONE]\n\n"


def event(text, **more):
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, **more}]}, ensure_ascii=False).encode() + b"\n\n"


def usage(tokens):
    """The last event of an answer, with its usage."""
    return b"data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}).encode() + b"\n\n"


def chunked(*parts, end=b"0\r\n\r\n"):
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + end


def closed(body):
    """An answer that ends with its connection."""
    return HEAD + b"Connection: close\r\n\r\n" + body


ANSWER = event("a") + event("é") + event("b")


class Server:
    """Answers every request with the same bytes, or with these parts, 0.1 s between them; hold: and keeps the connection open."""

    def __init__(self, answer, hold=False):
        self.parts = [answer] if isinstance(answer, bytes) else answer
        self.hold, self.held, self.seen = hold, [], []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.listen, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        for connection in self.held:
            connection.close()

    def listen(self):
        try:
            while True:
                threading.Thread(target=self.reply, args=self.socket.accept()[:1], daemon=True).start()
        except OSError:
            pass

    def reply(self, connection):
        try:
            data = b""
            while b"\r\n\r\n" not in data:
                part = connection.recv(65536)
                if not part:
                    return connection.close()
                data += part
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            while len(body) < length:
                body += connection.recv(65536)
            self.seen.append(json.loads(body))
            for i, part in enumerate(self.parts):
                time.sleep(0.1 if i else 0)
                connection.sendall(part)
            if self.hold:
                return self.held.append(connection)
        except OSError:
            pass
        connection.close()


class BenchServe(Cli):
    def report(self, answer, *options, hold=False, status=0):
        with Server(answer, hold) as server:
            done = self.moesaic("bench-serve", "--url", server.url, "--streams", 2, "--requests", 4, "-n", 3, "-o", "json", *options)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout)[0]

    def failure(self, answer, words, *options, hold=False):
        """Every request fails for this reason."""
        report = self.report(answer, *options, hold=hold, status=1)
        self.assertEqual((report["requests"], report["failed"]), (4, 4))
        self.assertRegex(report["error"], words)
        self.assertNotIn("exception", report["error"])

    def test_answers_as_servers_send_them(self):
        split = [bytes([b]) for b in ANSWER + DONE]  # within characters, too
        last = event("a") + event("b") + event("c", finish_reason="length")
        for answer in (chunked(ANSWER, DONE), chunked(*split), closed(ANSWER + DONE), chunked(last), closed(last),
                       chunked(ANSWER.replace(b"\n", b"\r\n"), DONE), chunked((ANSWER + DONE).replace(b"data: ", b"data:")),
                       chunked(b": ping\n\n", ANSWER, b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n', DONE),
                       chunked(b'data: {"choices":[{"text":null}]}\n\n', b'data: {"choices":[null]}\n\n', ANSWER, DONE),
                       b"HTTP/1.1 100 Continue\r\n\r\n" + closed(ANSWER + DONE)):
            report = self.report(answer)
            self.assertEqual((report["failed"], report["tokens"]), (0, 12), answer)
            self.assertNotIn("error", report)

    def counted(self, answer, tokens, by_events, *options):
        """How many tokens the answers have, and how many of the answers have no usage that can be true."""
        with Server(answer) as server:
            done = self.moesaic("bench-serve", "--url", server.url, "--streams", 2, "--requests", 4, "-n", 8, "-o", "json", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)[0]
        self.assertEqual((report["tokens"], report["counted_by_events"]), (4 * tokens, by_events), answer)
        self.assertAlmostEqual(report["tokens_per_second"] * report["seconds"], 4 * tokens, 3)
        note = f"bench-serve: note: {by_events} answers came without a usage that can be true: .*\n"
        self.assertRegex(done.stderr, f"^{note}$" if by_events else "^$")
        return report

    def test_tokens_that_a_server_merges_into_one_event_are_counted(self):
        parts = [HEAD + b"Connection: close\r\n\r\n" + event("a"), event("bcd"), event("efgh", finish_reason="length") + usage(8) + DONE]
        report = self.counted(parts, 8, 0)
        between, per_token = report["inter_token_ms"], report["time_per_output_token_ms"]
        self.assertGreater(between["p50"], 50)
        self.assertLess(per_token["max"], between["max"])
        with Server(parts) as server:  # one answer, whose own times are the medians
            report = self.json("bench-serve", "--url", server.url, "--streams", 1, "--requests", 1, "-n", 8, "-o", "json")[0]
        spent = report["end_to_end_ms"]["p50"] - report["time_to_first_token_ms"]["p50"]
        self.assertAlmostEqual(report["time_per_output_token_ms"]["p50"] * 7, spent, delta=1)

    def test_events_at_one_time_tell_no_time_per_token(self):
        report = self.counted(closed(event("abcd") + event("efgh", finish_reason="length") + usage(8) + DONE), 8, 0)
        self.assertEqual([report["time_per_output_token_ms"]["p50"], report["inter_token_ms"]["p50"]], [None, 0])
        answer = chunked(event("abcdefgh", finish_reason="length"), usage(8), DONE)
        report = self.counted(answer, 8, 0)
        self.assertEqual([report["time_per_output_token_ms"]["p50"], report["inter_token_ms"]["p50"]], [None, None])
        with Server(answer) as server:
            table = self.ok("bench-serve", "--url", server.url, "--streams", 1, "--requests", 1, "-n", 8)
        self.assertRegex(table.splitlines()[0], r"TTFT, ms +TPOT, ms +between events \(ITL\), ms$")
        self.assertRegex(table.splitlines()[2], r"( +-){5} *$")

    def test_usage_of_other_lengths_than_asked_for(self):
        self.counted(chunked(event("abc"), usage(3), DONE), 3, 0)
        self.counted(chunked(event("a"), event("b"), usage(2), DONE), 2, 0)
        self.counted(chunked(event("a b c d e f g h i j"), usage(10), DONE), 10, 0)

    def test_usage_in_each_event(self):
        def so_far(text, tokens):
            return b"data: " + json.dumps({"choices": [{"text": text}], "usage": {"completion_tokens": tokens}}).encode() + b"\n\n"
        self.counted(chunked(so_far("ab", 2), so_far("cdef", 6), DONE), 6, 0)
        self.counted(chunked(so_far("ab", 2), so_far("cdef", 6), usage(7), DONE), 7, 0)
        nothing = event("a")[:-3] + b',"usage":null}\n\n'
        self.counted(chunked(nothing, nothing, usage(5), DONE), 5, 0)

    def test_answers_without_usage_are_counted_by_events(self):
        self.counted(chunked(ANSWER, DONE), 3, 4)

    def test_usage_that_cannot_be_true(self):
        for nonsense in (-1, 0, 2, 2.5, 12.0, "8", None, True, [8], {}, 13, 2**31, 2**32 + 8, 2**63, 2**64, 2**64 + 8, 1e300):
            self.counted(chunked(ANSWER, usage(nonsense), DONE), 3, 4)
        for nonsense in (b'"usage":{}', b'"usage":[]', b'"usage":8', b'"usage":{"total_tokens":8}'):
            self.counted(chunked(ANSWER, b'data: {"choices":[],' + nonsense + b"}\n\n", DONE), 3, 4)
        self.counted(chunked(usage(8), ANSWER, DONE), 3, 4)
        self.counted(chunked(event("a"), usage(8), event("b"), DONE), 2, 4)
        self.failure(chunked(usage(8), DONE), "^no text$")
        self.failure(chunked(ANSWER, b'data: {"choices":[],"usage":{"completion_tokens":NaN}}\n\n', DONE), "no JSON")
        report = self.report(chunked(ANSWER, usage(4), end=b""), status=1)
        self.assertEqual((report["tokens"], report["counted_by_events"]), (12, 0))

    def test_usage_is_asked_for(self):
        with Server(chunked(ANSWER, DONE)) as server:
            self.ok("bench-serve", "--url", server.url, "--streams", 1, "--requests", 1)
            self.assertEqual(server.seen[0]["stream_options"], {"include_usage": True})

    def test_answers_that_end_too_soon(self):
        self.failure(chunked(ANSWER, end=b""), "closed the connection within")
        self.failure(closed(ANSWER), "without finish_reason")
        self.failure(closed(ANSWER + b'data: {"choi'), "without finish_reason")
        self.failure(HEAD + b"Content-Length: 99999\r\n\r\n" + ANSWER, "closed the connection within")
        self.failure(b"", "closed the connection without an answer")

    def test_refusals_and_errors(self):
        for status in (301, 404, 429, 503):
            self.failure(b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\n{}" % status, f"^HTTP {status}$")
        for body, said in ((b'{"error":{"message":"a key is missing"}}', "a key is missing"), (b'{"error":"no"}', "no")):
            self.failure(b"HTTP/1.1 401 x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body), f"^HTTP 401: {said}$")
        self.failure(b"HTTP/1.1 500 x\r\nContent-Length: 9000\r\n\r\n{}", "^HTTP 500$", hold=True)
        self.failure(chunked(ANSWER, b'data: {"error":{"message":"out of memory"}}\n\n', DONE), "^out of memory$")
        self.failure(chunked(event("a"), b'data: {"choices":[{"te\n\n', DONE), "no JSON")
        self.failure(chunked(b'data: {"choices":[{"text":"\xff"}]}\n\n', DONE), "no JSON")
        self.failure(closed(b"<html>"), "no text")
        self.failure(b"SSH-2.0-x\r\n", "version")
        self.failure(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "HTTP 100")

    def test_errors_cannot_steer_the_terminal(self):
        with Server(chunked(b'data: {"error":"bad\\u001b[2J\\u0007"}\n\n')) as server:
            done = self.moesaic("bench-serve", "--url", server.url, "--streams", 1, "--requests", 1)
        self.assertIn("bad", done.stdout)
        self.assertNotRegex(done.stdout + done.stderr, "[\x1b\x07]")

    def test_a_silent_server_is_not_waited_for_without_end(self):
        for answer in (b"", HEAD, chunked(event("a"), end=b"")):
            self.failure(answer, "not a byte for 0.5 s", "--timeout", 0.5, hold=True)

    def test_an_answer_without_end_is_not_read_without_end(self):
        self.failure([HEAD + b"\r\n"] + [event("a" * 1000) * 1100] * 2, "far longer than -n", "--timeout", 20, hold=True)

    def test_check_says_what_went_wrong_without_load(self):
        self.failure(b"HTTP/1.1 429 x\r\nContent-Length: 0\r\n\r\n", "HTTP 429", "--check")

    def test_a_server_that_refuses_at_once_is_not_flooded(self):
        with Server(b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n") as server:
            self.moesaic("bench-serve", "--url", server.url, "--streams", 2, "--seconds", 1)
            self.assertTrue(2 <= len(server.seen) <= 24, len(server.seen))

    @unittest.skipIf(SANITIZED, "address space")
    def test_prompts_are_made_when_they_are_sent(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # noqa: E731
        with Server(b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n") as server:
            done = self.moesaic("bench-serve", "--url", server.url, "--streams", 1, "--seconds", 0.1, "-p", 1000000, preexec_fn=limit)
        self.assertEqual(done.stderr, "moesaic: 1 requests failed\n")

    def test_words_that_no_request_can_have(self):
        self.refused(2, "--key: there is a control character", "bench-serve", "--key", "a\r\nX: b")
        self.refused(2, "--model: the name is not UTF-8", "bench-serve", "--model", "\udcff")
