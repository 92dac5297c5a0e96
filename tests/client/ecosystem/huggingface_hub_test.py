"""The Hugging Face cache is one for both: what `moesaic pull` gets, huggingface_hub and transformers find, and the
other way round."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/cli"))
from local_hub import Hub  # noqa: E402

MOESAIC = os.environ["MOESAIC"]
HF = pathlib.Path(sys.executable).with_name("hf")
FILES = {p.name: p.read_bytes() for p in (ROOT / "models/tiny").iterdir() if p.is_file()}
GGUF = {"m-Q8_0.gguf": bytes(50000), "sub/m-F16.gguf": bytes(40000)}


class Cache(unittest.TestCase):
    def setUp(self):
        self.hub = Hub()
        self.addCleanup(self.hub.__exit__)
        folder = tempfile.TemporaryDirectory(prefix="moesaic-hf-")
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name) / "hub"
        self.env = {**os.environ, "HF_ENDPOINT": self.hub.url, "HF_HUB_CACHE": str(self.cache), "HF_HOME": folder.name,
                    "NO_PROXY": "*", "NO_COLOR": "1", "HF_HUB_OFFLINE": "0"}  # run.py keeps the other clients offline
        self.hub.add("o/n", {**FILES, "original/model.safetensors": bytes(5000)})
        self.hub.add("o/gguf", GGUF)

    def run_(self, *command):
        done = subprocess.run([str(c) for c in command], env=self.env, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def pull(self, name):
        return self.run_(MOESAIC, "pull", name).strip()

    def python(self, expression):
        return self.run_(sys.executable, "-c", f"import huggingface_hub as h\nprint({expression})").strip()

    def fetched(self):
        return [r for r in self.hub.requests if r[0] == "cdn"]

    def test_it_finds_what_pull_got(self):
        path = self.pull("o/n")
        count = len(self.fetched())
        self.assertEqual(self.python("h.snapshot_download('o/n', local_files_only=True)"), path)
        self.assertEqual(self.python("h.try_to_load_from_cache('o/n', 'model.safetensors')"), f"{path}/model.safetensors")
        self.assertEqual(self.python("[(r.repo_id, r.nb_files) for r in h.scan_cache_dir().repos], h.scan_cache_dir().warnings"),
                         f"[('o/n', {len(FILES)})] []")
        self.run_(HF, "download", "o/n", "--exclude", "*/*")
        self.assertEqual(len(self.fetched()), count)
        path = self.pull("o/gguf:F16")
        self.assertEqual(self.python("h.hf_hub_download('o/gguf', 'sub/m-F16.gguf', local_files_only=True)"), path)

    def test_hf_lists_and_verifies_it(self):
        commit = pathlib.Path(self.pull("o/n")).name
        listed = self.run_(HF, "cache", "ls", "--revisions", "--no-truncate")
        self.assertRegex(listed, rf"model/o/n +{commit} .*main")
        self.assertIn("All checksums match", self.run_(HF, "cache", "verify", "o/n"))

    def test_transformers_open_it_offline(self):
        template = b"{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
        self.hub.add("o/chat", {**FILES, "chat_template.jinja": template})
        self.pull("o/chat")
        self.env["HF_HUB_OFFLINE"] = "1"
        count = len(self.hub.requests)
        said = self.run_(sys.executable, "-c", """
from transformers import AutoConfig, AutoTokenizer
config, tokenizer = AutoConfig.from_pretrained("o/chat"), AutoTokenizer.from_pretrained("o/chat")
ids = tokenizer.encode("What is 17 + 25?")
print(config.model_type, tokenizer.decode(ids))
print(tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False))
print(ids)""").splitlines()
        self.assertEqual(said[:2], ["gpt_oss What is 17 + 25?", "<|start|>user<|message|>hi<|end|>"])
        ours = json.loads(self.run_(MOESAIC, "tokenize", "-m", "o/chat", "-p", "What is 17 + 25?", "-o", "json"))
        self.assertEqual(ours["tokens"], json.loads(said[2]))
        self.assertEqual(len(self.hub.requests), count)

    def test_pull_finds_what_it_got(self):
        self.run_(HF, "download", "o/n", "--exclude", "*/*")
        self.run_(HF, "download", "o/gguf", "m-Q8_0.gguf")
        count = len(self.fetched())
        self.assertIn(str(self.cache), self.run_(MOESAIC, "inspect", "o/n"))
        self.assertEqual(self.pull("o/n"), self.python("h.snapshot_download('o/n', local_files_only=True, ignore_patterns='*/*')"))
        self.pull("o/gguf:q8_0")
        self.assertEqual(len(self.fetched()), count)

    def test_all_at_once(self):
        commands = [[MOESAIC, "pull", "o/n"], [HF, "download", "o/n", "--exclude", "*/*"], [MOESAIC, "pull", "o/n"]]
        started = [subprocess.Popen(c, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for c in commands]
        for process in started:
            error = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, 0, error)
        path = pathlib.Path(self.pull("o/n"))
        self.assertEqual({p.name: p.read_bytes() for p in path.iterdir()}, FILES)
        self.assertFalse(list(self.cache.rglob("*.incomplete")))


if __name__ == "__main__":
    unittest.main()
