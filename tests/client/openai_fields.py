"""Fields beyond OpenAI's own, by extra_body, and what its newer ones do."""

import json

import openai
from openai_case import SUM, WEATHER, Case

OTHER = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}


class Fields(Case):
    def complete(self, prompt="Once upon a time", **extra):
        return self.client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=100,
                                              extra_body=extra)

    def raw(self, **extra):
        return self.client.chat.completions.with_raw_response.create(model="tiny", messages=SUM, temperature=0,
                                                                     extra_body=extra)

    def test_min_tokens(self):
        plain = self.chat()
        self.assertLess(plain.usage.completion_tokens, 100)
        longer = self.chat(extra_body={"min_tokens": 100}, max_tokens=120)
        self.assertGreaterEqual(longer.usage.completion_tokens, 100)
        self.assertTrue(longer.choices[0].message.content.startswith(plain.choices[0].message.content))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body={"min_tokens": 100}, max_tokens=50)
        self.assertEqual(caught.exception.param, "min_tokens")

    def test_ignore_eos(self):
        answer = self.chat(extra_body={"ignore_eos": True}, max_tokens=100)
        self.assertEqual((answer.usage.completion_tokens, answer.choices[0].finish_reason), (100, "length"))
        self.assertEqual(answer.choices[0].message.content, self.chat().choices[0].message.content)

    def test_stop_token_ids(self):
        tokens = self.server.post("/tokenize", {"prompt": " ="})[1]["tokens"]
        whole = self.chat().choices[0].message
        for extra, kept in (({}, ""), ({"include_stop_str_in_output": True}, " =")):
            cut = self.chat(extra_body={"stop_token_ids": tokens, **extra}).choices[0]
            self.assertEqual(cut.finish_reason, "stop")
            self.assertIsNone(cut.message.content or None)  # the reasoning has one already
            self.assertEqual(cut.message.reasoning, whole.reasoning[:whole.reasoning.index(" =")] + kept)
        plain = self.complete("17 + 25", stop_token_ids=tokens).choices[0]
        self.assertNotIn(" =", plain.text)
        with self.assertRaises(openai.BadRequestError):
            self.complete(stop_token_ids=[10_000_000])

    def test_stop_string_kept(self):
        text = self.complete().choices[0].text
        stop = text[10:14]
        self.assertEqual(self.complete(stop=stop).choices[0].text, text[:text.index(stop)])
        self.assertEqual(self.complete(stop=stop, include_stop_str_in_output=True).choices[0].text,
                         text[:text.index(stop)] + stop)

    def test_allowed_and_bad(self):
        tokens = self.server.post("/tokenize", {"prompt": "17"})[1]["tokens"]
        self.assertEqual(set(self.complete(allowed_token_ids=tokens).choices[0].text), set("17"))
        word = self.complete().choices[0].text.split()[2]
        self.assertNotIn(f" {word} ", self.complete(bad_words=[word]).choices[0].text)

    def test_cache_prompt(self):
        self.chat()
        self.assertGreater(self.chat().usage.prompt_tokens_details.cached_tokens, 0)
        details = self.chat(extra_body={"cache_prompt": False}).usage.prompt_tokens_details
        self.assertEqual(details.cached_tokens, 0)
        self.assertGreater(details.cache_write_tokens, 0)

    def test_schemas_in_other_words(self):
        for extra in ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}, {"structured_outputs": {"json": SCHEMA}},
                      {"response_format": {"type": "json_object", "schema": SCHEMA}}):
            with self.subTest(extra):
                content = self.chat(extra_body=extra).choices[0].message.content
                self.assertEqual(list(json.loads(content)), ["sum"])

    def test_refused(self):
        for field, value in (("guided_regex", "a("), ("guided_choice", [""]), ("grammar", "a"), ("structural_tag", "a"),
                             ("structured_outputs", {"structural_tag": "a"}), ("mirostat", 2), ("use_beam_search", True),
                             ("chat_template", "x"), ("truncate_prompt_tokens", 5), ("lora", [{"id": 0}])):
            with self.subTest(field), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(extra_body={field: value})
            self.assertEqual(caught.exception.param, field)

    def test_efforts(self):
        low = self.chat(reasoning_effort="low").usage.prompt_tokens
        for extra in ({"reasoning": {"effort": "low"}}, {"chat_template_kwargs": {"reasoning_effort": "low"}}):
            self.assertEqual(self.chat(extra_body=extra).usage.prompt_tokens, low)
        with self.assertRaises(openai.BadRequestError):
            self.chat(reasoning_effort="low", extra_body={"reasoning": {"effort": "high"}})
        hidden = self.chat(extra_body={"include_reasoning": False})
        self.assertFalse(hasattr(hidden.choices[0].message, "reasoning"))
        self.assertGreater(hidden.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_unknown_fields_are_named(self):
        self.assertIsNone(self.raw().headers.get("X-Moesaic-Ignored-Fields"))
        for stream in (False, True):
            answer = self.raw(temprature=2, _private=1, stream=stream)
            self.assertEqual(answer.headers["X-Moesaic-Ignored-Fields"], 'temprature;nearest="temperature", _private')
        self.assertIsNone(self.raw().headers.get("X-Moesaic-Ignored-Fields"))

    def test_allowed_tools(self):
        question = [{"role": "user", "content": "What is the weather in Paris?"}]
        for mode, name in (("auto", "get_weather"), ("required", "get_weather"), ("required", "get_time")):
            choice = {"type": "allowed_tools", "allowed_tools": {
                "mode": mode, "tools": [{"type": "function", "function": {"name": name}}]}}
            message = self.chat(question, tools=[WEATHER, OTHER], tool_choice=choice).choices[0].message
            self.assertEqual(message.tool_calls[0].function.name, name)
        choice["allowed_tools"] = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
        message = self.chat(question, tools=[WEATHER, OTHER], tool_choice=choice).choices[0].message
        self.assertNotIn("get_weather", [c.function.name for c in message.tool_calls or []])

    def test_numbers(self):
        self.assertEqual(self.chat(extra_body={"max_tokens": 5.0}).usage.completion_tokens, 5)
        for limit in (-1, None):
            self.assertEqual(self.chat(extra_body={"max_tokens": limit}).choices[0].finish_reason, "stop")

    def test_special_tokens_of_completions(self):
        prompt = self.server.post("/apply-template", {"messages": SUM})[1]["prompt"]
        chat = self.chat()
        answer = self.complete(prompt)
        self.assertEqual(answer.usage.prompt_tokens, chat.usage.prompt_tokens)
        self.assertTrue(answer.choices[0].text.endswith(chat.choices[0].message.content))
        self.assertNotIn("<|", answer.choices[0].text)
        shown = self.complete(prompt, skip_special_tokens=False).choices[0].text
        self.assertTrue(shown.startswith("<|channel|>analysis<|message|>"))


class Paths(Case):
    def test_models(self):
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")
        for name in ("another", "a/b", "a%2Fb"):
            with self.subTest(name), self.assertRaises(openai.NotFoundError) as caught:
                self.client.models.retrieve(name)
            self.assertEqual(caught.exception.code, "model_not_found")
        self.assertEqual(self.server.call("POST", "/v1/models/tiny", "{}")[0], 405)
        self.assertEqual(self.server.call("GET", "/v1/models/")[0], 200)

    def test_without_version(self):
        client = openai.OpenAI(base_url=self.server.url, api_key="none", max_retries=0, timeout=60)
        self.assertEqual(client.models.list().data[0].id, "tiny")
        self.assertEqual(client.models.retrieve("tiny").id, "tiny")
        self.assertIn("42", client.chat.completions.create(model="tiny", messages=SUM, temperature=0)
                      .choices[0].message.content)
        self.assertTrue(client.completions.create(model="tiny", prompt="a").choices[0].text)
        self.assertIn("42", client.responses.create(model="tiny", input="What is 17 + 25?", temperature=0).output_text)

    def test_tokens_of_a_chat(self):
        body = {"messages": SUM, "reasoning_effort": "high", "response_format": {
            "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}
        count = self.server.post("/tokenize", body)[1]["count"]
        self.assertEqual(self.chat(reasoning_effort="high", response_format=body["response_format"]).usage.prompt_tokens,
                         count)
