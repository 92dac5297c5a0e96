"""`moesaic pull` against a hub on this machine: what it takes, how it goes on, and whatever a hub may do wrong."""

import email.utils
import gzip
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from cli import FOLDER, MODEL, MOESAIC, TIMEOUT, Cli
from local_hub import File, Hub

NAMES = ("HF_", "CURL_CA", "SSL_CERT", "REQUESTS_CA", "HUGGING", "XDG_CACHE_HOME", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(NAMES)}
NAME = "openai/small"
PART = 16 << 20  # bytes of a request


def model_files():
    return {p.name: p.read_bytes() for p in pathlib.Path(MODEL).iterdir()}


def noise(size, seed=1):
    return hashlib.shake_128(bytes([seed])).digest(size)


class PullCase(Cli):
    def setUp(self):
        self.hub = self.enterContext(Hub())
        self.home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="moesaic-pull-")))
        self.cache = self.home / "hub"
        self.env = {**CLEAN, "HOME": str(self.home), "HF_HUB_CACHE": str(self.cache), "HF_ENDPOINT": self.hub.url,
                    "HF_HUB_DOWNLOAD_TIMEOUT": "10"}

    def enterContext(self, context):  # as Python 3.11 has it
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def pull(self, name=NAME, *args, **env):
        return pathlib.Path(self.ok("pull", name, *args, env={**self.env, **env}).strip())

    def not_pulled(self, words, name=NAME, status=1, **env):
        self.refused(status, words, "pull", name, env={**self.env, **env})

    def blobs(self, name=NAME):
        folder = self.cache / f"models--{name.replace('/', '--')}" / "blobs"
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

    def check(self, path, files):
        """The snapshot has these files and no others, each a relative link to its blob."""
        found = {str(p.relative_to(path)): p for p in path.rglob("*") if not p.is_dir()}
        self.assertEqual(sorted(found), sorted(files))
        for name, data in files.items():
            self.assertEqual(found[name].read_bytes(), data, name)
            self.assertTrue(os.readlink(found[name]).startswith("../../"), name)
        self.assertFalse([b for b in self.blobs() if "incomplete" in b or "tmp" in b])


