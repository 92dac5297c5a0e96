"""A hub like Hugging Face's on this machine, written from its documentation and its client: the API that lists a repository
(pages by a Link header), /resolve with X-Repo-Commit, X-Linked-Etag and X-Linked-Size, which sends on to another origin
for large files, ranges there, and the errors. What it does wrong is set by a test.

    with Hub() as hub:
        hub.add("openai/gpt-oss-20b", {"config.json": b"{}", "model.safetensors": b"..."})
        run([...], env={"HF_ENDPOINT": hub.url})
"""

import hashlib
import http.server
import json
import re
import socket
import socketserver
import threading
import urllib.parse

LARGE = 1000  # bytes from which a file is kept elsewhere, as the hub does with Git LFS


def git_sum(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    """Bytes, or a pattern of a given size that is never held whole."""

    def __init__(self, data=None, size=None, sha256=None, read=None):
        self.data, self.size = data, len(data) if data is not None else size
        self.read = read or (lambda begin, end: data[begin:end])
        self.large = self.size >= LARGE
        self.sha256 = sha256 or (hashlib.sha256(data).hexdigest() if self.large else None)
        self.git = git_sum(data) if data is not None else "0" * 40

    @property
    def sum(self):
        return self.sha256 if self.large else self.git


class Repository:
    def __init__(self, files, commit):
        self.files = {path: f if isinstance(f, File) else File(f) for path, f in files.items()}
        self.commit, self.gated, self.private = commit, False, False
        self.revisions = {}  # branches and tags beside main: a Repository each

    def at(self, revision):
        """The repository as a branch, a tag or a commit has it; None: there is no such revision."""
        commits = {r.commit: r for r in (self, *self.revisions.values())}
        return {"main": self, **self.revisions, **commits}.get(revision)


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # a client that hangs up


class Hub:
    """Two servers, the hub and its CDN; `requests` has each request as (server, method, path, headers)."""

    def __init__(self):
        self.repositories, self.requests, self.lock = {}, [], threading.Lock()
        self.tokens = {"hf_good"}
        self.page = 1000            # entries of a page of the list
        self.renamed = {}           # old name to new
        self.cuts = []              # for each answer of the CDN to come: bytes after which it is cut off
        self.fail = []              # statuses that come first, with headers: [(429, {"Retry-After": "1"}), ...]
        self.cdn_fail = []
        self.ranges = True
        self.corrupt = 0            # answers of the CDN with a wrong byte
        self.raw = {}               # path of the API to (status, headers, body) or a function of the handler
        self.stall = threading.Event()  # set: nothing stalls (any more)
        self.stall_at = None        # bytes after which an answer of the CDN waits for that
        self.hub, self.cdn = self._serve("hub"), self._serve("cdn")
        self.url = f"http://127.0.0.1:{self.hub.server_port}"
        self.cdn_url = f"http://localhost:{self.cdn.server_port}"

    def _serve(self, name):
        hub = self

        class Handler(_Handler):
            server_name, owner = name, hub

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stall.set()
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def add(self, name, files, commit=None):
        repository = Repository(files, commit or hashlib.sha1(repr((name, len(self.repositories))).encode()).hexdigest())
        self.repositories[name] = repository
        return repository

    def add_revision(self, name, revision, files):
        commit = hashlib.sha1(repr((name, revision)).encode()).hexdigest()
        self.repositories[name].revisions[revision] = Repository(files, commit)
        return self.repositories[name].revisions[revision]

    def seen(self, server):
        with self.lock:
            return [r for r in self.requests if r[0] == server]

    def take(self, name):
        """The next of a list of faults, or None."""
        with self.lock:
            faults = getattr(self, name)
            return faults.pop(0) if faults else None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner = server_name = None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.owner
        with hub.lock:
            hub.requests.append((self.server_name, self.command, self.path, dict(self.headers)))
        try:
            (self.hub_get if self.server_name == "hub" else self.cdn_get)()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code="", message="", **headers):
        if code:
            headers.update(X_Error_Code=code, X_Error_Message=message)
        self.answer(status, json.dumps({"error": message}).encode(), **headers)

    def repository(self, name, ready):
        """Calls ready with the repository, or answers why not, as the hub does."""
        hub = self.owner
        fault = hub.take("fail")
        if fault:
            return self.refuse(fault[0], **{k.replace("-", "_"): v for k, v in fault[1].items()})
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in hub.tokens:
            return self.refuse(401, message="Invalid credentials in Authorization header",
                               X_Error_Message="Invalid credentials in Authorization header")
        if name in hub.renamed:
            return self.answer(307, Location=self.path.replace(name, hub.renamed[name], 1))
        repository = hub.repositories.get(name)
        if repository is None or (repository.private and not token):
            status = 404 if token else 401
            return self.refuse(status, "RepoNotFound" if token else "", "Repository not found" if token else "Invalid username or password.")
        gated = repository.gated and "/api/" not in self.path  # its list is open
        if gated or (repository.gated == "all" and not token):
            return self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted.")
        return ready(repository)

    def hub_get(self):
        path = urllib.parse.urlsplit(self.path)
        if path.path in self.owner.raw:
            raw = self.owner.raw[path.path]
            return raw(self) if callable(raw) else self.answer(raw[0], raw[2], **raw[1])
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path.path)
        tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path.path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path.path)
        if tree:
            return self.repository(tree[1], lambda r: self.tree(r, tree[2], urllib.parse.parse_qs(path.query)))
        if info:
            return self.repository(info[1], lambda r: self.info(r.at(info[2] or "main"), info[1]))
        if file:
            return self.repository(file[1], lambda r: self.resolve(r, file[1], file[2], urllib.parse.unquote(file[3])))
        return self.refuse(404, message="Not found")

    def info(self, repository, name):
        if repository is None:
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        return self.answer(200, json.dumps(
            {"id": name, "sha": repository.commit, "siblings": [{"rfilename": p} for p in repository.files]}).encode())

    def tree(self, repository, revision, query):
        repository = repository.at(revision)
        if repository is None:
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        entries = []
        for path, f in sorted(repository.files.items()):
            entry = {"type": "file", "oid": f.git, "size": f.size, "path": path}
            if f.large:
                entry.update(lfs={"oid": f.sha256, "size": f.size, "pointerSize": 134}, oid=git_sum(f.sha256.encode()))
            entries.append(entry)
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
                    for folder in sorted({p.split("/")[0] for p in repository.files if "/" in p})]
        start = int(query.get("cursor", ["0"])[0])
        headers = {}
        if start + self.owner.page < len(entries):
            url = f"{self.owner.url}{self.path.split('&cursor')[0]}&cursor={start + self.owner.page}"
            headers["Link"] = f'<{url}>; rel="next"'
        self.answer(200, json.dumps(entries[start:start + self.owner.page]).encode(), **headers)

    def resolve(self, repository, name, revision, path):
        main, repository = repository, repository.at(revision)
        if repository is None or path not in repository.files:
            return self.refuse(404, "EntryNotFound", "Entry not found", X_Repo_Commit=main.commit)
        f = repository.files[path]
        headers = {"X_Repo_Commit": repository.commit, "Accept_Ranges": "bytes"}
        if not f.large:
            return self.send_file(f, ETag=f'"{f.git}"', **headers)
        location = f"{self.owner.cdn_url}/{f.sha256}?signature=x&path={urllib.parse.quote(name + '/' + path)}"
        return self.answer(302, Location=location, X_Linked_Etag=f'"{f.sha256}"', X_Linked_Size=str(f.size),
                           ETag='"0-of-the-redirect"', **headers)

    def cdn_get(self):
        hub = self.owner
        fault = hub.take("cdn_fail")
        if fault:
            return self.refuse(fault[0], **{k.replace("-", "_"): v for k, v in fault[1].items()})
        name = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["path"][0]
        owner, repository, path = name.split("/", 2)
        main = hub.repositories[f"{owner}/{repository}"]
        sha256 = urllib.parse.urlsplit(self.path).path.removeprefix("/")
        of_revisions = [r.files[path] for r in (main, *main.revisions.values()) if path in r.files]
        f = next((f for f in of_revisions if f.sha256 == sha256), of_revisions[0])
        cut = hub.take("cuts") if self.command == "GET" else None
        with hub.lock:
            corrupt, hub.corrupt = hub.corrupt > 0, max(0, hub.corrupt - (self.command == "GET"))
        return self.send_file(f, cut, corrupt, ETag=f'"{f.sha256}"')

    def send_file(self, f, cut=None, corrupt=False, **headers):
        begin, end, status = 0, f.size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.owner.ranges:
            begin, end, status = int(asked[1]), min(f.size, int(asked[2] or f.size - 1) + 1), 206
            if begin >= f.size:
                return self.answer(416, Content_Range=f"bytes */{f.size}")
            headers["Content_Range"] = f"bytes {begin}-{end - 1}/{f.size}"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "HEAD":
            return None
        sent, step = 0, 1 << 20
        for at in range(begin, end, step):
            data = f.read(at, min(end, at + step))
            if corrupt and at == begin:
                data = bytes([data[0] ^ 1]) + data[1:]
            stall = self.owner.stall_at
            if stall is not None and sent + len(data) > stall and not self.owner.stall.is_set():
                self.wfile.write(data[:max(0, stall - sent)])
                self.owner.stall.wait(60)
                self.close_connection = True
                return None
            if cut is not None and sent + len(data) > cut:
                self.wfile.write(data[:max(0, cut - sent)])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return None
            self.wfile.write(data)
            sent += len(data)
        return None
