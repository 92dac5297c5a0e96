"""A headless Chromium, driven over its DevTools protocol with nothing but the standard library."""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request


def find():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class WebSocket:
    def __init__(self, url):
        host, port, path = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", url).groups()
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n")
                            .encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.socket.recv(4096)
        self.rest = self.rest.split(b"\r\n\r\n", 1)[1]

    def take(self, count):
        while len(self.rest) < count:
            part = self.socket.recv(65536)
            if not part:
                raise ConnectionError("the browser is gone")
            self.rest += part
        data, self.rest = self.rest[:count], self.rest[count:]
        return data

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        if size < 126:
            head = bytes([0x81, 0x80 | size])
        else:
            head = b"\x81\xfe" + struct.pack(">H", size) if size < 65536 else b"\x81\xff" + struct.pack(">Q", size)
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        text = b""
        while True:
            first, second = self.take(2)
            size = second & 127
            if size >= 126:
                size = int.from_bytes(self.take(2 if size == 126 else 8), "big")
            text += self.take(size)
            if first & 0x80:
                return text.decode()


class Tab:
    """A page of a browser, by the address of its DevTools."""

    def __init__(self, url):
        self.page = WebSocket(url)
        self.calls = 0
        self.events = []    # from the domains that a test has enabled

    def call(self, method, **parameters):
        self.calls += 1
        self.page.send(json.dumps({"id": self.calls, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.page.receive())
            if answer.get("id") == self.calls:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression, seconds=60):
        deadline = time.time() + seconds
        while not (value := self.value(expression)):
            if time.time() > deadline:
                raise AssertionError(f"{expression} never held: {self.value('document.body.innerText')}")
            time.sleep(0.05)
        return value

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code=0, modifiers=0):
        name = "Key" + key.upper() if len(key) == 1 else key
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=name, windowsVirtualKeyCode=code,
                      modifiers=modifiers, **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def another(self):
        """A second tab of the same browser, in a window of its own."""
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        host, port = self.page.socket.getpeername()
        return Tab(f"ws://{host}:{port}/devtools/page/{target}")

    def is_open(self):
        return self.page.socket.fileno() >= 0

    def leave(self):
        """Closes the tab as a reader does."""
        self.call("Page.close")
        self.page.socket.close()


class Browser(Tab):
    def __init__(self, url, size="1000,800"):
        self.folder = tempfile.TemporaryDirectory(prefix="moesaic-browser-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", f"--window-size={size}", url],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"ws://127\.0\.0\.1:(\d+)/", line):
                break
        pages = []
        for _ in range(100):
            listing = urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/json", timeout=60)
            pages = [p for p in json.load(listing) if p["type"] == "page"]
            if pages:
                break
            time.sleep(0.1)
        super().__init__(pages[0]["webSocketDebuggerUrl"])

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self.process.stderr.close()
        self.page.socket.close()
        self.folder.cleanup()
