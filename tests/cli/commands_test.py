"""Every command does what its help says, in the forms that scripts lean on."""

import csv
import json
import math
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest

from cli import CALLER, EXAMPLE, FOLDER, MODEL, MOESAIC, THINKER, TIMEOUT, TINY, Cli, takes_minutes, true_shapes
from small_model import HEAD_DIM, IDS, KV_HEADS, VOCAB

USAGE = {"prompt_tokens", "completion_tokens", "total_tokens"}


class Run(Cli):
    def test_text_goes_to_stdout_and_the_rest_to_stderr(self):
        done = self.moesaic("run", "-m", MODEL, "-p", "hello", "--temp", 0)
        self.assertEqual((done.returncode, done.stdout), (0, "OK!\n"))
        self.assertEqual(done.stderr, "")
        self.assertRegex(self.moesaic("run", "-m", MODEL, "-p", "hello", "--temp", 0, "-v").stderr, r"\A\[.*tok/s\]\n\Z")

    @true_shapes
    def test_dummy_with_a_tokenizer(self):
        """Random weights of the true shapes, fewer of them, and tiny's tokenizer."""
        dummy = "dummy:gpt-oss-20b,layers=1,experts=4,vocab=4096"
        out = self.json("run", "-m", dummy, "--tokenizer", f"{TINY}/tokenizer.json", "-p", "hello", "-n", 3, "-o", "json")
        self.assertEqual(out["usage"]["completion_tokens"], 3)
        self.refused(1, "no tokenizer.*--tokenizer", "run", "-m", dummy, "-p", "hello")
        self.refused(1, "tokenizer", "run", "-m", dummy.replace("4096", "4000"), "--tokenizer", f"{TINY}/tokenizer.json", "-p", "hello")

    def test_json(self):
        out = self.json("run", "-m", MODEL, "-p", "hello", "--temp", 0, "-o", "json")
        self.assertLessEqual({"text", "reasoning", "tool_calls", "tokens", "finish_reason", "usage", "timing"},
                             set(out))
        self.assertEqual((out["text"], out["reasoning"], out["tool_calls"]), ("OK!", "", []))
        self.assertEqual(out["finish_reason"], "stop")
        self.assertEqual(out["tokens"][-1], IDS["<|return|>"])
        self.assertLessEqual(USAGE, set(out["usage"]))
        self.assertEqual(out["usage"]["completion_tokens"], len(out["tokens"]))
        self.assertEqual(out["usage"]["total_tokens"], out["usage"]["prompt_tokens"] + len(out["tokens"]))

    def test_raw_continues_the_text(self):
        out = self.json("run", "-m", MODEL, "--raw", "-p", "0", "-n", 5, "--temp", 0, "-o", "json")
        self.assertEqual((out["text"], out["finish_reason"]), ("12345", "length"))
        self.assertEqual(out["usage"]["prompt_tokens"], 1)
        self.assertEqual(self.ok("run", "-m", MODEL, "--raw", "-p", "0", "-n", 5, "--temp", 0), "12345\n")

    def said(self, *args, stdin=""):
        """How many tokens the prompt had, and standard error."""
        done = self.moesaic("run", *args, "--raw", "-n", 1, "-o", "json", stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["usage"]["prompt_tokens"], done.stderr

    def test_a_prompt_in_words(self):
        for args in ((MODEL, "12", "34"), ("-m", MODEL, "12", "34"), (MODEL, "12", "--temp", 0, "34"), (MODEL, "12 34"),
                     (MODEL, "[1,2]"), ("-m", MODEL, "-5 12"), (MODEL, "--stop", "x", "- 123")):
            with self.subTest(args):
                self.assertEqual(self.said(*args), (5, ""))
        self.assertEqual(self.said(MODEL, "list", "serve"), (9, ""))
        for args, tokens in ((("@absent.txt",), 11), (("@@a",), 3), (("--", "@-"), 2)):  # words name no file
            out = self.json("run", MODEL, "-t", 1, "--raw", "-n", 1, "-o", "json", *args)
            self.assertEqual(out["usage"]["prompt_tokens"], tokens, args)
        self.assertEqual(self.ok("run", MODEL, "-t", 1, "--raw", "-n", 2, "--temp", 0, "--", "--frob", "-0"), "12\n")
        for args, tokens in (((MODEL, "-m", "[a,b]", "", "--temp=3"), 18), ((MODEL, "--", "-"), 4)):
            out = self.json("run", "-t", 1, "--raw", "-n", 1, "-o", "json", "--", *args)
            self.assertEqual(out["usage"]["prompt_tokens"], tokens)
        self.refused(2, "--prompt", "run", "-m", MODEL, "-p", "--", "x")
        self.assertEqual(self.ok("run", MODEL, "hello", "there", "--temp", 0), "OK!\n")
        self.assertEqual(self.ok("run", MODEL, "--temp", 0, stdin="hello\nhello\n"), "OK!\nOK!\n")
        self.assertEqual(self.ok("run", MODEL, "--temp", 0, stdin="hello\r\n\r\nhello\r\n"), "OK!\nOK!\n")
        self.refused(1, "-p @: give a file", "run", MODEL, "-p", "@")
        self.refused(1, "absent.txt: No such file", "run", MODEL, "-p", "@/absent.txt")
        self.refused(1, "/absent: no such file", "run", MODEL, "-p", "a", "--tokenizer", "/absent")
        done = self.moesaic("run", THINKER, "-n", 3, "--temp", 0, "-p", "hello")
        self.assertEqual((done.returncode, done.stdout.strip()), (0, ""))
        self.assertEqual(done.stderr, "moesaic: note: the limit of tokens was reached before the answer began (-n, --ctx, --reasoning)\n")
        self.refused(2, "did you mean --temp", "run", MODEL, "hello", "--tem", "0")
        self.refused(2, ["'b c'", "give one prompt"], "run", "-m", MODEL, "-p", "a", "b", "c")
        self.refused(2, "give one prompt", "run", MODEL, "b", "-f", "-")
        self.refused(2, r"--model is required: moesaic run MODEL \[PROMPT\.\.\.\]", "run", "-p", "a")

    def test_standard_input_goes_behind_the_prompt(self):
        for prompt in (("-m", MODEL, "-p", "123"), (MODEL, "123")):
            self.assertEqual(self.said(*prompt, stdin="45\n"), (8, "moesaic: note: 3 bytes of standard input go behind the prompt\n"))
            self.assertEqual(self.said(*prompt), (3, ""))
        with open("/dev/null", "w") as null:  # as nohup has it
            done = subprocess.run([*MOESAIC, "run", MODEL, "123", "-t", "1", "--temp", "0"], stdin=null, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "OK!\n", ""))
        file = FOLDER / "behind.txt"
        file.write_text("123")
        self.assertEqual(self.said("-m", MODEL, "-f", file, stdin="45"), (3, ""))
        with subprocess.Popen([*MOESAIC, "run", MODEL, "0", "-t", "1", "--raw", "-n", "2", "--temp", "0"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.read(), "12\n")  # the pipe is open all the time
            self.assertEqual(process.stderr.read(), "moesaic: note: standard input is left out: it is open, but nothing came for 5 s\n")

    def test_another_tokenizer(self):
        wordless = json.loads((pathlib.Path(MODEL) / "tokenizer.json").read_text())
        wordless["added_tokens"] = wordless["added_tokens"][:3]
        (FOLDER / "wordless.json").write_text(json.dumps(wordless))
        (FOLDER / "empty.json").write_text("{}")
        for file, words in ((FOLDER / "empty.json", "empty.json"), (FOLDER / "absent.json", "absent.json"),
                            (f"{TINY}/tokenizer.json", "has 4096 tokens, the model 320"), (FOLDER / "wordless.json", "does not speak harmony")):
            self.refused(1, words, "run", "-m", MODEL, "-p", "hi", "--tokenizer", file)
        done = self.moesaic("serve", "-m", MODEL, "--port", 0, "--tokenizer", f"{TINY}/tokenizer.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has 4096 tokens, the model 320", done.stderr)
        self.assertEqual(self.ok("run", "-m", MODEL, "-p", "0", "--raw", "-n", 2, "--temp", 0, "--tokenizer", FOLDER / "wordless.json"), "12\n")
        shutil.copytree(MODEL, FOLDER / "without")
        (FOLDER / "without/tokenizer.json").unlink()
        self.refused(1, "--tokenizer FILE", "run", FOLDER / "without", "hello")
        self.assertEqual(self.ok("run", FOLDER / "without", "hello", "--temp", 0, "--tokenizer", f"{MODEL}/tokenizer.json"), "OK!\n")

    def test_a_prompt_from_a_file_or_standard_input(self):
        prompt = FOLDER / "prompt.txt"
        prompt.write_text("12\n3")
        want = self.ok("run", "-m", MODEL, "--raw", "-p", "12\n3", "-n", 3, "--temp", 0)
        for args in (("-f", prompt), ("-p", f"@{prompt}"), ("-f", "-"), ("-p", "@-")):
            self.assertEqual(self.ok("run", "-m", MODEL, "--raw", *args, "-n", 3, "--temp", 0, stdin="12\n3"), want)
        at = self.json("run", "-m", MODEL, "--raw", "-p", "@@a", "-n", 1, "-o", "json")
        self.assertEqual(at["usage"]["prompt_tokens"], 2)
        prompt.write_bytes(b"\xef\xbb\xbf12\n3")  # with a byte order mark
        self.assertEqual(self.ok("run", "-m", MODEL, "--raw", "-f", prompt, "-n", 3, "--temp", 0), want)
        prompt.write_bytes(b"12\xff")
        self.assertRegex(self.moesaic("run", "-m", MODEL, "-f", prompt, "-n", 3).stderr, "note: byte 3 of the message is not UTF-8")
        self.refused(1, "absent.txt", "run", "-m", MODEL, "-p", "@absent.txt")
        self.refused(2, "-p|--prompt", "run", "-m", MODEL, "-p", "a", "-f", prompt)
        for args in (("-f", "/dev/zero"), ("-p", "@/dev/zero")):
            self.refused(1, "/dev/zero: more than 256 MB", "run", "-m", MODEL, *args)

    def test_stop_string(self):
        out = self.json("run", "-m", MODEL, "--raw", "-p", "0", "-n", 50, "--temp", 0, "--stop", "67", "-o", "json")
        self.assertEqual((out["text"], out["finish_reason"]), ("12345", "stop"))

    def test_reasoning(self):
        out = self.json("run", "-m", THINKER, "-p", "hello", "--temp", 0, "-o", "json")
        self.assertEqual((out["text"], out["reasoning"]), ("", "Hm"))
        self.assertNotIn("Hm", self.moesaic("run", "-m", THINKER, "-p", "hello", "--temp", 0).stderr)
        shown = self.moesaic("run", "-m", THINKER, "-p", "hello", "--temp", 0, "--show-reasoning")
        self.assertIn("Hm", shown.stderr)
        self.assertNotIn("\x1b", shown.stderr)  # no colours into a pipe

    def test_reasoning_budget(self):
        for budget, text, reasoning in ((0, "Hm", ""), (1, "", "Hm"), (-1, "", "Hm")):
            out = self.json("run", "-m", THINKER, "-p", "hello", "--temp", 0, "-o", "json", "--reasoning-budget", budget)
            self.assertEqual((out["text"], out["reasoning"]), (text, reasoning))

    def test_cut_answers(self):
        """An answer that -n cuts off is a beginning of the whole one: no words of a header, no unfinished call."""
        for model, limits, whole, calls in (
                (MODEL, range(1, 6), "OK!", []),
                (CALLER, (2, 3, 7, 8, 9, 10, 11), "", [{"recipient": "f", "arguments": "{}"}])):
            for limit in limits:
                out = self.json("run", "-m", model, "-p", "hello", "--temp", 0, "-n", limit, "-o", "json")
                ended = limit == limits[-1]
                text = whole if ended or limit == 4 else ""
                self.assertEqual((out["text"], out["tool_calls"]), (text, calls if ended else []), (model, limit))
                reason = ("tool_calls" if calls else "stop") if ended else "length"
                self.assertEqual((out["finish_reason"], len(out["tokens"])), (reason, limit), (model, limit))
        self.assertEqual(self.ok("run", "-m", MODEL, "-p", "hello", "--temp", 0, "-n", 2), "\n")

    def test_json_schema(self):
        schema = FOLDER / "schema.json"
        schema.write_text('{"properties": {"a": {"type": "integer"}, "b": {"maxLength": 3}}, "required": ["a", "b"], "x": 1}')
        for args in (("--raw", "-p", "0", "--temp", 50, "--seed", 0), ("-p", "hello", "--temp", 0)):
            done = self.moesaic("run", "-m", MODEL, *args, "--json-schema", schema, "-n", 500, "-o", "json")
            self.assertIn("schema.json: the unknown keyword x is ignored", done.stderr)
            out = json.loads(done.stdout)
            answer = json.loads(out["text"])
            self.assertEqual(([*answer], type(answer["a"]), out["finish_reason"]), (["a", "b"], int, "stop"))
            self.assertLessEqual(len(answer["b"]), 3)

    def test_a_json_schema_in_words(self):
        for schema, answer in (("{}", "."), ('\n {"const": 7}\n', "7\n")):
            self.assertRegex(self.ok("run", "-m", TINY, "-p", "a", "--json-schema", schema, "-n", 200), answer)

    def test_a_json_schema_from_a_pipe(self):
        """Such as <(jq .schema form.json) in a shell."""
        reading, writing = os.pipe()
        os.write(writing, b'{"const": 7}')
        os.close(writing)
        self.assertEqual(self.ok("run", "-m", TINY, "-p", "a", "--json-schema", f"/dev/fd/{reading}", pass_fds=[reading]), "7\n")
        os.close(reading)

    def test_seed(self):
        sample = lambda seed: self.json("run", "-m", MODEL, "--raw", "-p", "0", "-n", 40, "--temp", 20, "--seed", seed,
                                        "-o", "json")["tokens"]
        self.assertEqual(sample(1), sample(1))
        self.assertNotEqual(sample(1), sample(2))
        drawn = [self.json("run", "-m", MODEL, "--raw", "-p", "0", "-n", 40, "--temp", 20, "-o", "json", *seed) for seed in ([], ["--seed", -1])]
        self.assertNotEqual(drawn[0]["tokens"], drawn[1]["tokens"])
        self.assertEqual(sample(drawn[0]["seed"]), drawn[0]["tokens"])
        self.assertRegex(self.moesaic("run", "-m", MODEL, "-p", "hello", "-v", "--seed", 7).stderr, r" \| seed 7 \| ")

    def test_minus_one_is_as_many_as_fit(self):
        self.assertEqual(self.ok("run", MODEL, "hello", "--temp", 0, "-n", -1, "-t", -1), "OK!\n")

    def test_options_of_a_gpu_are_named_where_none_is(self):
        options = ("--gpu-memory", 4, "--experts", "auto,hot:3", "--step-limit", 5, "--portable")
        for command in (("run", "-m", MODEL, "-p", "a", "-n", 1), ("bench", "-m", MODEL, "-p", 4, "-n", 1, "-r", 1)):
            done = self.moesaic(*command, "--device", "cpu", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("moesaic: note: --gpu-memory, --experts, --portable, --step-limit: without effect on device cpu\n", done.stderr)
            for moe in (("--cpu-moe",), ("-ncmoe", 1)):
                self.assertIn("effect on device", self.moesaic(*command, "--device", "reference", *moe).stderr)
            self.assertNotIn("effect", self.moesaic(*command, "--device", "cpu", "--batch-invariant").stderr)
        for word in (("-ngl", 99), ("--n-gpu-layers=1",)):
            self.refused(2, "--n-cpu-moe", "run", "-m", MODEL, "-p", "a", *word)
        for word, ours in (("-temp=0", "--temp"), ("-temperature", "--temp"), ("-plain", "--plain"), ("-model", "--model"), ("-n-predict", "-n")):
            self.refused(2, f"{word.split('=')[0]}: use {ours}$", "run", MODEL, word, "0")
        self.ok("run", "-m", MODEL, "-n", 1, "--", "-ngl")

    def test_devices_agree(self):
        args = ("run", "-m", MODEL, "-p", "hello", "--temp", 0, "-o", "json", "--device")
        self.assertEqual(self.json(*args, "cpu")["tokens"], self.json(*args, "reference")["tokens"])


class Chat(Cli):
    def test_two_turns_over_a_pipe(self):
        self.assertEqual(self.ok("run", "-m", MODEL, "--temp", 0, stdin="hello\n\nhello again\n"), "OK!\nOK!\n")

    def test_the_second_turn_knows_the_first(self):
        out = self.ok("run", "-m", MODEL, "--temp", 0, "-o", "json", stdin="hello\nhello\n")
        first, second = map(json.loads, out.splitlines())
        self.assertEqual([first["text"], second["text"]], ["OK!", "OK!"])
        self.assertGreater(second["usage"]["prompt_tokens"], first["usage"]["total_tokens"])
        # The history has the answer in other tokens than the model ("OK", "!"): they share the prompt and little
        # more, in pages of 32 tokens.
        shared, prompt = second["usage"]["reused_tokens"], first["usage"]["prompt_tokens"]
        self.assertEqual([first["usage"]["reused_tokens"], shared % 32], [0, 0])
        self.assertIn(shared, range(prompt - 31, first["usage"]["total_tokens"]))

    def test_turns_give_what_they_give_alone(self):
        args = ("run", "-m", THINKER, "--temp", 0, "-n", 40, "-o", "json", "--raw")
        turns = [json.loads(line) for line in self.ok(*args, stdin="0\n33\n6\n").splitlines()]
        self.assertEqual([turn["usage"]["reused_tokens"] for turn in turns], [0, 32, 64])
        text = ""
        for line, turn in zip(("0", "33", "6"), turns):
            text += line
            self.assertEqual(self.json(*args, "-p", text)["tokens"], turn["tokens"])
            text += turn["text"]

    def test_raw_keeps_its_history(self):
        out = self.ok("run", "-m", MODEL, "--temp", 0, "--raw", "-n", 3, "-o", "json", stdin="0\nA\n")
        first, second = map(json.loads, out.splitlines())
        self.assertEqual([first["text"], second["text"]], ["123", "BCD"])
        self.assertEqual([first["usage"]["prompt_tokens"], second["usage"]["prompt_tokens"]], [1, 5])

    def test_a_byte_order_mark_is_no_text(self):
        out = self.ok("run", "-m", MODEL, "--temp", 0, "--raw", "-n", 3, "-o", "json", stdin="\ufeff0\n")
        self.assertEqual(json.loads(out)["usage"]["prompt_tokens"], 1)

    def test_no_input_is_no_conversation(self):
        self.assertEqual(self.ok("run", "-m", MODEL, stdin=""), "")


class Logits(Cli):
    def test_last_and_all(self):
        last = self.json("logits", "-m", MODEL, "--tokens", "1,2,3", "-o", "json")
        every = self.json("logits", "-m", MODEL, "--tokens", "1,2,3", "--all", "-o", "json")
        self.assertEqual(last["tokens"], [1, 2, 3])
        self.assertEqual([r["position"] for r in last["rows"]], [2])
        self.assertEqual([r["position"] for r in every["rows"]], [0, 1, 2])
        self.assertTrue(all(len(r["logits"]) == VOCAB for r in every["rows"]))
        self.assertEqual(last["rows"][0], every["rows"][2])

    def test_many_rows_come_in_parts(self):
        tokens = [40 + i % 80 for i in range(200)]
        rows = self.json("logits", "-m", MODEL, "--tokens", ",".join(map(str, tokens)), "--all")["rows"]
        self.assertEqual([r["position"] for r in rows], list(range(200)))
        for n in (64, 65, 130):
            alone = self.json("logits", "-m", MODEL, "--tokens", ",".join(map(str, tokens[:n])))["rows"]
            self.assertEqual(alone, [rows[n - 1]])

    def test_ids_from_a_file(self):
        path = FOLDER / "ids"
        path.write_text("[1, 2,\n3]\n")
        self.assertEqual(self.ok("logits", "-m", MODEL, "--tokens", f"@{path}"),
                         self.ok("logits", "-m", MODEL, "--tokens", "1,2,3"))

    def test_an_id_that_is_missing(self):
        for ids in ("1,,2", ",1", "1, ,2", "1,2,,"):
            self.refused(2, "one is missing at a comma", "logits", "-m", MODEL, "--tokens", ids)
        self.ok("logits", "-m", MODEL, "--tokens", "1,2,")


class Perplexity(Cli):
    def setUp(self):
        self.text = FOLDER / "text"
        self.text.write_text("".join(map(chr, range(0x20, 0x7F))) * 3)

    def test_agrees_with_logits(self):
        text = FOLDER / "short"
        text.write_text("0AxB~0")
        tokens = self.json("tokenize", "-m", MODEL, "-f", text)["tokens"]
        rows = self.json("logits", "-m", MODEL, "--tokens", ",".join(map(str, tokens)), "--all")["rows"]
        nll = 0.0
        for row, token in zip(rows, tokens[1:]):
            top = max(row["logits"])
            nll += math.log(sum(math.exp(v - top) for v in row["logits"])) + top - row["logits"][token]
        out = self.json("perplexity", "-m", MODEL, "-f", text, "-o", "json")
        self.assertEqual(out["tokens"], len(tokens) - 1)
        self.assertAlmostEqual(out["nll"], nll / (len(tokens) - 1), 4)
        self.assertAlmostEqual(out["perplexity"], math.exp(out["nll"]), 4)

    def test_windows(self):
        tokens = len(self.json("tokenize", "-m", MODEL, "-f", self.text)["tokens"])
        whole = self.json("perplexity", "-m", MODEL, "-f", self.text, "-o", "json")
        parts = self.json("perplexity", "-m", MODEL, "-f", self.text, "-o", "json", "--ctx", 50)
        self.assertEqual(whole["tokens"], tokens - 1)
        self.assertEqual(parts["tokens"], tokens - -(-tokens // 50))  # all but each window's first

    def test_stride(self):
        logits = lambda tokens: self.json("logits", "-m", MODEL, "--tokens", ",".join(map(str, tokens)), "--all")["rows"]
        text = FOLDER / "strides"
        text.write_text("0AxB~0Qrs7&1")
        tokens = self.json("tokenize", "-m", MODEL, "-f", text)["tokens"]
        nll, scored = 0.0, 1
        for begin in range(0, len(tokens), 3):
            end = min(begin + 8, len(tokens))
            for row, token in list(zip(logits(tokens[begin:end]), tokens[begin + 1:end]))[scored - begin - 1:]:
                top = max(row["logits"])
                nll += math.log(sum(math.exp(v - top) for v in row["logits"])) + top - row["logits"][token]
            scored = end
            if end == len(tokens):
                break
        out = self.json("perplexity", "-m", MODEL, "-f", text, "-o", "json", "--ctx", 8, "--stride", 3)
        self.assertEqual(out["tokens"], len(tokens) - 1)
        self.assertAlmostEqual(out["nll"], nll / (len(tokens) - 1), 4)

    def test_the_default_window_fits_the_model(self):
        folder = FOLDER / "short-context"
        shutil.copytree(MODEL, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 160}))
        out = self.json("perplexity", "-m", folder, "-f", self.text, "-o", "json")
        self.assertEqual(out, self.json("perplexity", "-m", folder, "-f", self.text, "-o", "json", "--ctx", 160))

    def test_text_form(self):
        self.assertIn("perplexity", self.ok("perplexity", "-m", MODEL, "-f", self.text))


class Text(Cli):
    def test_round_trip(self):
        text = "hello  wörld 语言 \U0001f600\n\t<|start|>"
        tokens = self.json("tokenize", "-m", MODEL, "-p", text)["tokens"]
        self.assertEqual(tokens[0], IDS["hello"])
        self.assertNotIn(IDS["<|start|>"], tokens)
        ids = ",".join(map(str, tokens))
        self.assertEqual(self.ok("detokenize", "-m", MODEL, "--tokens", ids), text + "\n")
        self.assertEqual(self.ok("detokenize", "-m", MODEL, "--tokens", "@-", stdin=ids), text + "\n")

    def test_forms(self):
        ids = self.ok("tokenize", "-m", MODEL, "-p", "hello", "-o", "text").strip()
        self.assertEqual(ids, str(IDS["hello"]))
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "-p", "hello"),
                         self.ok("tokenize", "-m", MODEL, "-p", "hello", "-o", "json"))
        self.assertEqual(self.json("detokenize", "-m", MODEL, "--tokens", "104,105", "-o", "json"), {"text": "hi"})
        path = FOLDER / "one.json"
        path.write_text('[{"role": "user", "content": "hello"}]')
        self.assertEqual(self.ok("render", "-m", MODEL, "-f", path, "-o", "text"),
                         self.json("render", "-m", MODEL, "-f", path, "-o", "json")["text"] + "\n")

    def test_text_from_standard_input(self):
        messages = '[{"role": "user", "content": "hello"}]'
        path = FOLDER / "input"
        for command, text in (("tokenize", "hello"), ("render", messages)):
            path.write_text(text)
            self.assertEqual(self.ok(command, "-m", MODEL, "-f", "-", stdin=text), self.ok(command, "-m", MODEL, "-f", path))
        path.write_text("12345")
        self.assertEqual(self.ok("perplexity", "-m", MODEL, "-f", "-", stdin="12345"), self.ok("perplexity", "-m", MODEL, "-f", path))

    def test_what_is_not_utf8_is_named(self):
        path = FOLDER / "bytes.txt"
        path.write_bytes(b"12\xff")
        for command in ("tokenize", "perplexity"):
            self.assertRegex(self.moesaic(command, "-m", MODEL, "-f", path).stderr, "note: byte 3 of the text is not UTF-8; what is not is read as U.FFFD")
        self.assertIn("byte 1 of", self.moesaic("tokenize", "-m", MODEL, "-p", "\udcff").stderr)

    def test_special(self):
        tokens = self.json("tokenize", "-m", MODEL, "-p", "<|start|>hello", "--special")["tokens"]
        self.assertEqual(tokens, [IDS["<|start|>"], IDS["hello"]])

    def test_empty_text_is_no_token(self):
        self.assertEqual(self.json("tokenize", "-m", MODEL, "-p", "")["tokens"], [])

    def test_tokenizer_file(self):
        self.assertEqual(self.ok("tokenize", "-m", pathlib.Path(MODEL) / "tokenizer.json", "-p", "hello"),
                         self.ok("tokenize", "-m", MODEL, "-p", "hello"))

    def test_render(self):
        path = FOLDER / "messages.json"
        path.write_text(json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]))
        out = self.json("render", "-m", MODEL, "-f", path)
        self.assertEqual(set(out), {"text", "tokens"})
        self.assertTrue(out["text"].endswith("<|start|>user<|message|>hello<|end|><|start|>assistant"), out["text"])
        self.assertIn("Be brief.", out["text"])
        self.assertIn(IDS["hello"], out["tokens"])


