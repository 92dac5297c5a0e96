"""A server for the tests: started on a free port unless another is given, stopped by SIGTERM, and its exit checked."""

import atexit
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

MOESAIC = os.environ.get("MOESAIC", "moesaic")
# Servers of this machine are asked without a proxy.
os.environ["no_proxy"] = "127.0.0.1,localhost," + os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))


class Served:
    def __init__(self, *options, model="tiny", context=1024, env=None, port=0):
        command = [MOESAIC, "serve", "-m", model, "--port", str(port), "-t", "1", "--ctx", str(context), *map(str, options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        atexit.register(self.process.kill)  # where a test has failed
        line = self.process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)\n", line)
        if not found:
            raise RuntimeError(f"the server said {line!r}: {self.process.stderr.read()}")
        self.port = int(found[1])
        self.url = line.strip()

    def wait_ready(self):
        for _ in range(600):
            if self.call("GET", "/ready")[0] == 200:
                return self
            time.sleep(0.1)
        raise RuntimeError("the server did not become ready")

    def call(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        result = answer.status, answer.headers, answer.read()
        connection.close()
        return result

    def post(self, path, body, headers=None):
        status, _, data = self.call("POST", path, body, headers)
        return status, json.loads(data)

    def metric(self, name, label=""):
        """The sum of its values; label: of those that have it."""
        text = urllib.request.urlopen(self.url + "/metrics", timeout=60).read().decode()
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*{re.escape(label)}[^}}]*}})? (\S+)$", text, re.MULTILINE)
        if not values:
            raise KeyError(f"{name} is not among the metrics")
        return sum(map(float, values))

    def until(self, name, value, seconds=60, label=""):
        """Waits for a metric to have a value."""
        deadline = time.monotonic() + seconds
        while self.metric(name, label) != value:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} is {self.metric(name, label)}, not {value}")
            time.sleep(0.02)

    def resident(self):
        """Bytes of memory."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10

    def until_resident(self, most, seconds=20):
        """Waits for it to hold at most so many bytes: what is free goes back to the system a moment later."""
        deadline = time.monotonic() + seconds
        while self.resident() > most:
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.resident() >> 20} MiB are resident, more than {most >> 20}")
            time.sleep(0.02)

    def stop(self):
        """SIGTERM; (exit status, log)."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log
