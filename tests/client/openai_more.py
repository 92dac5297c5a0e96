"""Models and completions."""

from openai_case import Case


class Models(Case):
    def test_list(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["tiny"])


class Completions(Case):
    PROMPT = "Once upon a time"

    def complete(self, prompt=PROMPT, **options):
        options.setdefault("temperature", 0)
        return self.client.completions.create(model="tiny", prompt=prompt, **options)

    def test_whole_and_stream(self):
        whole = self.complete(max_tokens=20)
        self.assertEqual(whole.object, "text_completion")
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(whole.usage.completion_tokens, 20)
        chunks = list(self.complete(max_tokens=20, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, 20)

    def test_default_length(self):
        self.assertEqual(self.complete().usage.completion_tokens, 16)

    def test_tokens(self):
        tokens = self.server.post("/tokenize", {"prompt": self.PROMPT})[1]["tokens"]
        text = self.server.post("/detokenize", {"tokens": tokens})[1]["prompt"]
        self.assertEqual(text, self.PROMPT)
        self.assertEqual(self.complete(tokens).choices[0].text, self.complete().choices[0].text)
        two = self.complete([tokens, tokens])
        self.assertEqual(len({c.text for c in two.choices}), 1)
        self.assertEqual(two.usage.prompt_tokens, 2 * len(tokens))

    def test_several(self):
        answer = self.complete(["One", "Two", "Three"], n=2, temperature=1, max_tokens=8)
        self.assertEqual([c.index for c in answer.choices], list(range(6)))

    def test_echo(self):
        plain, echo = self.complete(), self.complete(echo=True)
        self.assertEqual(echo.choices[0].text, self.PROMPT + plain.choices[0].text)

    def test_logprobs(self):
        choice = self.complete(logprobs=2, max_tokens=10).choices[0]
        logprobs = choice.logprobs
        self.assertEqual("".join(logprobs.tokens), choice.text)
        self.assertEqual(len(logprobs.token_logprobs), 10)
        for token, logprob, top, offset in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs,
                                               logprobs.text_offset):
            self.assertEqual(max(top.values()), logprob)
            self.assertEqual(choice.text[offset:offset + len(token)], token)

    def test_special_tokens_are_read_as_completions_read_them(self):
        tokens = lambda **more: self.server.post("/tokenize", {"prompt": "<|start|>a", **more})[1]["tokens"]  # noqa: E731
        done = self.server.post("/v1/completions", {"prompt": "<|start|>a", "max_tokens": 1, "return_token_ids": True})[1]
        self.assertEqual(tokens(), done["choices"][0]["prompt_token_ids"])
        self.assertEqual(tokens(parse_special=True), tokens())
        self.assertGreater(len(tokens(parse_special=False)), len(tokens()))