class Inspect(Cli):
    def test_json_and_text(self):
        out = self.json("inspect", MODEL, "-o", "json")
        self.assertEqual((out["vocab"], out["layers"], out["kind"]), (VOCAB, 2, "safetensors"))
        self.assertIn("lm_head.weight", [t["name"] for t in out["tensors"]])
        self.assertGreater(out["weight_bytes"], out["bytes_per_token"])
        for name in ("weight_bytes", "bytes_per_token", "kv_bytes_per_token_and_layer", "memory_bytes"):
            self.assertIsInstance(out[name], int, name)
        self.assertIn("vocabulary        320", self.ok("inspect", MODEL))
        self.assertIn("lm_head.weight", self.ok("inspect", MODEL, "--tensors"))
        code = self.ok("--version").splitlines()[1].removeprefix("GPU code: ")
        self.assertIn(f"\nGPU code          {code}\n", self.ok("inspect", MODEL))
        self.assertEqual(out["gpu_code"], code.replace("none", ""))

    def test_experts_that_have_no_room(self):
        """A file with holes, of 114 GB."""
        experts, width, folder = 4096, 1 << 17, pathlib.Path(shutil.copytree(MODEL, FOLDER / "large"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "num_local_experts": experts, "intermediate_size": width}))
        head = (folder / "model.safetensors").read_bytes()
        tensors, at = json.loads(head[8:8 + int.from_bytes(head[:8], "little")]), 0
        for name, t in tensors.items():
            shape = t["shape"]
            if "experts" in name or "router" in name:
                shape[0] = experts
            if "gate_up" in name:
                shape[1] = 2 * width
            elif "down_proj_blocks" in name or "down_proj_scales" in name:
                shape[2] = width // 32
            size = math.prod(shape) * {"U8": 1, "BF16": 2}[t["dtype"]]
            t["data_offsets"], at = [at, at + size], at + size
        text = json.dumps(tensors).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + at)
        out = self.ok("inspect", folder)
        if "the weights fit" in out:
            self.skipTest("a machine with much memory")
        self.assertRegex(out, r"GB too little memory for the weights; experts that have no room are read from the file")

    @true_shapes
    def test_dummy(self):
        self.assertEqual(self.json("inspect", "dummy:gpt-oss-20b,layers=2", "-o", "json")["vocab"], 201088)


