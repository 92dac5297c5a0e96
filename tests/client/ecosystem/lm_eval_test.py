"""lm-eval's local-completions and local-chat-completions: likelihoods of tokens that it counts itself, and generations."""

import unittest

from case import MODEL, ROOT, SUM, Case
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI


def instances(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


class Completions(Case):
    def model(self, concurrent):
        made = LocalCompletionsAPI(model=MODEL, base_url=self.url + "/completions", tokenizer=str(ROOT / "models/tiny"),
                                   num_concurrent=concurrent, max_retries=1, batch_size=2, max_length=1000)
        made.tokenizer.eos_token = "<|endoftext|>"  # in a file that tiny has not
        return made

    def test_likelihood(self):
        """The first token of the second text is not the likeliest; those of the third are."""
        asked = instances("loglikelihood", ("Once upon", " a time"), ("Once upon", " forty"), ("Once upon a", " time"))
        found = [self.model(concurrent).loglikelihood(asked, disable_tqdm=True) for concurrent in (1, 4)]
        self.assertEqual([greedy for _, greedy in found[0]], [True, False, True])
        self.assertGreater(found[0][0][0], found[0][1][0])
        for (alone, _), (together, _) in zip(*found):
            self.assertAlmostEqual(alone, together, places=3)

    def test_rolling_likelihood(self):
        [whole] = self.model(1).loglikelihood_rolling(instances("loglikelihood_rolling", ("Once upon a time",)), disable_tqdm=True)
        [(end, _)] = self.model(1).loglikelihood(instances("loglikelihood", ("Once upon", " a time")), disable_tqdm=True)
        self.assertLess(whole, end)

    def test_generate(self):
        asked = instances("generate_until", *[("Once upon", {"until": [stop], "max_gen_toks": 8}) for stop in ("\n", " time")])
        free, stopped = self.model(4).generate_until(asked, disable_tqdm=True)
        self.assertIn(" time", free)
        self.assertEqual(stopped, free.split(" time")[0])

    def test_chat(self):
        model = LocalChatCompletion(model=MODEL, base_url=self.url + "/chat/completions", num_concurrent=4, max_retries=1)
        asked = (model.apply_chat_template([{"role": "user", "content": SUM}]), {"until": ["\n\n"], "max_gen_toks": 200})
        answers = model.generate_until(instances("generate_until", *[asked] * 6), disable_tqdm=True)
        self.assertEqual(answers, ["17 + 25 = 42"] * 6)


if __name__ == "__main__":
    unittest.main()
