"""bench-serve against servers that answer oddly: what it tells must be true, whatever they send."""

import json
import re
import socket
import threading

from cli import Cli

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
DONE = b"data: [DONE]\n\n"


def event(text, **more):
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, **more}]}, ensure_ascii=False).encode() + b"\n\n"


def chunked(*parts, end=b"0\r\n\r\n"):
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + end


def closed(body):
    """An answer that ends with its connection."""
    return HEAD + b"Connection: close\r\n\r\n" + body


ANSWER = event("a") + event("é") + event("b")


class Server:
    """Answers every request with the same bytes; hold: and keeps the connection open."""

    def __init__(self, answer, hold=False):
        self.answer, self.hold, self.held, self.seen = answer, hold, [], []
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
            connection.sendall(self.answer)
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

    def test_answers_that_end_too_soon(self):
        self.failure(chunked(ANSWER, end=b""), "closed the connection within")
        self.failure(closed(ANSWER), "without finish_reason")
        self.failure(closed(ANSWER + b'data: {"choi'), "without finish_reason")
        self.failure(HEAD + b"Content-Length: 99999\r\n\r\n" + ANSWER, "closed the connection within")
        self.failure(b"", "closed the connection without an answer")

    def test_refusals_and_errors(self):
        for status in (301, 404, 429, 503):
            self.failure(b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\n{}" % status, f"^HTTP {status}$")
        self.failure(chunked(ANSWER, b'data: {"error":{"message":"out of memory"}}\n\n', DONE), "^out of memory$")
        self.failure(chunked(event("a"), b'data: {"choices":[{"te\n\n', DONE), "no JSON")
        self.failure(chunked(b'data: {"choices":[{"text":"\xff"}]}\n\n', DONE), "no JSON")
        self.failure(closed(b"<html>"), "no tokens")
        self.failure(b"SSH-2.0-x\r\n", "version")
        self.failure(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "HTTP 100")

    def test_a_silent_server_is_not_waited_for_without_end(self):
        for answer in (b"", HEAD, chunked(event("a"), end=b"")):
            self.failure(answer, "not a byte for 0.5 s", "--timeout", 0.5, hold=True)

    def test_check_says_what_went_wrong_without_load(self):
        self.failure(b"HTTP/1.1 429 x\r\nContent-Length: 0\r\n\r\n", "HTTP 429", "--check")

    def test_a_server_that_refuses_at_once_is_not_flooded(self):
        with Server(b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n") as server:
            self.moesaic("bench-serve", "--url", server.url, "--streams", 2, "--seconds", 1)
            self.assertTrue(2 <= len(server.seen) <= 24, len(server.seen))

    def test_words_that_no_request_can_have(self):
        self.refused(2, "--key: there is a control character", "bench-serve", "--key", "a\r\nX: b")
        self.refused(2, "--model: the name is not UTF-8", "bench-serve", "--model", "\udcff")
