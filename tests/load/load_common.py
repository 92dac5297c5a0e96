"""What the tests under load share."""

import json
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "client"))
from served import MOESAIC, Served  # noqa: E402, F401


QUIET = ("--log", "quiet")


class Failed(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Failed(what)


def load(url, *options, check=True):
    """What bench-serve measured: one report for each number of streams."""
    command = [MOESAIC, "bench-serve", "--url", url, "-o", "json", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def stop(server):
    status, log = server.stop()
    require(status == 0, f"the server ended with {status}: {log}")
    return log


def all_pages_free(server):
    server.until("vllm:num_requests_running", 0)
    require(server.metric("moesaic:kv_pages_used") == 0, "pages are still held")


def post(path, body):
    """The bytes of a request on a connection of its own."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data


def exchange(port, data, address="127.0.0.1", timeout=120, begun=lambda: None):
    """(status, the answer's body) of a client at this address. begun: called when the first bytes are there."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout, source_address=(address, 0)) as s:
        try:
            s.sendall(data)
        except ConnectionError:
            pass  # refused before it was all sent; the answer says why
        answer = s.recv(1 << 20)
        begun()
        answer += b"".join(iter(lambda: s.recv(1 << 20), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]) if head else 0, body


def tokenize_request(megabytes):
    return post("/tokenize", {"prompt": "The quick brown fox jumps. " * (megabytes * (1 << 20) // 27)})
