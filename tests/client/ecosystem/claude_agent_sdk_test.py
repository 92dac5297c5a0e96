"""Claude Code, the program itself as its Python SDK brings it: an answer, tools and their results, a conversation that goes on."""

import asyncio
import json
import tempfile
import unittest

from case import MODEL, SUM, WEATHER, Case
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, create_sdk_mcp_server, query, tool

TOOL = "mcp__weather__get_weather"


class ClaudeCode(Case):
    context = 65536  # its own tools and instructions are some 18,000 tokens
    never_refused = '"/v1/messages"'  # the client would try in another form, and say nothing

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.asked = folder.name, []

    def claude(self, extra=None, **options):
        @tool("get_weather", "Get the weather of a city.", {"location": str})
        async def get_weather(arguments):
            self.asked.append(arguments)
            return {"content": [{"type": "text", "text": '{"temperature": 21, "sky": "sunny"}'}]}

        env = {"ANTHROPIC_BASE_URL": self.server.url, "ANTHROPIC_API_KEY": "none", "HOME": self.folder,
               "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_EXTRA_BODY": json.dumps(extra or {})}
        small = {"system_prompt": "Be brief.", "tools": [], "mcp_servers": {"weather": create_sdk_mcp_server("weather", tools=[get_weather])}}
        return ClaudeAgentOptions(**{"model": MODEL, "allowed_tools": [TOOL], "setting_sources": [], "cwd": self.folder, "env": env,
                                     **small, **options})

    def result(self, text, options):
        async def work():
            last = None
            async for message in query(prompt=text, options=options):
                last = message if isinstance(message, ResultMessage) else last
            return last

        return asyncio.run(asyncio.wait_for(work(), 120))

    def test_answer_with_all_of_its_tools(self):
        result = self.result(SUM, self.claude(system_prompt={"type": "preset", "preset": "claude_code"}, tools=None))
        self.assertEqual((result.subtype, result.is_error), ("success", False))
        self.assertTrue(result.result.strip())

    def test_tool_results_go_back(self):
        """The call is demanded by a field that Claude Code adds to each request, so that there is one in every turn."""
        with self.assertRaisesRegex(Exception, "maximum number of turns"):
            self.result(WEATHER, self.claude({"tool_choice": {"type": "tool", "name": TOOL}}, max_turns=4))
        self.assertGreaterEqual(len(self.asked), 3)
        self.assertTrue(all(isinstance(one["location"], str) for one in self.asked), self.asked)

    def test_a_conversation(self):
        async def work():
            results = []
            async with ClaudeSDKClient(self.claude(mcp_servers={})) as client:
                for _ in range(3):
                    await client.query(SUM)
                    results += [m async for m in client.receive_response() if isinstance(m, ResultMessage)]
            return results

        results = asyncio.run(asyncio.wait_for(work(), 120))
        self.assertEqual([r.is_error for r in results], [False] * 3)
        self.assertGreater(results[-1].usage["cache_read_input_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
