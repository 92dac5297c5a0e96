"""Conversations that outlive the server: --kv-disk over restarts, kills and other keys."""

import pathlib
import tempfile
import unittest

from served import Served

PROMPT = [3 + i * 37 % 400 for i in range(300)]


def ask(server, key=None):
    """The answer's text, and how many of the prompt's tokens were not computed."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    status, answer = server.post("/v1/completions", body, {"Authorization": f"Bearer {key}"} if key else {})
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class KvStore(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def serve(self, *options):
        server = Served("--log", "quiet", "--kv-disk", f"{self.folder}/kv:0.1", *options).wait_ready()
        self.addCleanup(self.kill, server)
        return server

    @staticmethod
    def kill(server):
        if server.process.returncode is None:
            server.process.kill()
            server.process.communicate()

    def test_an_answer_after_a_restart_and_after_a_kill(self):
        server = self.serve()
        text, cached = ask(server)
        self.assertEqual(cached, 0)
        server.stop()
        server = self.serve()
        self.assertEqual(ask(server), (text, 288))
        self.assertEqual(server.metric("moesaic:kv_store_fetched_tokens_total"), 288)
        self.assertGreater(server.metric("moesaic:kv_store_read_bytes_total", 'tier="disk"'), 0)
        self.assertGreater(server.metric("moesaic:kv_store_bytes", 'tier="disk"'), 0)
        self.kill(server)
        server = self.serve()
        self.assertEqual(ask(server), (text, 288))
        server.stop()

    def test_a_folder_is_one_servers(self):
        self.serve()
        second = Served("--kv-disk", f"{self.folder}/kv:0.1")
        _, errors = second.process.communicate(timeout=60)
        self.assertIn("another model or process uses it", errors)
        self.assertNotEqual(second.process.returncode, 0)

    def test_keys_find_their_own_wherever_they_stand(self):
        keys = self.folder / "keys"
        keys.write_text("first\nsecond\n")
        server = self.serve("--api-key-file", keys)
        text, _ = ask(server, "first")
        server.stop()
        keys.write_text("third\nfirst\n")
        server = self.serve("--api-key-file", keys)
        # A server does not know before its first prompt how quickly it computes one, so it waits for files.
        self.assertEqual(ask(server, "first"), (text, 288))
        self.assertEqual(ask(server, "third"), (text, 0))
        server.stop()


if __name__ == "__main__":
    unittest.main()
