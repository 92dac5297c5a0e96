"""A server in front of another one that answers chats with what a test says: everything else, the page above all, comes
from the real server, with its headers. It also counts who asks it for what."""

import http.client
import http.server
import json
import threading
import time
import urllib.parse

KEPT = ("Content-Type", "Content-Encoding", "Cache-Control", "Content-Security-Policy", "X-Content-Type-Options")


def events(deltas, finish="stop", tokens=None, counts=()):
    """The chunks of a streamed chat as bytes, one for each delta."""
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    for chunk, count in zip(chunks, counts):
        chunk["usage"] = {"prompt_tokens": 20, "completion_tokens": count}
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": tokens or len(deltas)}})
    return [b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def inner_path(self):
        """As the server behind has it; None: it stands elsewhere on this host."""
        return self.path[len(self.server.prefix):] if self.path.startswith(self.server.prefix + "/") else None

    def do_GET(self):
        path = self.inner_path()
        self.server.asked.append(self.path)
        if path is None:
            return self.reply(404, b"", [])
        status, headers, body = self.server.get(path)
        self.reply(status, body, [(name, headers[name]) for name in KEPT if headers.get(name)])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.inner_path() != "/v1/chat/completions":
            return self.reply(404, b"", [])
        self.server.bodies.append(body)
        answer = self.server.answers.pop(0) if self.server.answers else {"content": "ok"}
        if "status" in answer:
            error = json.dumps({"error": {"message": answer["message"], "code": answer.get("code")}}).encode()
            return self.reply(answer["status"], error, [("Content-Type", "application/json")])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.send_answer(answer)
        except ConnectionError:
            self.server.left += 1

    def send_answer(self, answer):
        deltas = answer.get("deltas") or [{"content": part} for part in answer["content"].splitlines(keepends=True)]
        for progress in answer.get("progress", []):
            self.wfile.write(b"data: " + json.dumps({"choices": [], "prompt_progress": progress}).encode() + b"\n\n")
        for i, event in enumerate(events(deltas, answer.get("finish", "stop"), answer.get("tokens"), answer.get("counts", ()))):
            if i == 1 and "between" in answer:
                answer["between"].wait(60)
            if b'"finish_reason"' in event and "gate" in answer:
                answer["gate"].wait(60)     # the answer is held here, until a test lets it go
            if b'"finish_reason"' in event and answer.get("broken"):
                return
            size = answer.get("pieces", len(event))
            for at in range(0, len(event), size):
                self.wfile.write(event[at:at + size])
                if size < len(event):
                    time.sleep(0.001)   # a packet of its own


class Stub(http.server.ThreadingHTTPServer):
    """prefix: the folder in which it stands, as a proxy may place it. answers: what the next chats get, {"content"} or {"deltas"} with "finish", "tokens", "counts" (of each chunk), "progress" (of the
    prompt), "pieces" (bytes that are sent together), "between" (the first chunk and the others), "gate" and
    "broken" (the connection ends before the answer does), or {"status", "message", "code"}. bodies, asked: what has come."""

    daemon_threads = True

    def __init__(self, upstream, prefix=""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = urllib.parse.urlsplit(upstream)
        self.prefix = prefix
        self.url = f"http://127.0.0.1:{self.server_port}{prefix}/"
        self.answers, self.bodies, self.asked, self.left, self.kept = [], [], [], 0, {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get(self, path):
        if path in self.kept:
            return self.kept[path]
        connection = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        result = answer.status, answer.headers, answer.read()
        connection.close()
        if path.startswith("/page/"):
            self.kept[path] = result
        return result

    def stop(self):
        self.shutdown()
        self.server_close()