class Pull(PullCase):
    def test_a_folder_in_the_layout_of_huggingface_hub(self):
        files = model_files()
        extra = {"README.md": b"# Hi", "original/model.safetensors": noise(5000), "metal/model.bin": noise(3000),
                 "pytorch_model.bin": b"x", "picture.png": b"x"}
        repository = self.hub.add(NAME, {**files, **extra})
        self.hub.page = 3
        path = self.pull()
        self.assertEqual(path, self.cache / "models--openai--small/snapshots" / repository.commit)
        self.check(path, {**files, "README.md": b"# Hi"})
        self.assertEqual((path.parents[1] / "refs/main").read_text(), repository.commit)
        self.assertEqual(self.blobs(), sorted(repository.files[name].sum for name in (*files, "README.md")))
        self.assertTrue((self.cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55"))
        self.assertIn("OK!", self.ok("run", "-m", NAME, "-p", "hello", env=self.env))
        # Nothing is fetched again but the list.
        before = len(self.hub.requests)
        folders = [self.cache, *(folder for folder in self.cache.rglob("*") if folder.is_dir())]
        changed = [folder.stat().st_mtime_ns for folder in folders]
        self.assertEqual(self.pull(), path)
        self.assertNotIn("resolve", str(self.hub.requests[before:]))
        self.assertEqual([folder.stat().st_mtime_ns for folder in folders], changed)  # the cache may be read-only
        self.assertEqual([row["model"] for row in self.json("list", "-o", "json", env=self.env)][0], NAME)

    def test_the_same_bytes_under_many_names(self):
        files = {**model_files(), **{f"same/{i}.json" if i % 2 else f"same{i}.json": b"{}" for i in range(40)}, "copy.safetensors": noise(5000),
                 "copy2.safetensors": noise(5000)}
        self.hub.add(NAME, files)
        done = self.moesaic("pull", NAME, env=self.env)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.check(pathlib.Path(done.stdout.strip()), {name: data for name, data in files.items() if "/" not in name})
        self.assertEqual(len([path for _, _, path, _ in self.hub.seen("hub") if "same" in path]), 1)

    def test_a_new_version_keeps_what_is_the_same(self):
        files = model_files()
        first = self.hub.add(NAME, files)
        self.pull()
        second = self.hub.add(NAME, {**files, "config.json": files["config.json"] + b"\n"})
        before = len(self.hub.seen("cdn"))
        path = self.pull()
        self.assertNotEqual(first.commit, second.commit)
        self.assertEqual(path.name, second.commit)
        self.assertLessEqual(len(self.hub.seen("cdn")) - before, 1)

    def test_quantisations(self):
        ggufs = {name: noise(2000, i) for i, name in enumerate(
            ("gpt-oss-20b-Q4_K_M.gguf", "gpt-oss-20b-Q8_0.gguf", "gpt-oss-20b-UD-Q8_0.gguf", "BF16/gpt-oss-20b-BF16-00001-of-00002.gguf",
             "BF16/gpt-oss-20b-BF16-00002-of-00002.gguf", "mmproj-F16.gguf"))}
        self.hub.add(NAME, {**ggufs, "config.json": b"{}", "README.md": b""})
        self.not_pulled(["4 models", re.escape(":Q8_0 (0.0 GB)"), re.escape("/gpt-oss-20b-UD-Q8_0.gguf"), ":BF16"])
        self.not_pulled(["has no Q2_K", ":Q4_K_M"], NAME + ":Q2_K")
        self.not_pulled(["no file sub/x.gguf"], NAME + "/sub/x.gguf")
        self.hub.add("a/whole", model_files())
        self.not_pulled(["no GGUF file, so no Q8_0", "moesaic pull a/whole$"], "a/whole:Q8_0")
        path = self.pull(NAME + ":q8_0")
        self.assertEqual((path.name, path.read_bytes()), ("gpt-oss-20b-Q8_0.gguf", ggufs["gpt-oss-20b-Q8_0.gguf"]))
        self.assertEqual(os.readlink(path), f"../../blobs/{self.hub.repositories[NAME].files[path.name].sum}")
        self.assertEqual(len(self.blobs()), 1)
        path = self.pull(NAME + "/BF16/gpt-oss-20b-BF16-00002-of-00002.gguf")
        self.assertEqual(path.name, "gpt-oss-20b-BF16-00001-of-00002.gguf")
        self.assertTrue(os.readlink(path).startswith("../../../blobs/"))
        self.assertEqual(len(self.blobs()), 3)
        self.assertEqual(self.pull(NAME + ":BF16"), path)

    def test_a_model_beside_its_draft_heads(self):
        gguf = FOLDER / "pull.gguf"
        if not gguf.exists():
            self.ok("convert", MODEL, gguf)
        name, model, head = "ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-MXFP4.gguf", "eagle3-gpt-oss-20b-Q8_0.gguf"
        self.hub.add(name, {model: gguf.read_bytes(), "eagle3-gpt-oss-20b-BF16.gguf": noise(2000), head: noise(3000)})
        self.not_pulled(["has no Q8_0", ":MXFP4"], name + ":Q8_0")
        self.assertEqual(self.pull(f"{name}/{head}").name, head)
        self.assertIn("OK!", self.ok("run", "-hf", name, "-p", "hello", env=self.env))
        self.assertEqual(self.pull(name).name, model)
        self.assertIn("OK!", self.ok("run", "-m", name, "-p", "hello", env=self.env))
        self.assertIn(name + ":MXFP4", [row["model"] for row in self.json("list", "-o", "json", env=self.env)])

    def test_names_that_are_none(self):
        for name in ("gpt-oss-20b", "a/b/c", "a/../b", "/a/b", "a/b:", "a/b/x.bin"):
            self.not_pulled("no model of the hub", name, status=2)
        self.not_pulled(re.escape("did you mean openai/gpt-oss-20b?"), "gpt-oss:20b", status=2)

    def test_addresses(self):
        data = noise(2000)
        self.hub.add("a/b", {"m-Q8_0.gguf": data, "F16/m-F16.gguf": noise(3000)})
        for name in ("https://huggingface.co/a/b:Q8_0", "https://huggingface.co/a/b/blob/main/m-Q8_0.gguf", "hf.co/a/b/m-Q8_0.gguf",
                     f"{self.hub.url}/a/b/resolve/main/m-Q8_0.gguf?download=true"):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.check(self.pull(name).parent, {"m-Q8_0.gguf": data})
        self.assertEqual(self.pull("https://huggingface.co/a/b/tree/main/F16", HF_ENDPOINT=self.hub.url + "/").name, "m-F16.gguf")
        self.not_pulled("no such branch, tag or commit", "https://huggingface.co/a/b/tree/other")
        self.not_pulled("no model of the hub", "https://huggingface.co/a/b/resolve/refs%2Fpr%2F1/m-Q8_0.gguf", status=2)
        self.not_pulled("no model of the hub", "https://example.com/a/b", status=2)
        self.hub.add(NAME, model_files())
        self.assertIn("OK!", self.ok("run", "-hf", f"https://huggingface.co/{NAME}", "-p", "hello", env=self.env))
        self.assertIn("OK!", self.ok("run", "-m", f"https://huggingface.co/{NAME}/tree/main", "-p", "hello", env=self.env))

    def test_revisions(self):
        files = model_files()
        main = self.hub.add(NAME, files)
        other = {**files, "config.json": files["config.json"] + b"\n", "README.md": b"v2"}
        tag = self.hub.add_revision(NAME, "v2", other)
        snapshots = self.cache / "models--openai--small/snapshots"
        path = self.pull(NAME + "@v2")
        self.assertEqual(path, snapshots / tag.commit)
        self.check(path, other)
        self.assertEqual((snapshots.parent / "refs/v2").read_text(), tag.commit)
        self.assertEqual(self.pull(), snapshots / main.commit)
        self.assertEqual(self.pull(f"{NAME}@{tag.commit}"), path)
        self.assertFalse((snapshots.parent / "refs" / tag.commit).exists())  # it was there
        self.assertEqual(self.pull(f"https://huggingface.co/{NAME}/tree/v2"), path)
        for name, at in ((NAME, main), (NAME + "@v2", tag), (f"{NAME}@{tag.commit}", tag)):
            self.assertEqual(self.pull(name, HF_HUB_OFFLINE="1"), snapshots / at.commit)
        for option in ("-m", "-hf"):
            self.assertIn("OK!", self.ok("run", option, NAME + "@v2", "-p", "hello", env=self.env))
        self.not_pulled("no such branch, tag or commit", NAME + "@v3")
        self.refused(1, "no complete snapshot of v3", "run", "-m", NAME + "@v3", "-p", "hello", env=self.env)

    def test_a_file_of_many_parts_over_cut_connections(self):
        data = noise(3 * PART + 12345)
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": data})
        self.hub.cuts = [3 << 20, None, 70000, 5]
        self.check(self.pull(), {"config.json": b"{}", "model.safetensors": data})
        starts = [int(re.fullmatch(r"bytes=(\d+)-\d+", r[3].get("Range"))[1]) for r in self.hub.seen("cdn")]
        self.assertTrue({0, PART, 2 * PART, 3 * PART} < set(starts))    # which request is cut depends on their order
        self.assertTrue(any(start % PART >= 70000 for start in starts))    # not from the beginning again

    def test_a_connection_that_breaks_often_goes_on(self):
        """Failures are counted anew after a mebibyte; a redirect's own entity tag says nothing of the file."""
        data = noise(PART)
        repository = self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": data})
        location = f"{self.hub.cdn_url}/x?path={NAME}/model.safetensors"
        self.hub.raw[f"/{NAME}/resolve/{repository.commit}/model.safetensors"] = (302, {"Location": location, "ETag": '"' + "b" * 64 + '"'}, b"")
        self.hub.cuts = [(1 << 20) + 1000] * 10
        self.check(self.pull(), {"config.json": b"{}", "model.safetensors": data})
        self.assertEqual(self.hub.cuts, [])

    def test_an_address_that_expires_is_asked_for_again(self):
        data = noise(2 * PART)
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": data})
        self.hub.cdn_fail = [(403, {}), (404, {})]
        self.check(self.pull(), {"config.json": b"{}", "model.safetensors": data})
        self.hub.cdn_fail = [(403, {})] * 50
        self.hub.add("a/b", {"model.safetensors": noise(2000)})
        self.not_pulled("status 403", "a/b")

    def test_a_server_without_ranges(self):
        data = noise(2 * PART)
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": data})
        self.hub.ranges = False
        self.hub.cuts = [None, 3 << 20]
        self.check(self.pull(), {"config.json": b"{}", "model.safetensors": data})

    def test_a_wrong_sum_is_fetched_once_more(self):
        data = noise(5000)
        self.hub.add(NAME, {"model.safetensors": data})
        self.hub.corrupt = 1
        self.check(self.pull(), {"model.safetensors": data})
        self.hub.add("a/b", {"model.safetensors": noise(6000)})
        self.hub.corrupt = 1000
        self.not_pulled(["model.safetensors came twice with another sum"], "a/b")
        self.assertFalse((self.cache / "models--a--b/refs/main").exists())

    def test_what_is_there_is_gone_on_with(self):
        data = noise(40000)
        f = self.hub.add(NAME, {"model.safetensors": data}).files["model.safetensors"]
        for there in (data[:30000], b"x" * 30000, data + b"x", data, b""):
            shutil.rmtree(self.cache, ignore_errors=True)
            partial = self.cache / f"models--openai--small/blobs/{f.sum}.incomplete"
            partial.parent.mkdir(parents=True)
            partial.write_bytes(there)
            before = len(self.hub.seen("cdn"))
            self.check(self.pull(), {"model.safetensors": data})
            ranges = [r[3].get("Range") for r in self.hub.seen("cdn")[before:]]
            self.assertEqual(ranges, {data[:30000]: ["bytes=30000-39999"], b"x" * 30000: ["bytes=30000-39999", None],
                                      data: []}.get(there, [None]))

    def test_partial_files_that_are_links(self):
        f = self.hub.add(NAME, {"model.safetensors": noise(4000)}).files["model.safetensors"]
        victim = self.home / "victim"
        victim.write_text("mine")
        partial = self.cache / f"models--openai--small/blobs/{f.sum}.incomplete"
        partial.parent.mkdir(parents=True)
        partial.symlink_to(victim)
        self.not_pulled("incomplete")
        self.assertEqual(victim.read_text(), "mine")


class Wire(PullCase):
    def test_the_token_goes_to_the_hub_alone(self):
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": noise(4000)}).private = True
        self.not_pulled(["no such repository, or it is private", "HF_TOKEN"])
        self.not_pulled("refuses the token", HF_TOKEN="hf_bad")
        self.not_pulled("characters", HF_TOKEN="hf\nX: y")
        (self.home / "token").write_text("hf_good\n")
        for env in ({"HF_TOKEN": " hf_good "}, {"HF_TOKEN_PATH": str(self.home / "token")}, {"HF_HOME": str(self.home)},
                    {"HF_TOKEN_PATH": "$HOME/token"}, {"HF_TOKEN": "hf_good", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.hub.requests.clear()
            self.pull(**env)
            self.assertEqual({r[3].get("Authorization") for r in self.hub.seen("hub")}, {"Bearer hf_good"})
            self.assertEqual({r[3].get("Authorization") for r in self.hub.seen("cdn")}, {None})
        self.not_pulled("no such repository, or it is private", HF_HOME=str(self.home), HF_HUB_DISABLE_IMPLICIT_TOKEN="True")

    def test_refusals(self):
        self.hub.add("a/gated", {"model.safetensors": noise(2000)}).gated = True
        self.hub.add("a/empty", {})
        self.hub.add("a/other", {"weights.bin": noise(2000), "sub/model.safetensors": noise(2000)})
        self.not_pulled(["a/gated: it is gated", f"{self.hub.url}/a/gated", "HF_TOKEN"], "a/gated")
        self.not_pulled(["a/gated: it is gated", "of the account"], "a/gated", HF_TOKEN="hf_good")
        self.not_pulled("no such repository", "a/absent")
        self.not_pulled("no such repository", "a/absent", HF_TOKEN="hf_good")
        self.not_pulled("it is empty", "a/empty")
        self.not_pulled("no .safetensors and no .gguf", "a/other")
        self.not_pulled("not a URL", HF_ENDPOINT="ftp://x")
        self.not_pulled("127.0.0.1:9", HF_ENDPOINT="http://127.0.0.1:9")

    def test_offline(self):
        self.hub.add(NAME, model_files())
        for offline in ({"HF_HUB_OFFLINE": "1"}, {"TRANSFORMERS_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "1"}):
            self.not_pulled("HF_HUB_OFFLINE", **offline)
        self.assertEqual(self.hub.requests, [])
        path = self.pull(HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="1")
        count = len(self.hub.requests)
        self.assertEqual(self.pull(HF_HUB_OFFLINE="yes"), path)
        self.assertEqual(len(self.hub.requests), count)

    def test_a_renamed_repository(self):
        self.hub.add("new/name", {"config.json": b"{}", "model.safetensors": noise(2000)})
        self.hub.renamed[NAME] = "new/name"
        self.assertIn("models--openai--small", str(self.pull()))

    def test_too_many_requests(self):
        self.hub.add(NAME, {"model.safetensors": noise(2000)})
        self.hub.fail = [(429, {"Retry-After": "1"}), (503, {})]
        self.hub.cdn_fail = [(429, {"RateLimit": '"resolvers";r=0;t=1'}), (500, {}), (502, {})]
        start = time.monotonic()
        self.pull()
        self.assertGreater(time.monotonic() - start, 2)
        class At:  # seconds after it is sent
            def __init__(self, seconds):
                self.seconds = seconds

            def __str__(self):
                return email.utils.formatdate(time.time() + self.seconds, usegmt=True)
        self.hub.fail = [(429, {"Retry-After": At(2.9)})]
        start = time.monotonic()
        self.pull()
        self.assertGreater(time.monotonic() - start, 0.9)
        self.hub.fail = [(429, {"Retry-After": At(4000)})]
        self.not_pulled(["no more requests for now", r"(4000|39\d\d) s"])
        self.hub.fail = [(429, {"Retry-After": "4000"})]
        self.not_pulled(["no more requests for now", "4000 s", "HF_TOKEN"])

    def test_proxies(self):
        self.hub.add(NAME, {"model.safetensors": noise(2000)})
        seen = []

        class Proxy(threading.Thread):
            def run(self):
                import http.server
                import urllib.request

                class Handler(http.server.BaseHTTPRequestHandler):
                    def do_GET(self):
                        seen.append(self.path)
                        no = urllib.request.ProxyHandler({})
                        keep = type("Keep", (urllib.request.HTTPErrorProcessor,), {"http_response": lambda s, q, r: r})
                        answer = urllib.request.build_opener(no, keep).open(self.path)
                        self.send_response(answer.status)
                        for key, value in answer.headers.items():
                            self.send_header(key, value)
                        self.end_headers()
                        self.wfile.write(answer.read())

                    def log_message(self, *_):
                        pass

                self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
                ready.set()
                self.server.serve_forever(0.05)

        ready = threading.Event()
        proxy = Proxy(daemon=True)
        proxy.start()
        ready.wait(10)
        url = f"http://127.0.0.1:{proxy.server.server_port}"
        for name in ("http_proxy", "HTTP_PROXY"):
            shutil.rmtree(self.cache, ignore_errors=True)
            seen.clear()
            self.pull(**{name: url})
            self.assertTrue(any(path.startswith(self.hub.url) for path in seen))
            self.assertTrue(any(path.startswith(self.hub.cdn_url) for path in seen))
            shutil.rmtree(self.cache)
            seen.clear()
            self.pull(**{name: url, "NO_PROXY": "127.0.0.1,localhost"})
            self.assertEqual(seen, [])
        proxy.server.shutdown()
        proxy.server.server_close()

    def test_a_proxys_password_is_not_told(self):
        for address in ("http://me:secret@host:port", "other://me:secret@host", "http://me:secret@ho st:1", "http://me:" + 300 * "secret" + "@host:port"):
            done = self.moesaic("pull", NAME, env={**self.env, "http_proxy": address, "HF_HUB_DOWNLOAD_TIMEOUT": "1"})
            self.assertRegex(done.stderr, "moesaic: [^\n]*http_proxy[^\n]*\n\\Z")
            self.assertEqual(done.returncode, 1)
            self.assertNotIn("secret", done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("openssl"), "openssl makes the certificate")
    def test_certificates(self):
        key, certificate = self.home / "key", self.home / "certificate"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out",
                        certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        for server in (self.hub.hub, self.hub.cdn):
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.hub.url, self.hub.cdn_url = (url.replace("http:", "https:") for url in (self.hub.url, self.hub.cdn_url))
        self.env["HF_ENDPOINT"] = self.hub.url
        self.hub.add(NAME, model_files())
        self.not_pulled(["certificate", "SSL_CERT_FILE names a file"])
        self.not_pulled(str(self.home / "absent"), SSL_CERT_FILE=str(self.home / "absent"))
        for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.check(self.pull(**{name: str(certificate)}), model_files())


class Hostile(PullCase):
    """A hub that means harm: one line, nothing outside the cache."""

    def tree(self, body, headers=None):
        commit = self.hub.add(NAME, {"model.safetensors": noise(2000)}).commit
        self.hub.raw[f"/api/models/{NAME}/tree/{commit}"] = (200, headers or {}, body if isinstance(body, bytes) else json.dumps(body).encode())

    def entry(self, path, size=5, oid="a" * 40, **more):
        return {"type": "file", "path": path, "size": size, "oid": oid, **more}

    def test_names_that_lead_out(self):
        for path in ("../evil.safetensors", "/etc/evil.safetensors", "a/../../evil.safetensors", "./x.safetensors", "a//b.safetensors", "",
                     "a/", "..", "x\x1b[2J.safetensors", "x\n.safetensors", "a/" * 600 + "x", "y" * 300):
            self.tree([self.entry("model.safetensors"), self.entry(path)])
            self.not_pulled("whose name is not one of a file in it")
        self.assertFalse([p for p in self.home.rglob("*evil*")])

    def test_sizes_and_sums(self):
        for entry in (self.entry("m.safetensors", -1), self.entry("m.safetensors", 1 << 60), self.entry("m.safetensors", 1e300),
                      self.entry("m.safetensors", "5"), self.entry("m.safetensors", None), self.entry("m.safetensors", 2**64 - 1)):
            self.tree([entry])
            self.not_pulled("no possible size")
        for oid in ("../../../x", "", "A" * 40, "a" * 64, 5, "a" * 39 + "/"):
            self.tree([self.entry("m.safetensors", oid=oid)])
            self.not_pulled("no sum")
        self.tree([self.entry("m.safetensors", lfs={"oid": "b" * 64, "size": 1 << 49})])
        self.not_pulled(["GB are to come", "free"])
        self.tree([self.entry("m.safetensors"), self.entry("m.safetensors")])
        self.not_pulled("twice")

    def test_lists_that_are_none(self):
        for body in (b"", b"{", b"{}", b"[1]", b"[" * 100, b"\xff", b"null", b"<html></html>"):
            self.tree(body)
            self.not_pulled("list")
        for body in (b"{}", b"[]", b"x", b'{"sha": "../x"}', b'{"sha": 1}', b'{"sha": "main"}'):
            self.hub.raw[f"/api/models/{NAME}/revision/main"] = (200, {}, body)
            self.not_pulled(NAME)

    def test_lists_without_end(self):
        def endless(handler):
            handler.send_response(200)
            handler.end_headers()
            while True:
                handler.wfile.write(b"[" * 65536)

        def next_page(handler):
            handler.answer(200, b"[]", Link=f'<{handler.owner.url}{handler.path}>; rel="next"')

        commit = self.hub.add(NAME, {}).commit
        self.hub.raw[f"/api/models/{NAME}/tree/{commit}"] = endless
        self.not_pulled("16 MB")
        self.hub.raw[f"/api/models/{NAME}/tree/{commit}"] = next_page
        self.not_pulled("does not end")

    def test_redirects(self):
        def loop(handler):
            handler.answer(302, Location=handler.path)

        self.hub.raw[f"/api/models/{NAME}/revision/main"] = loop
        self.not_pulled("10 redirects")
        commit = self.hub.add("a/b", {"model.safetensors": noise(2000)}).commit
        path = f"/a/b/resolve/{commit}/model.safetensors"
        self.hub.raw[path] = loop
        self.not_pulled("10 redirects", "a/b")
        for to in ("file:///etc/passwd", "gopher://x", "javascript:1", "http://"):
            self.hub.raw[path] = (302, {"Location": to}, b"")
            self.not_pulled("", "a/b")
        self.assertFalse(list(self.cache.rglob("refs/main")))

    def test_answers_that_are_not_the_file(self):
        data = noise(2 * PART)
        commit = self.hub.add("a/b", {"model.safetensors": data}).commit
        path = f"/a/b/resolve/{commit}/model.safetensors"

        def other_range(handler):
            handler.answer(206, data[:100], Content_Range=f"bytes 100-199/{len(data)}")

        def endless(handler):
            handler.send_response(200)
            handler.end_headers()
            while True:
                handler.wfile.write(bytes(1 << 16))

        small = self.hub.add("a/c", {"model.safetensors": noise(2000)}).commit
        self.hub.raw[f"/a/c/resolve/{small}/model.safetensors"] = endless
        self.not_pulled("more of model.safetensors than the 2000 bytes", "a/c")
        for raw, words in ((other_range, "another part"),
                           ((302, {"Location": "/x", "X-Repo-Commit": "b" * 40}, b""), "differ"),
                           ((302, {"Location": "/x", "X-Linked-Size": "7"}, b""), "differ"),
                           ((302, {"Location": "/x", "X-Linked-Etag": '"' + "b" * 64 + '"'}, b""), "differ"),
                           ((416, {}, b""), "416"), ((451, {}, b""), "451"),
                           ((200, {"ETag": '"' + "b" * 64 + '"'}, data), "differ")):
            self.hub.raw[path] = raw
            self.not_pulled(words, "a/b")

    def test_answers_in_an_encoding(self):
        files = model_files()
        commit = self.hub.add(NAME, files).commit
        body = gzip.compress(files["config.json"])
        self.hub.raw[f"/{NAME}/resolve/{commit}/config.json"] = (200, {"Content_Encoding": "gzip"}, body)
        self.not_pulled("answers in the encoding 'gzip'")
        self.hub.raw[f"/{NAME}/resolve/{commit}/config.json"] = (200, {"Content_Encoding": "identity"}, files["config.json"])
        self.check(self.pull(), files)
        body = gzip.compress(json.dumps({"sha": commit}).encode())
        self.hub.raw[f"/api/models/{NAME}/revision/main"] = (200, {"Content_Encoding": "br\x1b[2J"}, body)
        self.not_pulled("answers in the encoding 'br[^\x1b]*'")

    def test_users_in_addresses(self):
        self.hub.add(NAME, model_files())
        self.not_pulled("^moesaic: HF_ENDPOINT: a user's name in it is not supported; use HF_TOKEN\n$",
                        HF_ENDPOINT=self.hub.url.replace("://", "://me:secret@"))
        for tail in ("?x=1", "#x", "/a b"):
            self.not_pulled("not the address of a hub", HF_ENDPOINT=self.hub.url + tail)
        self.hub.raw[f"/api/models/{NAME}/revision/main"] = (302, {"Location": self.hub.cdn_url.replace("://", "://hub@")}, b"")
        self.not_pulled("user's name", HF_TOKEN="hf_good")
        self.assertEqual(self.hub.seen("cdn"), [])

    def test_headers_without_end(self):
        def headers(handler):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                handler.wfile.write(b"X-A: " + b"b" * 1000 + b"\r\n")

        self.hub.raw[f"/api/models/{NAME}/revision/main"] = headers
        self.not_pulled(self.hub.url)

    def test_silence(self):
        self.hub.add(NAME, {"model.safetensors": noise(2000)})
        self.hub.stall_at = 0
        start = time.monotonic()
        process = subprocess.Popen([*MOESAIC, "pull", NAME], env={**self.env, "HF_HUB_DOWNLOAD_TIMEOUT": "1"}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while len(self.hub.seen("cdn")) < 2:  # it gave the first up
            self.assertLess(time.monotonic() - start, TIMEOUT)
            time.sleep(0.05)
        self.hub.stall.set()
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)


class Endings(PullCase):
    def start(self, name=NAME):
        return subprocess.Popen([*MOESAIC, "pull", name], env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def partial(self, least, name=NAME):
        """Waits until a file of this repository has so many bytes."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            for path in self.cache.glob(f"models--{name.replace('/', '--')}/blobs/*.incomplete"):
                if path.stat().st_size >= least:
                    return path
            time.sleep(0.02)
        raise AssertionError("nothing comes")

    def test_signals_leave_what_can_be_gone_on_with(self):
        data = noise(3 * PART)
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": data})
        for sent, status in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.hub.stall.clear()
            self.hub.stall_at = 5 << 20
            process = self.start()
            partial = self.partial(5 << 20)
            process.send_signal(sent)
            out, err = process.communicate(timeout=TIMEOUT)
            self.assertEqual((process.returncode, out, err), (status, "", ""))
            there = partial.read_bytes()
            self.assertEqual(there, data[:len(there)])
            self.refused(1, ["no complete snapshot", f"moesaic pull {NAME}"], "inspect", NAME, env=self.env)
            self.hub.stall_at = None
            self.hub.stall.set()
            before = len(self.hub.seen("cdn"))
            self.check(self.pull(), {"config.json": b"{}", "model.safetensors": data})
            self.assertIn(f"bytes={len(there)}-", str(self.hub.seen("cdn")[before:]))

    def test_two_at_once(self):
        data = noise(2 * PART)
        self.hub.add(NAME, {"config.json": b"{}", "model.safetensors": data})
        self.hub.stall_at = 1 << 20
        first = self.start()
        self.partial(1 << 20)
        second = self.start()
        while len([r for r in self.hub.seen("hub") if "/tree/" in r[2]]) < 2:
            time.sleep(0.02)
        self.hub.stall_at = None
        self.hub.stall.set()
        outputs = [p.communicate(timeout=TIMEOUT) for p in (first, second)]
        self.assertEqual([first.returncode, second.returncode], [0, 0], outputs)
        self.check(pathlib.Path(outputs[1][0].strip()), {"config.json": b"{}", "model.safetensors": data})

    def test_two_at_once_say_it_once(self):
        self.hub.add(NAME, {f"model-{i}.safetensors": noise(2 << 20, i) for i in range(8)})
        self.hub.stall_at = 1 << 20
        first = self.start()
        end = time.monotonic() + TIMEOUT
        while len(list(self.cache.glob("models--*/blobs/*.incomplete"))) < 8:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        second = self.start()
        while len([r for r in self.hub.seen("hub") if "/tree/" in r[2]]) < 2:
            time.sleep(0.02)
        time.sleep(1.5)  # it looks for them anew every 0.3 s
        self.hub.stall_at = None
        self.hub.stall.set()
        lines = [p.communicate(timeout=TIMEOUT)[1] for p in (first, second)][1].splitlines()
        self.assertEqual(len(lines), len(set(lines)), lines)
        self.assertGreater(len(lines), 1)

    def test_a_full_disk_in_the_middle(self):
        data = noise(3 << 20)
        self.hub.add(NAME, {"model.safetensors": data})
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
        done = subprocess.run([*MOESAIC, "pull", NAME], env=self.env, capture_output=True, text=True, timeout=TIMEOUT, preexec_fn=limit)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\Amoesaic: [^\n]*incomplete: File too large; what has come is kept[^\n]*\n\Z")
        there = self.partial(1).read_bytes()
        self.assertEqual(there, data[:len(there)])
        self.check(self.pull(), {"model.safetensors": data})

    def test_a_cache_that_cannot_be_written(self):
        self.hub.add(NAME, {"model.safetensors": noise(2000)})
        (self.home / "file").write_text("")
        self.not_pulled("file", HF_HUB_CACHE=str(self.home / "file"))

    def test_hf_gets_what_is_absent(self):
        self.hub.add(NAME, model_files())
        gguf = FOLDER / "pull.gguf"
        if not gguf.exists():
            self.ok("convert", MODEL, gguf)
        self.hub.add("a/several", {"m-F16.gguf": noise(2000), "m-Q4_K_M.gguf": gguf.read_bytes()})
        self.assertIn("OK!", self.ok("run", "-hf", NAME, "-p", "hello", env=self.env))
        count = len(self.hub.requests)
        self.assertIn("OK!", self.ok("run", f"--hf-repo={NAME}", "-p", "hello", env=self.env))
        self.assertEqual(len(self.hub.requests), count)
        self.assertIn("OK!", self.ok("run", "-hf", "a/several", "-p", "hello", env=self.env))
        self.assertTrue(self.json("inspect", "-hf", "a/several:Q4_K_M", "-o", "json", env=self.env)["path"].endswith("m-Q4_K_M.gguf"))
        self.refused(2, "OWNER/NAME", "run", "-hf", "x", "-p", "a", env=self.env)
        self.refused(2, "OWNER/NAME", "serve", "-hf", "x", env=self.env)
        self.refused(1, ["no such repository"], "serve", "-hf", "a/absent", "--port", 0, env=self.env)
        self.refused(1, ["no such repository"], "run", "-hf", "a/absent", "-p", "a", env=self.env)

    def test_hf_gets_the_rest(self):
        """What huggingface_hub leaves that was ended, or asked for the config alone; and a part of another quantisation."""
        files = model_files()
        weights = files.pop("model.safetensors")
        shards = {f"model-0000{i}-of-00002.safetensors": weights if i == 1 else noise(2000) for i in (1, 2)}
        gguf = FOLDER / "rest.gguf"
        self.ok("convert", MODEL, gguf)
        parts = {f"m-Q8_0-0000{i}-of-00002.gguf": noise(2000, i) for i in (1, 2)}
        for there, rest, name, words in (
                (files, {"model.safetensors": weights}, NAME, "OK!"),
                ({**files, "model-00001-of-00002.safetensors": weights}, shards, NAME, "tensor"),  # the second is noise
                ({"m-Q4_K_M.gguf": gguf.read_bytes(), "m-Q8_0-00001-of-00002.gguf": b"x"}, parts, NAME + ":Q8_0", "not a GGUF")):
            shutil.rmtree(self.cache, ignore_errors=True)
            commit = self.hub.add(NAME, {**there, **rest}).commit
            folder = self.cache / "models--openai--small"
            for path, data in {"refs/main": commit.encode(), **{f"snapshots/{commit}/{n}": d for n, d in there.items()}}.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            self.refused(1, ["not all of its files are here", f"moesaic pull {name}"], "inspect", "-m", name, env=self.env)
            before = len(self.hub.seen("hub"))
            done = self.moesaic("run", "-hf", name, "-p", "hello", env=self.env)
            self.assertIn(words, done.stdout + done.stderr)
            self.assertGreater(len(self.hub.seen("hub")), before)
            self.assertEqual({n for n in rest if not (folder / "snapshots" / commit / n).exists()}, set())

    def served(self, *words):
        """What a server of this model says to hello."""
        process = subprocess.Popen([*MOESAIC, "serve", *words, "--port", "0", "-t", "1"], env=self.env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        try:
            url = process.stdout.readline().strip()
            self.assertRegex(url, "^http://127")
            body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
            request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
            end = time.monotonic() + TIMEOUT
            while True:
                try:
                    answer = json.load(urllib.request.urlopen(request, timeout=TIMEOUT))
                    break
                except urllib.error.HTTPError as error:
                    self.assertEqual((error.code, time.monotonic() < end), (503, True))  # the model is being loaded
                    time.sleep(0.05)
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0)
        return answer["choices"][0]["message"]["content"]

    def test_serve_gets_what_is_absent(self):
        gguf = FOLDER / "serve.gguf"
        self.ok("convert", MODEL, gguf)
        self.hub.add("a/several", {"m-F16.gguf": noise(2000), "m-Q4_K_M.gguf": gguf.read_bytes()})
        for words in (["-hf", "a/several"], ["-hf", "a/several:Q4_K_M"], ["-m", "a/several"]):
            self.assertEqual(self.served(*words), "OK!")
        self.assertEqual(len({path for _, _, path, _ in self.hub.seen("cdn")}), 1)


if __name__ == "__main__":
    unittest.main()