class Verify(Cli):
    def quick(self, *args):
        out = self.ok("verify", "--quick", "-m", TINY, "--tokens", 40, *args)
        self.assertRegex(out, r"\n(\d+) of \1 cases agree")
        self.assertNotIn("FAIL", out)

    def test_quick(self):
        self.quick()

    @takes_minutes
    def test_quick_with_ranks(self):
        self.quick("--tp", 2, "-t", 2)

    @takes_minutes
    def test_report(self):
        """Every part runs and passes, the text is in the file as well, and nothing private is in it."""
        home = FOLDER / "home-of-somebody"
        shutil.copytree(TINY, home / "a\nmodel")
        text = home / "report.txt"
        out = self.ok("verify", "--report", text, "--quick", "-m", home / "a\nmodel", "--device", "cpu",
                      env={**os.environ, "HOME": str(home), "USER": "somebody", "MOESAIC_PDL": "0"})
        self.assertEqual(text.read_text(), out)
        self.assertEqual(self.moesaic("verify", "--report", text, "--device", "tpu").stdout, text.read_text())  # written anew
        self.assertNotIn("somebody", out)
        for line in (r"program +moesaic \d", r"options +--model=\S*~/a\W+model", r"environment +MOESAIC_PDL=0", "device: ok",
                     r"operations, small shapes: ok.*\n    (\d+) of \1 cases", "tiny as a whole: ok",
                     r"tiny answers 47 x 36: ok.*\n    47 x 36 = 1692", "read bandwidth: ", r"\| tg8 \| 0 \| 32 \|",
                     r"\| pp128 \| 0 \| 1 \|", r"\| tg4 \| 1024 \| 1 \|", r"all 8 parts passed\n\Z"):
            self.assertRegex(out, line)

    def test_report_of_what_fails(self):
        done = self.moesaic("verify", "--report", "--quick", "--device", "tpu")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"device: exit status 2(.*\n)+.*unknown device 'tpu'")
        self.assertIn("prompts: not run: the device cannot be used", done.stdout)
        self.assertRegex(done.stdout, r"1 of 1 parts failed: device\n\Z")
        self.refused(2, "--tokens", "verify", "--report", "--tokens", 3)
        self.refused(2, "reference", "verify", "--report", "--device", "reference")
        self.refused(2, "--lora needs a --model", "verify", "--report", "--lora", "x")
        self.refused(1, "cannot write", "verify", "--report", FOLDER / "absent" / "report.txt")
        self.assertIn("/dev/full: No space left on device", self.moesaic("verify", "--report", "/dev/full", "--device", "tpu").stderr)
        model = pathlib.Path(MODEL, "config.json")
        before = model.read_text()
        self.refused(1, "is no report", "verify", "--report", model)
        self.assertEqual(model.read_text(), before)


