"""llama-benchy, the benchmark of prompt processing and generation at depth; its book comes from this machine."""

import http.server
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest

from case import MODEL, ROOT, Case, known

WORDS = "one lamp stood in the old garden and Nora carried a green key to the mill by the river every Monday".split()


class Book(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = " ".join(random.Random(5).choices(WORDS, k=6000)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class LlamaBenchy(Case):
    context = 2048

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.books = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Book)
        threading.Thread(target=cls.books.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.books.shutdown()
        super().tearDownClass()

    def command(self, *options):
        """(what it printed, what it saved)."""
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "result"
            done = subprocess.run(
                [pathlib.Path(sys.executable).parent / "llama-benchy", "--base-url", self.url, "--model", MODEL,
                 "--tokenizer", ROOT / "models" / "tiny", "--book-url", f"http://127.0.0.1:{self.books.server_port}/book.txt",
                 "--skip-coherence", "--exit-on-first-fail", "--save-result", saved, *map(str, options)],
                capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout, saved.read_text()

    def test_depths(self):
        out, saved = self.command("--pp", 256, "--tg", 32, "--depth", 0, 512, "--runs", 2, "--format", "json")
        runs = json.loads(saved)["benchmarks"]
        self.assertEqual([(r["context_size"], r["prompt_size"]) for r in runs], [(0, 256), (512, 256)])
        for run in runs:
            self.assertEqual(len(run["pp_throughput"]["values"]), 2)
            self.assertGreater(run["pp_throughput"]["mean"], run["tg_throughput"]["mean"])
            self.assertGreater(run["tg_throughput"]["mean"], 10)
            self.assertGreater(run["e2e_ttft"]["mean"], 0)
        self.assertNotIn("Error", out)

    def test_warmup_reads_usage(self):
        out, _ = self.command("--pp", 64, "--tg", 8, "--runs", 1, "--format", "json")
        self.assertIn("Warmup (User only) complete. Delta:", out)
        self.assertIn("Warmup (System+Probe) complete. Delta:", out)

    def test_tables(self):
        _, markdown = self.command("--pp", 1024, "--tg", 64, "--runs", 1)
        self.assertRegex(markdown, r"\| tiny +\| +pp1024 \| +[\d.]+ ± ")
        self.assertRegex(markdown, r"\| tiny +\| +tg64 \| +[\d.]+ ± ")
        _, table = self.command("--pp", 1024, "--tg", 64, "--runs", 1, "--format", "csv")
        self.assertEqual([line.split(",")[1] for line in table.splitlines()[1:]], ["pp1024", "tg64"])

    def test_together(self):
        _, saved = self.command("--pp", 64, "--tg", 32, "--runs", 1, "--concurrency", 1, 4, "--format", "json")
        alone, together = json.loads(saved)["benchmarks"]
        self.assertEqual((alone["concurrency"], together["concurrency"]), (1, 4))
        self.assertGreater(together["tg_throughput"]["mean"], together["tg_req_throughput"]["mean"])

    def test_prefix_cache(self):
        before = self.server.metric("vllm:prefix_cache_hits_total")
        _, saved = self.command("--pp", 64, "--tg", 8, "--depth", 1024, "--runs", 2, "--enable-prefix-caching", "--format", "json")
        self.assertEqual([run["is_context_prefill_phase"] for run in json.loads(saved)["benchmarks"]], [True, False])
        self.assertGreater(self.server.metric("vllm:prefix_cache_hits_total") - before, 2 * 900)

    @known("with ignore_eos, tokens behind the end of a chat's text have no chunk with text, and only those are counted")
    def test_exact_lengths(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "progress"
            self.command("--exact-tg", "--pp", 64, "--tg", 400, "--runs", 2, "--format", "json", "--emit-progress", path)
            events = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual([event["total_tokens"] for event in events if event["type"] == "request_end"], [400, 400])

    def test_token_ids(self):
        out, _ = self.command("--pp", 64, "--tg", 8, "--runs", 1, "--format", "json")
        self.assertNotIn("No complete token_ids", out)


if __name__ == "__main__":
    unittest.main()
