"""GitHub Copilot, the program that its Python SDK brings, with a provider of its own: an answer with all of its tools and a conversation
that goes on, over chat completions, the Responses API and Anthropic's messages."""

import asyncio
import os
import tempfile
import unittest

from case import MODEL, SUM, Case
from copilot import CopilotClient
from copilot.session import PermissionHandler

BRIEF = {"mode": "replace", "content": "Be brief."}


class Copilot:
    context = 65536  # as for Claude Code: its own tools and instructions
    never_refused = '"POST"'  # the program would try in another form, and say nothing

    def converse(self, messages, **options):
        """What it says to each of several messages of one session."""
        async def work():
            with tempfile.TemporaryDirectory() as folder:
                env = {**os.environ, "HOME": folder, "COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_BASE_URL": self.url, "COPILOT_MODEL": MODEL}
                async with CopilotClient(working_directory=folder, base_directory=folder, env=env, use_logged_in_user=False) as client:
                    session = await client.create_session(
                        model=MODEL, provider={**self.provider(), "api_key": "none"}, on_permission_request=PermissionHandler.approve_all,
                        streaming=True, enable_session_telemetry=False, **options)
                    events = [await session.send_and_wait(message, timeout=100) for message in messages]
                    await session.disconnect()
                    return [event.data.content for event in events]

        return asyncio.run(asyncio.wait_for(work(), 240))

    def test_answer_with_all_of_its_tools(self):
        [text] = self.converse([SUM])
        self.assertTrue(text.strip())

    def test_a_conversation(self):
        before = self.server.metric("vllm:prefix_cache_hits_total")
        texts = self.converse([SUM, "What is 2 + 3?"], system_message=BRIEF, available_tools=["none"])
        self.assertTrue(all(text.strip() for text in texts), texts)
        self.assertGreater(self.server.metric("vllm:prefix_cache_hits_total"), before)


class ChatCompletions(Copilot, Case):
    def provider(self):
        return {"type": "openai", "base_url": self.url, "wire_api": "completions"}


class Responses(Copilot, Case):
    def provider(self):
        return {"type": "openai", "base_url": self.url, "wire_api": "responses"}


class Messages(Copilot, Case):
    def provider(self):
        return {"type": "anthropic", "base_url": self.server.url}


if __name__ == "__main__":
    unittest.main()
