"""smolagents: its model's stream, and agents that call tools and write code in an answer that a schema holds."""

import unittest

from case import MODEL, SUM, Case, get_weather
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


class Smolagents(Case):
    context = 8192  # its system prompts are long
    never_refused = "/"

    def model(self, **options):
        return OpenAIModel(model_id=MODEL, api_base=self.url, api_key="none", client_kwargs={"max_retries": 0}, temperature=0, **options)

    def ask(self):
        return [{"role": "user", "content": [{"type": "text", "text": SUM}]}]

    def test_stream_is_the_whole_answer(self):
        parts = list(self.model().generate_stream(self.ask()))
        whole = self.model().generate(self.ask())
        self.assertEqual("".join(part.content or "" for part in parts), whole.content)
        self.assertEqual(sum(part.token_usage.output_tokens for part in parts if part.token_usage), whole.token_usage.output_tokens)

    def test_required_call(self):
        """tool_choice is required: each step is a call, of the agent's tool or of final_answer."""
        for stream in (False, True):
            with self.subTest(stream=stream):
                agent = ToolCallingAgent(tools=[tool(get_weather)], model=self.model(), max_steps=2, verbosity_level=0,
                                         stream_outputs=stream)
                agent.run("What is the weather in Oslo?")
                calls = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or []]
                self.assertTrue(calls)
                self.assertLessEqual(set(calls), {"get_weather", "final_answer"})

    def test_code_in_a_schema(self):
        agent = CodeAgent(tools=[], model=self.model(max_tokens=200), max_steps=1, verbosity_level=0,
                          use_structured_outputs_internally=True)
        agent.run(SUM)
        step = next(step for step in agent.memory.steps if hasattr(step, "model_output"))
        self.assertTrue(step.model_output.startswith("{"), step.model_output)


if __name__ == "__main__":
    unittest.main()