class Progress(Cli):
    """What a long command is at: on standard error, in a line of its own, and only where somebody watches."""

    def watched(self, *args):
        """What a command writes to standard error where that is a terminal."""
        master, slave = pty.openpty()
        with subprocess.Popen([*MOESAIC, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave) as process:
            os.close(slave)
            self.addCleanup(os.close, master)
            text = b""
            try:
                while part := os.read(master, 4096):
                    text += part
            except OSError:     # the terminal's other end has been closed
                pass
            self.assertEqual(process.wait(TIMEOUT), 0)
        return text.decode()

    def check(self, shown, *args):
        text = self.watched(*args)
        self.assertRegex(text, shown)
        self.assertRegex(text, r"\r *\r\Z")    # nothing is left of it
        self.assertEqual(self.moesaic(*args).stderr, "")

    def test_bench(self):
        self.check(r"\rtg4 at depth 0, batch 2: repetition 2 of 2", "bench", "-m", MODEL, "-p", 0, "-n", 4, "-b", 2, "-r", 2, "-t", 1)
        self.check(r"\rtg4 at depth 0, batch 1: repetition 2 of 2", "bench", "-m", MODEL, "-n", 4, "-r", 2, "-t", 1, "--speculative",
                   "ngram", "--acceptance", "1")

    def test_perplexity(self):
        text = FOLDER / "watched.txt"
        text.write_text("x " * 400)
        self.check(r"\r\d+ of \d+ tokens, perplexity [\d.]+", "perplexity", "-m", MODEL, "-f", text, "-t", 1)

    def test_serve(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        with subprocess.Popen([*MOESAIC, "serve", "-m", MODEL, "--ctx", "64", "-t", "1", "--port", "0"], stdout=subprocess.DEVNULL,
                              stderr=slave) as process:
            os.close(slave)
            text = b""
            while b'"event":"ready"' not in text:
                text += os.read(master, 4096)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(TIMEOUT), 0)
        self.assertRegex(text.decode(), r"\rloading 100%\r *\r")
        self.assertNotIn('"event":"loading"', text.decode())

    def test_convert(self):
        args = "convert", MODEL, FOLDER / "watched.gguf", "--force"
        note = "convert: note: the source has no chat template: [^\r\n]*"
        self.assertRegex(self.watched(*args), rf"\rwriting: \d+ of \d+ tensors[^\n]*\r *\r{note}\r\n[^\r\n]*\r\n\Z")
        self.assertRegex(self.moesaic(*args).stderr, rf"\A{note}\n\Z")


class Profile(Cli):
    def test_table(self):
        out = self.ok("profile", "-m", MODEL, "-n", 4, "-d", 200)
        for op in ("qkv", "attend", "project", "moe", "unembed", "sum", "step"):
            self.assertRegex(out, rf"(?m)^{op} +\d")
        bars = re.findall(r"(?m)^(\w+) .*  (#+)$", out)
        self.assertTrue({op for op, _ in bars} <= {"embed", "qkv", "attend", "project", "moe", "unembed"}, bars)
        self.assertAlmostEqual(sum(len(bar) for _, bar in bars), 20, delta=4)

    @true_shapes
    def test_every_step_is_at_the_depth_of_the_heading(self):
        """So attention reads the same in all of them, however many they are."""
        def read(*args):
            out = self.ok("profile", "-m", TINY, *args)
            return re.search(r"(?m)^attend +\d+ +\S+ +\S+ +(\S+)", out)[1], re.search(r", (\d+) steps", out)[1]
        for args in (("-b", 64, "-d", 2000), ("-b", 512, "-d", 0)):
            one, eight = read(*args, "-n", 1), read(*args, "-n", 8)
            self.assertGreater(float(one[0]), 0)
            self.assertEqual(one[0], eight[0])
            self.assertEqual((one[1], eight[1]), ("1", "8"))

    def trace(self, *args):
        """The names' events and the operations of `profile -o trace`."""
        trace = self.json("profile", *args, "-o", "trace")
        events = trace["traceEvents"]
        return trace["otherData"], [e for e in events if e["ph"] == "M"], [e for e in events if e["ph"] == "X"]

    def test_a_trace_has_a_step_in_order(self):
        about, names, ops = self.trace("-m", MODEL, "-n", 3, "-b", 4, "-d", 9)
        self.assertEqual((about["model"], about["rows"], about["depth"], about["steps"]), (MODEL, 4, 9, 3))
        layers = [(name, layer) for layer in range(2) for name in ("qkv", "attend", "project", "moe")]
        self.assertEqual([(op["name"], op["args"].get("layer")) for op in ops],
                         [("embed", None), *layers, ("unembed", None)])
        end = 0
        for op in ops:
            self.assertGreaterEqual(op["ts"], end - 1e-3, op)  # the clock has nanoseconds
            end = op["ts"] + op["dur"]
            self.assertLess(end, 60e6)
            args = op["args"]
            self.assertAlmostEqual(args["gb_s"], args["bytes"] / op["dur"] / 1e3, delta=1e-6 * args["gb_s"])
            least = max(args["bytes"] / about["ceiling_gb_s"] / 1e3, args["flops"] / about["peak_tflop_s"] / 1e6)
            self.assertAlmostEqual(args["roofline_us"], least, places=6)
            self.assertAlmostEqual(args["roofline_share"], args["roofline_us"] / op["dur"], places=6)
        self.assertEqual(ops[0]["ts"], 0)
        self.assertEqual({(op["pid"], op["tid"]) for op in ops}, {(names[1]["pid"], names[1]["tid"])})
        self.assertEqual([name["name"] for name in names], ["process_name", "thread_name"])
        self.assertIn("a step of 4 tokens at depth 9", names[0]["args"]["name"])

    def test_a_trace_has_all_ranks(self):
        _, names, ops = self.trace("-m", TINY, "-n", 1, "--tp", 2, "-t", 2)
        self.assertEqual([name["args"]["name"] for name in names[1:]], ["rank 0", "rank 1"])
        by_rank = [[op["name"] for op in ops if op["tid"] == name["tid"]] for name in names[1:]]
        self.assertEqual(by_rank[0], by_rank[1])
        self.assertEqual(min(op["ts"] for op in ops), 0)

    def test_a_trace_of_a_model_with_a_hostile_name(self):
        folder = FOLDER / 'a"b\\c\nd<x>\udcff'
        shutil.copytree(MODEL, folder)
        about, names, _ = self.trace("-m", folder, "-n", 1)
        self.assertEqual(about["model"], str(folder).replace("\udcff", "\ufffd"))
        self.assertIn(about["model"], names[0]["args"]["name"])

    def test_a_trace_has_no_drafts(self):
        self.refused(2, ["--speculative", "-o is table"], "profile", "-m", MODEL, "-o", "trace", "--speculative", "ngram")
        self.refused(2, "table, trace", "profile", "-m", MODEL, "-o", "html")

    def test_drafts_have_their_own_ops(self):
        out = self.ok("profile", "-m", MODEL, "-n", 2, "-d", 40, "--speculative", "draft:" + MODEL, "--draft-tokens", 2)
        for op in ("step", "draft", "verify", "roll-back"):
            self.assertRegex(out, rf"(?m)^{op} +1 +\d")


class Bench(Cli):
    FIELDS = {"model", "device", "threads", "test", "depth", "batch", "reps", "tok_s", "tok_s_min", "tok_s_max",
              "bytes_per_token", "gb_s", "ceiling_gb_s", "peak_tflop_s", "share", "reads"}
    ARGS = ("bench", "-m", MODEL, "-p", "8,40", "-n", "4", "-d", "0,130", "-r", 2)

    def test_json(self):
        lines = self.json(*self.ARGS, "-o", "json")
        self.assertEqual([(l["test"], l["depth"], l["batch"]) for l in lines],
                         [(t, d, 1) for d in (0, 130) for t in ("pp8", "pp40", "tg4")])
        tg = {line["depth"]: line["bytes_per_token"] for line in lines if line["test"] == "tg4"}
        # int8 K, 16-bit V: the window layer reads 128 tokens, the other all.
        self.assertAlmostEqual(tg[130] - tg[0], (128 - 2.5 + 130) * 3 * KV_HEADS * HEAD_DIM, delta=1)
        for line in lines:
            self.assertEqual(set(line), self.FIELDS)
            self.assertEqual((line["model"], line["reps"]), (MODEL, 2))
            self.assertTrue(0 < line["tok_s_min"] <= line["tok_s"] <= line["tok_s_max"], line)
            self.assertGreater(line["ceiling_gb_s"], 0)
            self.assertAlmostEqual(line["gb_s"], line["tok_s"] * line["bytes_per_token"] / 1e9, 6)
            self.assertGreater(line["peak_tflop_s"], 0)
            self.assertGreaterEqual(line["share"], line["gb_s"] / line["ceiling_gb_s"] - 1e-6)
            self.assertTrue(0 < line["share"] <= 1, line)

    def test_json_of_a_name_that_is_not_utf8(self):
        folder = FOLDER / "a\udcffb"
        shutil.copytree(MODEL, folder)
        small = ("-m", folder, "-n", 2, "-r", 1, "-o", "json")
        for args in (("-p", 0), ("--speculative", "ngram", "--acceptance", "0.5")):
            self.assertEqual(self.json("bench", *small, *args)[0]["model"], str(folder).replace("\udcff", "\ufffd"))

    def test_one_bandwidth_for_a_row(self):
        """What a share is of stands beside it, and nothing else is called the bandwidth."""
        out = self.ok("bench", "-m", TINY, "-p", 8, "-n", 4, "-d", "0,130", "-r", 2)
        self.assertNotIn("GB/s", out.split("|")[0])
        rows = [line for line in out.splitlines() if line.startswith("| tg")]
        self.assertEqual(len(rows), 2)
        for row in rows:
            _, _, _, _, _, _, gbytes, gb_s, share, _ = row.split("|")
            percent, ceiling, operations = re.fullmatch(r" (\d+)% of ([\d.]+)( GB/s and .* TFLOP/s)? ", share).groups()
            if operations is None:
                self.assertAlmostEqual(float(gb_s), float(ceiling) * int(percent) / 100, delta=0.01 * float(ceiling) + 0.1)

    def test_batches(self):
        lines = self.json("bench", "-m", MODEL, "-p", 40, "-n", 4, "-b", "1,3", "-d", 140, "-r", 2, "-o", "json")
        self.assertEqual([(l["test"], l["batch"]) for l in lines], [("pp40", 1), ("tg4", 1), ("pp40", 3), ("tg4", 3)])
        alone, together = lines[1], lines[3]
        # Projections, router and head are read once for all three, and no expert more than once.
        self.assertLess(together["bytes_per_token"], alone["bytes_per_token"])
        self.assertGreater(together["bytes_per_token"], alone["bytes_per_token"] / 3)
        self.assertAlmostEqual(together["gb_s"], together["tok_s"] * together["bytes_per_token"] / 1e9, 6)

    def test_json_comes_as_it_is_measured(self):
        with subprocess.Popen([*MOESAIC, "bench", "-m", TINY, "-p", "0", "-n", "4,8000", "-r", "100", "-o", "json"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True) as process:
            text = ""
            while not text.endswith("\n  }") and (part := process.stdout.read(1)):
                text += part
            process.kill()
        self.assertEqual([line["test"] for line in json.loads(text + "]")], ["tg4"])

    def test_a_page_with_charts(self):
        other = FOLDER / "other <run>.json"
        other.write_text(self.ok("bench", "-m", MODEL, "-p", 0, "-n", 4, "-b", "1,2", "-r", 1, "-o", "json"))
        page = self.ok("bench", "-m", MODEL, "-p", 8, "-n", 4, "-b", "1,2", "-r", 1, "-o", "html", "--beside", other)
        self.assertTrue(page.startswith("<!doctype html>") and page.endswith("</html>\n"))
        self.assertIn("other &lt;run&gt;.json", page)
        self.assertEqual(page.count("<circle"), 4)
        self.assertEqual(page.count("<tr>"), 7)

    @true_shapes
    def test_drafts_are_accepted_as_asked_for(self):
        for drafter in ("ngram", "draft:" + MODEL, "eagle3:dummy,intermediate=64,draft_vocab=32"):
            for chances, length in (("1,1,1", 4), ("1,1,0", 3), ("0,1", 1)):
                args = ("--speculative", drafter, "--acceptance", chances, "-n", 24, "-d", 40, "-b", "1,2", "-r", 2)
                for line in self.json("bench", "-m", MODEL, *args, "-o", "json"):
                    self.assertEqual(line["tokens_per_step"], length)
                    self.assertTrue(0 < line["tok_s_min"] <= line["tok_s"] <= line["tok_s_max"], line)
                    self.assertGreater(line["tok_s_without"], 0)
        self.refused(2, "--acceptance", "bench", "-m", MODEL, "--speculative", "ngram")
        self.refused(2, "-o html", "bench", "-m", MODEL, "--beside", "run.json")
        self.refused(1, "no_such.json", "bench", "-m", MODEL, "-o", "html", "--beside", "no_such.json")
        self.refused(2, "--moe", "bench", "-m", MODEL, "-o", "html", "--moe", 1)
        for option, what in (("size=3", "cannot read 'size=3'"), ("intermediate=x", "cannot read"),
                             ("intermediate=33", "intermediate_size 33"), ("draft_vocab=0", "draft_vocab_size is 0"),
                             ("intermediate=1048576", "too large")):
            self.refused(1, what, "bench", "-m", MODEL, "--speculative", "eagle3:dummy," + option, "--acceptance", 0)
        self.refused(2, "--acceptance", "bench", "-m", MODEL, "--speculative", "ngram", "--acceptance", "0.5,nan")
        self.refused(2, "--speculative", "bench", "-m", MODEL, "--acceptance", "0.5")

    def test_a_context_is_computed_once(self):
        def seconds(reps):  # processor time: others may keep the processors busy
            usage = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
            start = usage()
            self.ok("bench", "-m", MODEL, "-p", 0, "-n", 1, "-d", 4000, "-r", reps)
            return usage() - start
        self.assertLess(seconds(60), 8 * seconds(1))

    def test_delay_is_a_rest_before_each_test(self):
        start = time.monotonic()
        self.ok("bench", "-m", MODEL, "-p", 8, "-n", 1, "-r", 1, "--delay", 1)
        self.assertGreater(time.monotonic() - start, 2)

    def test_bytes_follow_the_formats_in_memory(self):
        read = lambda dense: self.json("bench", "-m", MODEL, "-p", 0, "-n", 2, "-r", 1, "-o", "json", "--dense",
                                       dense)[0]["bytes_per_token"]
        self.assertLess(read("q8_0"), read("bf16"))

    def test_says_how_weights_are_read(self):
        args = ("bench", "-m", MODEL, "-p", 0, "-n", 1, "-r", 1)
        for asked, words in (("auto", r"\(not measured: the experts fit the caches\)"), ("none", r"no prefetch, .*\(as asked for\)"),
                             ("t1:512", r"prefetch T1 at 512 bytes, .*\(as asked for\)")):
            self.assertRegex(self.ok(*args, "--cpu-prefetch", asked), rf"(?m)^weights are read with .*{words}$")
            self.assertRegex(self.json(*args, "--cpu-prefetch", asked, "-o", "json")[0]["reads"], words)
        self.assertNotIn("weights are read", self.ok(*args, "--device", "reference"))

    def test_csv_has_the_same_columns(self):
        rows = list(csv.reader(self.ok(*self.ARGS, "-o", "csv").splitlines()))
        self.assertEqual(set(rows[0]), self.FIELDS)
        self.assertEqual({len(row) for row in rows}, {len(self.FIELDS)})
        self.assertEqual(len(rows), 7)

    def test_names_that_are_no_utf8(self):
        folder = FOLDER / os.fsdecode(b'a"b,<i>\xff')
        folder.symlink_to(MODEL)
        args = ("bench", "-m", folder, "-p", 8, "-n", 0, "-r", 1, "-o")
        name = str(folder).encode(errors="replace").decode().replace("?", "\ufffd")
        self.assertEqual(list(csv.reader(self.ok(*args, "csv").splitlines()))[1][0], name)
        self.assertEqual(self.json(*args, "json")[0]["model"], name)
        self.assertIn("a&quot;b,&lt;i&gt;\ufffd on", self.ok(*args, "html"))

    def test_table(self):
        self.assertRegex(self.ok(*self.ARGS), r"\n\| tg4 \| 130 \|")


class Tune(Cli):
    def tune(self, *args, folder=None):
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder or FOLDER / "cache")}
        return self.ok("tune", "-m", MODEL, "--device", "cpu", *args, env=environment)

    def test_table(self):
        out = self.tune("-t", 1)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")]
        self.assertEqual(rows[0], ["setting", "value", "best", "median", ""])
        for setting in ("prefetch, experts", "prefetch, dense", "runs"):
            lines = [row for row in rows if row[0] == setting]
            self.assertGreater(len(lines), 5)
            self.assertEqual(len({row[1] for row in lines}), len(lines))
            self.assertEqual([row[4] for row in lines if row[4]], ["chosen"])
            for row in lines:
                self.assertGreaterEqual(float(row[2]), float(row[3]), row)
        chosen = next(row[1] for row in rows if row[0] == "prefetch, experts" and row[4])
        words = "no prefetch" if chosen == "none" else f"prefetch {chosen.split(':')[0].upper()} at "
        self.assertRegex(out, rf"(?m)^{words}.* \(measured now\); the read bandwidth of the machine is \d+\.\d\d GB/s$")

    def test_what_fits_the_caches_is_not_kept(self):
        folder = FOLDER / "tuning"
        self.assertRegex(self.tune("-t", 2, folder=folder), r"(?m)^not written: ")
        self.assertFalse(folder.exists())

    def test_a_folder_is_not_needed(self):
        self.assertIn("not written", self.tune("-t", 1, folder="/proc/none"))

    def test_no_choice_changes_a_result(self):
        args = ("logits", "-m", MODEL, "--tokens", ",".join(str(40 + i % 80) for i in range(20)), "--all")
        want = self.ok(*args, "-t", 1)
        for asked in ("none", "t0:64", "t0:1024", "t1:4096", "nta:65536"):
            for threads in (1, 3):
                self.assertEqual(self.ok(*args, "--cpu-prefetch", asked, "-t", threads), want, asked)


