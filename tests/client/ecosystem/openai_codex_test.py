"""Codex, the program itself as PyPI carries it: a configured provider, --oss, a conversation that goes on, an answer of a schema."""

import json
import pathlib
import subprocess
import tempfile
import unittest

import codex_cli_bin
from case import MODEL, SUM, Case

CODEX = pathlib.Path(codex_cli_bin.__file__).parent / "bin" / "codex"
CONFIG = """model = "{model}"
model_provider = "moesaic"
model_instructions_file = "{instructions}"

[model_providers.moesaic]
name = "moesaic"
base_url = "{url}"
wire_api = "responses"
"""
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"],
          "additionalProperties": False}


class Codex(Case):
    context = 32768  # Codex describes its tools in some 7,000 tokens

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.home = self.folder / "home"
        self.home.mkdir()
        instructions = self.folder / "instructions.md"
        instructions.write_text("Be brief.")
        (self.home / "config.toml").write_text(CONFIG.format(model=MODEL, url=self.url, instructions=instructions))

    def run_codex(self, *arguments):
        """The events that it prints; the last one is the end of the turn."""
        done = subprocess.run([CODEX, "exec", *arguments, "--skip-git-repo-check", "--json"], cwd=self.folder, timeout=120, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "CODEX_HOME": str(self.home),
                                   "CODEX_OSS_BASE_URL": self.url})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.assertEqual(events[-1]["type"], "turn.completed", done.stdout)
        self.assertGreater(events[-1]["usage"]["output_tokens"], 0)
        return events

    def answer(self, events):
        texts = [e["item"]["text"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == "agent_message"]
        self.assertTrue(texts and texts[-1].strip(), events)
        return texts[-1]

    def test_a_conversation(self):
        self.answer(self.run_codex(SUM))
        second = self.run_codex("resume", "--last", SUM)
        self.answer(second)
        self.assertGreater(second[-1]["usage"]["cached_input_tokens"], 0)

    def test_oss(self):
        (self.home / "config.toml").unlink()
        self.answer(self.run_codex("--oss", "--local-provider", "ollama", "-m", MODEL, SUM))

    def test_output_schema(self):
        schema = self.folder / "schema.json"
        schema.write_text(json.dumps(SCHEMA))
        answer = json.loads(self.answer(self.run_codex("--output-schema", str(schema), SUM)))
        self.assertEqual(list(answer), ["sum"])


if __name__ == "__main__":
    unittest.main()