class Plan(Cli):
    def lines(self, *args):
        """The machine's lines by their names."""
        head = self.ok("plan", "-m", MODEL, "--device", "cpu", "--tokens", 1, *args).split("\n\n")[0]
        return {line[:14].strip(): line[14:] for line in head.splitlines()}

    def test_says_what_was_found(self):
        lines = self.lines()
        self.assertEqual(list(lines), ["CPU", "kernels", "cores", "NUMA nodes", "caches", "cgroup quota", "threads", "pinned",
                                       "huge pages"])
        self.assertIn(f"{len(os.sched_getaffinity(0))} of ", lines["cores"])

    def test_threads_as_asked_for(self):
        self.assertRegex(self.lines("-t", 3)["threads"], r"^3 \(as asked for by --threads\)")

    def test_affinity_is_respected(self):
        cpu = max(os.sched_getaffinity(0))
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {cpu})  # holds for this process, and so for the one it starts
            lines = self.lines()
        finally:
            os.sched_setaffinity(0, before)
        self.assertIn(f"CPUs usable ({cpu})", lines["cores"])
        self.assertTrue(lines["threads"].startswith("1 ("), lines)

    @true_shapes
    def test_a_gpu_that_is_not_here_is_named(self):
        """Without --device-model, what is here is planned for and measured."""
        here = self.ok("plan", "-m", MODEL, "--device", "auto", "--tokens", 1)
        self.assertRegex(here, r"(?m)^.* on (cpu|cuda).*: \d+ GB/s measured")
        self.assertNotIn("H200", here)
        for model, args, name in (("h200", [], "H200"), ("h200", ["--moe-path", "w4a8"], "H200"),
                                  ("h200", ["--moe-path", "fp8"], "H200"), ("rtx-pro-6000", ["--moe-path", "w4a8"], "RTX PRO 6000")):
            out = self.ok("plan", "-m", "dummy:gpt-oss-20b", "--device-model", model, "--tokens", "1,2048", *args)
            self.assertIn(f"on an NVIDIA {name} as its data sheet has it; nothing was measured", out.splitlines()[0])
            self.assertEqual(out.count("experts of a layer"), 2)
        self.assertIn("a projection", self.ok("plan", "-m", "dummy:gpt-oss-20b", "--device-model", "gb10").splitlines()[0])
        self.refused(2, "--tokens 64: the projection is for decoding", "plan", "-m", "dummy:gpt-oss-20b", "--device-model", "gb10",
                     "--tokens", "1,64")
        self.refused(2, "Hopper alone", "plan", "-m", "dummy:gpt-oss-20b", "--device-model", "gb10", "--moe-path", "fp8")
        self.refused(2, "gpt-oss's sizes", "plan", "-m", MODEL, "--device-model", "h200", "--moe-path", "fp8")
        self.refused(2, "Ada and Hopper have", "bench", "-m", MODEL, "--device", "cpu", "--moe-path", "fp8")

    @true_shapes
    def test_ranks_have_parts_and_are_projected(self):
        lines = self.ok("plan", "-m", "dummy:gpt-oss-120b", "--device-model", "h200", "--tp", 4).splitlines()
        ranks = [[float(cell) for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| [0-3] \|", line) and line.count("|") == 9]
        self.assertEqual([rank[:2] for rank in ranks], [[0, 2], [1, 2], [2, 2], [3, 2]])
        one = self.ok("plan", "-m", "dummy:gpt-oss-120b", "--device-model", "h200", "--tp", 2)
        self.assertAlmostEqual(sum(rank[2] for rank in ranks), sum(
            float(line.split("|")[3]) for line in one.splitlines() if re.match(r"\| [01] \|", line) and line.count("|") == 9), delta=1)
        self.assertTrue(any(line.startswith("projection for 4 H200") and "nothing was measured" in line for line in lines))
        self.assertIn("145 exchanges a step", "\n".join(lines))
        here = self.ok("plan", "-m", MODEL, "--device", "cpu", "--tp", 2, "--tokens", 1)
        self.assertIn("on 2 ranks, each cpu", here)
        self.assertIn("9 exchanges a step", here)
        self.ok("plan", "-m", "dummy:gpt-oss-120b", "--device-model", "h200", "--tp", 2, "--tokens", 1)
        for args, message in ((["--device-model", "gb10"], "--device-model h200"), (["--device-model", "h200", "--tokens", 2], "--tokens"),
                              (["--device-model", "h200", "--dense", "mxfp8"], "--dense")):
            self.refused(2, message, "plan", "-m", "dummy:gpt-oss-20b", "--tp", 2, *args)
        self.refused(2, "--tp 3: the model has 2 KV heads", "plan", "-m", MODEL, "--device", "cpu", "--tp", 3)
        for wrong in (9, 0, -1, "most"):
            self.refused(2, "is not a whole number from 1 to 8, auto or numa", "plan", "-m", MODEL, f"--tp={wrong}")

    @true_shapes
    def test_ranks_are_compared_with_replicas(self):
        out = self.ok("plan", "-m", "dummy:gpt-oss-120b,dense=bf16", "--device-model", "h200", "--tp", 2)
        rows = [[float(cell) for cell in line.strip("|").split("|")] for line in out.splitlines()
                if re.match(r"\| \d+ \| \d+ \| \d+ \| \d+ \|", line) and line.count("|") == 6]
        self.assertEqual([row[0] for row in rows], [2**i for i in range(11)])
        for sequences, one, ranks, replicas, ratio in rows:
            self.assertAlmostEqual(ratio, ranks / replicas, delta=0.02)
        self.assertGreater(rows[0][4], 1)
        self.assertRegex(out, r"2 ranks decode more than 2 replicas: at 1 and from 32 to 256 sequences")

    def test_the_number_of_ranks_is_chosen_with_a_reason(self):
        def note(*args):
            done = self.moesaic("plan", "-m", MODEL, "--tokens", 1, *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stderr
        self.assertIn("one rank: those of a host share its memory", note("--device", "cpu", "--tp", "auto"))
        self.assertRegex(note("--device", "cpu", "--tp", "numa"), r"one rank: there is one NUMA node|ranks, one for each NUMA node")
        for message, *args in (("give a number", "--device-model", "h200", "--tp", "auto"),
                               ("leave out --cpu-pin off", "--device", "cpu", "--tp", "numa", "--cpu-pin", "off")):
            self.refused(2, message, "plan", "-m", MODEL, *args)
        self.refused(2, "give a number", "verify", "-m", MODEL, "--tp", "auto")

    def test_pinning_is_auto_or_off(self):
        self.lines("--cpu-pin", "off")
        self.refused(2, "--cpu-pin", "plan", "-m", "absent", "--cpu-pin", "on")


class Help(Cli):
    def test_commands_have_examples_of_their_own_and_rare_options_apart(self):
        names = re.findall(r"^  ([a-z-]+) ", self.ok("--help").split("Subcommands:")[1].split("Examples:")[0], re.MULTILINE)
        self.assertGreater(len(names), 14)
        for name in names:
            short, all_of_them = self.ok(name, "--help"), self.ok(name, "--help-all")
            self.assertNotRegex(short, r"(?<![/:])gpt-oss-\d+b(?![.\w-])")  # `pull` gives no model this name
            self.assertRegex(short, rf"Examples?:\s+moesaic {name} |Examples?:(.|\n)* moesaic {name} ")
            self.assertNotIn("Rare options", short)
            self.assertNotIn("{false}", all_of_them)
            if "Rare options" in all_of_them:
                self.assertLess(len(short), len(all_of_them))
                more = int(re.search(r"--help-all has (\d+) more options", short)[1])
                rare = all_of_them.split("Rare options:")[1].split("\n\n")[0]
                self.assertEqual(len(re.findall(r"^  -", rare, re.MULTILINE)), more)
        self.assertLess(len(self.ok("run", "--help").splitlines()), 95)

    def test_every_command_is_listed_and_fits_80_columns(self):
        listed = self.ok("--help").split("Subcommands:")[1].split("Examples:")[0]
        names = set(re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE))
        page = (pathlib.Path(__file__).resolve().parents[2] / "apps/program.cpp").read_text()
        added = re.findall(r"add_(\w+)", re.search(r"kCommands\[\].*?};", page, re.DOTALL)[0])
        self.assertEqual(names, {name.replace("_", "-") for name in added})
        for words in ([], *([name] for name in names)):
            for option in ("--help", "--help-all")[:1 + len(words)]:
                for line in self.ok(*words, option).splitlines():
                    self.assertLessEqual(len(line), 80, f"{words} {option}: {line}")

    def test_completions_offer_models_and_devices(self):
        self.assertIn("tiny", self.ok("list", "-o", "names", cwd=FOLDER).splitlines())
        for shell, words in (("bash", ["-m|--model) models=yes", "--device) choices='auto cpu cuda reference'"]),
                             ("zsh", [":model:_moesaic_models", "(auto cpu cuda reference)", ":MODEL:_moesaic_models"]),
                             ("fish", ["-l model -r -a '(moesaic list -o names", "-l device -x -a 'auto cpu cuda reference'"])):
            script = self.ok("completion", shell)
            for word in words:
                self.assertIn(word, script)

    def test_did_you_mean(self):
        self.refused(2, "did you mean serve", "sevre")
        self.refused(2, "did you mean --temp\\?.*moesaic run --help", "run", "-m", MODEL, "--tem", "0")
        self.refused(2, "unknown option --max-tokns; did you mean --max-tokens", "run", "-m", MODEL, "--max-tokns=5")
        self.assertNotIn("did you mean", self.moesaic("frobnicate").stderr)


class Serve(Cli):
    def test_every_option_is_documented(self):
        options = re.findall(r"^  (?:-\w,)?(--[\w-]+)", self.ok("serve", "--help-all"), re.MULTILINE)
        self.assertGreater(len(options), 20)
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/user/server.md").read_text()
        man = self.ok("man").replace("\\-", "-")
        for option in set(options) - {"--help", "--help-all"}:
            self.assertIn(f"`{option}`", page)
            self.assertRegex(man, rf"(?m)^\.B .*{option}(,| |$)")


class Convert(Cli):
    def test_there_and_back(self):
        gguf, folder = FOLDER / "there.gguf", FOLDER / "back"
        self.ok("convert", MODEL, gguf)
        self.ok("convert", gguf, folder)
        logits = lambda model: self.json("logits", "-m", model, "--tokens", "72,105,300,7,256", "--all")["rows"]
        self.assertEqual(logits(gguf), logits(MODEL))
        self.assertEqual(logits(folder), logits(MODEL))
        text = self.json("tokenize", "-m", gguf, "-p", "hello world")
        self.assertEqual(text, self.json("tokenize", "-m", MODEL, "-p", "hello world"))
        self.assertEqual(self.ok("run", "-m", gguf, "-p", "hello", "--temp", 0), "OK!\n")

    def test_does_not_replace_unasked(self):
        gguf = FOLDER / "kept.gguf"
        gguf.write_text("mine")
        self.refused(1, ["kept.gguf", "--force"], "convert", MODEL, gguf)
        self.assertEqual(gguf.read_text(), "mine")
        part = FOLDER / "kept.gguf.part"
        part.write_text("mine, too")
        self.ok("convert", MODEL, gguf, "--force")
        self.assertEqual(part.read_text(), "mine, too")
        self.ok("inspect", gguf)

    def test_a_link_stays(self):
        link, gguf = FOLDER / "link.gguf", FOLDER / "linked.gguf"
        link.symlink_to(gguf.name)
        self.ok("convert", MODEL, link)
        self.refused(1, "--force", "convert", MODEL, link)
        self.ok("convert", MODEL, link, "--force")
        self.assertTrue(link.is_symlink() and not gguf.is_symlink())
        self.ok("inspect", gguf)


@unittest.skipUnless(EXAMPLE, "MOESAIC_EXAMPLE is not set")
class Example(Cli):
    def run_example(self, *args):
        return subprocess.run([*EXAMPLE, *args], capture_output=True, text=True, timeout=TIMEOUT)

    def test_answers(self):
        done = self.run_example(MODEL, 'say "hello"')
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "OK!\n", ""))

    def test_reasoning_is_apart(self):
        done = self.run_example(THINKER, "hello")
        self.assertEqual((done.stdout, done.stderr), ("\n", "Hm"))

    def test_fails_in_a_line(self):
        done = self.run_example(str(FOLDER / "absent"), "hello")
        self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, "", 1))
