"""Whatever goes wrong ends in one line that says what and where: status 1 for failures, 2 for wrong usage."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess

from cli import FOLDER, MODEL, MOESAIC, THINKER, TIMEOUT, Cli

ABSENT = str(FOLDER / "absent")  # wrong flags must be told before a model is looked for


class Usage(Cli):
    def test_unknown_words(self):
        self.refused(2, "frobnicate", "frobnicate")
        self.refused(2, "frobnicate", "frobnicate", "-m", MODEL)
        self.refused(2, "--frob", "run", "-m", MODEL, "--frob")
        self.refused(2, "extra", "tokenize", "-m", MODEL, "-p", "a", "extra")

    def test_options_without_a_value_or_twice(self):
        self.refused(2, "--file: its value is missing", "tokenize", "-m", ABSENT, "-f")
        self.refused(2, "--temp: given 2 times; give it once", "run", "-m", ABSENT, "-p", "a", "--temp", "0", "--temp", "1")
        self.refused(2, "--model: given 3 times", "bench", "-m", ABSENT, "-m", ABSENT, "-m", ABSENT)

    def test_no_command(self):
        self.refused(2, "command", *())
        self.refused(2, "give a command first: moesaic run -m tiny", "-m", "tiny", "-p", "hi")
        self.refused(2, "did you mean --version", "--verson")

    def test_words_of_other_programs(self):
        for words, instead in ((["run", "-hff", "x"], "-hf OWNER/NAME/FILE.gguf"), (["run", "-hft", "x"], "HF_TOKEN"), (["run", "-hx"], "unknown option -hx"),
                               (["serve", "-np", 2], ": use --max-batch$"), (["run", "-np", 2], "--max-batch of moesaic serve"), (["bench", "-fa=1"], "always fused"),
                               (["run", "-c", 9], "--ctx"), (["serve", "--max-model-len=9"], "--ctx"), (["run", ABSENT, "a", "--think"], "--reasoning"),
                               (["list", "-hf", "a/b"], "-m of moesaic run"), (["pull", "-hf", "a"], "'a' is no model of the hub"),
                               (["ls"], "moesaic list"), (["help", "ps"], "/api/ps"), (["-v"], "moesaic --version")):
            with self.subTest(words):
                self.refused(2, instead, *words)
        self.refused(2, "unknown option --thinks \\(see", "run", ABSENT, "--thinks")  # --help is near, and no help
        for words in (("-p", "-fa"), ("--", "-fa")):  # no options
            self.refused(1, ABSENT, "run", "-m", ABSENT, *words)
        for words in (["pull", "-hf"], ["run", "-hf"], ["run", "tiny", "-p", "hi", "-hf="]):
            self.refused(2, "-hf: the model's name is missing", *words)
        self.assertEqual(self.ok("help", "run"), self.ok("run", "--help"))
        for words in (["help"], ["help", "help"]):
            self.assertEqual(self.ok(*words), self.ok("--help"))

    def test_the_model_as_a_word(self):
        for command in (("bench",), ("profile",), ("plan",), ("verify",), ("tune",), ("serve", "--port", 0), ("tokenize", "-p", "a"), ("detokenize", "--tokens", 1),
                        ("render", "-f", "-"), ("logits", "--tokens", 1), ("perplexity", "-f", __file__)):
            self.assertIn(f"{ABSENT}: no such", self.moesaic(*command, ABSENT, stdin='[{"role": "user", "content": "a"}]').stderr, command)
            self.refused(2, "--model: given 2 times", *command, ABSENT, "-m", ABSENT)

    def test_required_options(self):
        for command in ("run", "bench", "logits", "perplexity", "tokenize", "detokenize", "render", "profile"):
            self.refused(2, "model", command)
        self.refused(2, "tokens", "logits", "-m", MODEL)
        self.refused(2, ["-p", "-f"], "tokenize", "-m", MODEL)
        self.refused(2, ["prompt", "file"], "tokenize", "-m", MODEL, "-p", "a", "-f", "b")

    def test_sampling_values(self):
        for flag, value in (("--temp", "nan"), ("--temp", "-1"), ("--temp", "inf"), ("--temp", "warm"), ("--top-p", "0"),
                            ("--top-p", "1.5"), ("--top-p", "nan"), ("--top-k", "-1"), ("--min-p", "-0.1"),
                            ("--min-p", "2"), ("-n", "-2"), ("-n", "1e99"), ("--seed", "-2"), ("--ctx", "-5"),
                            ("--repetition-penalty", "0"), ("--presence-penalty", "3"), ("--frequency-penalty", "nan"),
                            ("--reasoning", "extreme"), ("--reasoning-budget", "-2"), ("--reasoning-budget", "much"), ("-o", "yaml"), ("--stop", "x" * 5000), ("-t", "-2"),
                            ("-t", "9999"), ("--isa", "mmx"), ("--device", "tpu"), ("--dense", "q2")):
            self.refused(2, "", "run", "-m", ABSENT, "-p", "hi", flag, value)

    def test_wrong_values_name_what_is_allowed(self):
        self.refused(2, "--draft-tokens requires --speculative", "run", "-m", MODEL, "-p", "a", "--draft-tokens", 3)
        self.refused(2, "nothing to time", "bench", "-m", MODEL, "-p", 0, "-n", 0)
        self.refused(2, ["--architecture", "sm_90a"], "warmup", "--architecture", "foo")
        for flag, value, words in (("--draft-tokens", "999999999", ["--draft-tokens", "from 1 to 16, or auto"]),
                                   ("--draft-tokens", "1.5", "from 1 to 16"), ("--seed", "9" * 30, "from 0 to 18446744073709551615"),
                                   ("--ctx", "x", "whole number from 0"), ("--temp", "warm", "--temp: 'warm' is not a number"),
                                   ("-n", "9" * 12, "whole number, or is too large"), ("--kv-dtype", "x", "one of auto, bf16, fp8"),
                                   ("--gpu-memory", "nan", "'nan' is not a number from 0 to 1000000"), ("--step-limit", "nan", "'nan' is not a number")):
            self.refused(2, words, "run", "-m", ABSENT, "-p", "hi", flag, value)
        self.refused(2, "not UTF-8", "run", "-m", ABSENT, "-p", "hi", "--stop", "\udcff")
        self.refused(2, r": --top-p 1\.0000001 is not in", "run", ABSENT, "hi", "--top-p", "1.0000001")
        self.refused(2, "excludes", "run", ABSENT, "hi", "--cpu-moe", "--n-cpu-moe", 1)
        self.refused(2, "--report", "verify", "--report", "-")

        for option in (("--reasoning-budget", "5"), ("--reasoning", "high"), ("--system", "Be brief.")):
            self.refused(2, [option[0], "--raw"], "run", "-m", ABSENT, "-p", "hi", "--raw", *option)

    def test_names_do_not_steer_the_terminal(self):
        self.refused(2, "\u241b\\[2J", "run", "-m", "x", "--lora", "a\x1b[2J:b", "-p", "hi")
        folder = FOLDER / "a\x1b[2J"
        folder.symlink_to(MODEL)
        self.assertNotIn("\x1b", self.ok("inspect", folder))

    def test_addresses(self):
        for url in ("https://x", "ftp://x", "http://", "http://:80", "http://x:", "http://x:0", "http://x:65536", "http://x:8o", "http://[::1",
                    "http://[::1]x", "http://[]:80", "://x", "http://h:99999999999"):
            self.refused(2, ["--url", "http://HOST:PORT"], "bench-serve", "--url", url)
        for path in ("/llm", "/v1/completions", "//"):
            self.refused(2, ["--url", "has a path"], "bench-serve", "--url", f"http://127.0.0.1:1{path}")
        for path in ("/", "/v1", "/v1/"):
            self.refused(1, "cannot reach 127.0.0.1:1:", "bench-serve", "-o", "json", "--url", f"http://127.0.0.1:1{path}")

    def test_options_of_one_loop_are_refused_in_the_other(self):
        for option in ("--streams", "--seconds"):
            self.refused(2, ["--rate", option], "bench-serve", "--rate", 5, option, 8)
        self.refused(2, ["--requests", "--seconds"], "bench-serve", "--requests", 5, "--seconds", 8)

    def test_options_that_serve_finds_wrong_as_it_loads(self):
        for options in (("--device", "tpu"), ("--ctx", 200_000), ("--kv-tokens", 1), ("--max-rows", 1, "--max-batch", 2),
                        ("--device", "cpu", "--kv-dtype", "fp8"), ("--device", "cpu", "--moe-path", "fp8"),
                        ("--device", "cpu", "--tp", "numa", "--cpu-pin", "off"), ("--device", "cpu", "--tp", 3),
                        ("--device", "cpu", "--no-prefix-cache", "--kv-host", 0.1), ("--lora", f"{ABSENT}:nan")):
            done = self.moesaic("serve", "-m", MODEL, "--port", 0, "--log", "quiet", *options)
            self.assertEqual(done.returncode, 2, (options, done.stderr))
        done = self.moesaic("serve", "-m", ABSENT, "--port", 0, "--log", "quiet")  # no option: a missing model
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_a_gpu_that_is_not_ready_is_no_wrong_option(self):
        """systemd starts a service again, but not behind status 2: a driver may come later."""
        if "GPU code: none" in self.ok("--version"):
            self.skipTest("a program without GPU code")
        none = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        self.refused(1, "device cuda: .*; use --device cpu", "run", "-m", MODEL, "-p", "a", "--device", "cuda", env=none)
        for options in (("--device", "cuda"), ("--device", "cuda", "--tp", "auto"), ("--kv-dtype", "fp8"), ("--moe-path", "fp8")):
            done = self.moesaic("serve", "-m", MODEL, "--port", 0, "--log", "quiet", *options, env=none)
            self.assertEqual(done.returncode, 1, (options, done.stderr))

    def test_kernels_that_cannot_be_kept(self):
        if "GPU code: none" in self.ok("--version"):
            self.skipTest("a program without GPU code")
        for folder, words in (("/proc", "/proc/moesaic cannot be written"), ("", "set XDG_CACHE_HOME or HOME")):
            done = self.moesaic("warmup", "--architecture", "sm_120a", "-t", 1, env={**os.environ, "XDG_CACHE_HOME": folder, "HOME": folder})
            if "NVRTC" in done.stderr:
                self.skipTest(done.stderr)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(words, done.stderr)

    def test_a_device_that_is_not_timed(self):
        for command in ("plan", "profile"):
            self.refused(1, "does not time its operations; use --device cpu", command, "-m", MODEL, "--device", "reference")

    def test_hosts(self):
        self.refused(1, "cannot listen on 192.0.2.1:.*another --host?", "serve", "-m", MODEL, "--host", "192.0.2.1")
        for host in ("my-machine", "999.1.1.1", "[::1]"):
            self.refused(2, ["--host: ", "such as 127.0.0.1"], "serve", "-m", MODEL, "--port", 0, "--host", host)

    def test_schemas(self):
        schema = FOLDER / "bad_schema.json"
        for text, words in (("{", "not valid JSON"), ('{"items": {"not": {"multipleOf": 2}}}', "items: not: such a schema cannot be excluded"),
                            ("false", "no JSON value satisfies")):
            schema.write_text(text)
            self.refused(1, ["bad_schema.json", words], "run", "-m", ABSENT, "-p", "hi", "--json-schema", schema)
        self.refused(1, "--json-schema: .*not valid JSON", "run", "-m", ABSENT, "-p", "hi", "--json-schema", "{a}")
        self.refused(1, "absent.json: No such file", "run", "-m", ABSENT, "-p", "hi", "--json-schema", FOLDER / "absent.json")

    def test_devices(self):
        self.refused(2, "tpu", "verify", "--quick", "--device", "tpu")
        self.refused(2, "mmx", "bench", "-m", ABSENT, "--isa", "mmx")

    def test_prefetches(self):
        for value in ("t0", "t0:0", "t0:100", "t2:1024", "nta:1e3", "T0:1024", "none:64", "t0:65600", "t0:-64"):
            self.refused(2, ["--cpu-prefetch", re.escape(f"'{value}'"), "t0:1024"], "bench", "-m", ABSENT, "--device", "cpu",
                         "--cpu-prefetch", value)

    def test_tune_has_one_rank(self):
        self.refused(2, "--tp: leave it out", "tune", "-m", ABSENT, "--tp", 2)

    def test_stores(self):
        for flag, value in (("--kv-host", "-1"), ("--kv-host", "nan"), ("--kv-host", "1e9"), ("--kv-disk", "x:y"), ("--kv-disk", ":3"),
                            ("--kv-disk", "x:0"), ("--kv-disk", "x:inf")):
            for command in (("run", "-p", "hi"), ("serve",)):
                self.refused(2, [flag, f"'{value}'"], *command, "-m", ABSENT, f"{flag}={value}")

    def test_values_that_serve_would_never_find(self):
        """They would be taken and then match no request."""
        keys = FOLDER / "keys"
        for flag, value in (("--cors-origin", "page.example"), ("--cors-origin", "https://page.example/chat"), ("--cors-origin", "https://"),
                            ("--allowed-host", "https://api.example.com"), ("--allowed-host", "a b"), ("--max-body", "-1"),
                            ("--max-body", "0"), ("--stored-responses", "dir:1k"), ("--stored-responses", "dir:")):
            self.refused(2, [flag, re.escape(f"'{value}'")], "serve", "-m", ABSENT, f"{flag}={value}")
        for text in (b"a\x01b\n", "secret\n".encode("utf-16")):
            keys.write_bytes(text)
            self.refused(2, "control character", "serve", "-m", ABSENT, "--api-key-file", keys)
        for text, words in (("# nobody's\n\n \t\r\n", "there is no key in it"), ("a b\n", "white space"), ("a # mine\n", "white space")):
            keys.write_text(text)
            self.refused(2, words, "serve", "-m", ABSENT, "--api-key-file", keys)
        keys.write_text("# mine\n\n  secret \r\n")
        done = self.moesaic("serve", "-m", ABSENT, "--port", 0, "--log", "quiet", "--api-key-file", keys)
        self.assertEqual((done.returncode, ABSENT in done.stderr), (1, True), done.stderr)
        self.refused(2, "MOESAIC_API_KEY: it is empty", "serve", "-m", ABSENT, env={**os.environ, "MOESAIC_API_KEY": ""})
        self.refused(2, "MOESAIC_API_KEY: .* white space", "serve", "-m", ABSENT, env={**os.environ, "MOESAIC_API_KEY": "secret\n"})
        for flag, value in (("--cors-origin", "*"), ("--cors-origin", "null"), ("--cors-origin", "http://localhost:3000/"),
                            ("--cors-origin", "vscode-webview://abc"), ("--allowed-host", "*"), ("--allowed-host", "[::1]:8080"),
                            ("--allowed-host", "api.example.com"), ("--stored-responses", f"{FOLDER}/a:b/")):
            done = self.moesaic("serve", "-m", ABSENT, "--port", 0, "--log", "quiet", flag, value)
            self.assertEqual((done.returncode, ABSENT in done.stderr), (1, True), done.stderr)

    def test_empty_values(self):
        """Such as "$KEYS" where no variable KEYS is set: without a word of it the server would take requests without a key."""
        self.refused(2, "--model", "run", "-m", "", "-p", "a")
        for flag in ("--api-key-file", "--kv-disk", "--kv-host", "--max-body", "--log-file", "--cors-origin", "--name", "--experts",
                     "--tokenizer", "--port"):
            self.refused(2, flag, "serve", "-m", ABSENT, flag, "")
            self.refused(2, flag, "serve", "-m", ABSENT, f"{flag}=")
        for flag in ("--json-schema", "--lora", "--stop"):
            self.refused(2, flag, "run", "-m", ABSENT, "-p", "hi", flag, "")
        self.refused(1, ABSENT, "run", "-m", ABSENT, "-p", "", "--system", "")

    def test_sizes(self):
        for flag, value in (("-p", "-1"), ("-p", "99999999999"), ("-n", "x"), ("-d", "-3"), ("-b", "0"), ("-b", "-1"),
                            ("-b", "100000"), ("-r", "0"), ("-o", "xml")):
            self.refused(2, "", "bench", "-m", ABSENT, flag, value)
        for flag, value in (("-b", "0"), ("-d", "-1"), ("-n", "0")):
            self.refused(2, "", "profile", "-m", ABSENT, flag, value)
        for flag, value in (("--ctx", "1"), ("--ctx", "99999999"), ("--stride", "0"), ("--stride", "-4")):
            self.refused(2, "", "perplexity", "-m", ABSENT, "-f", __file__, flag, value)

    def test_whole_numbers_are_decimal(self):
        """A shell's printf %03d makes them, and C would read them as octal."""
        for text in ("010", "+10", "10"):
            self.assertEqual(self.json("run", "-m", MODEL, "--raw", "-p", "a", "-n", text, "-o", "json")["usage"]["completion_tokens"], 10, text)
        for text in ("0x10", "1e1", " 10", "10 ", "1'0", "--10"):
            self.refused(2, "whole number", "run", "-m", MODEL, "-p", "a", f"-n={text}" if text == "--10" else "-n", *[text] * (text != "--10"))
        for text in ("0.5", "-00.5", "00x"):
            self.refused(2, re.escape(f"--threads: '{text}' is not"), "run", "-m", MODEL, "-p", "a", f"--threads={text}")

    def test_token_ids(self):
        for ids in ("", "1,x", "1,-2", "99999999999", "1;2"):
            self.refused(2, "", "logits", "-m", ABSENT, "--tokens", ids)
        self.refused(1, "absent", "logits", "-m", MODEL, "--tokens", "@" + ABSENT)
        self.refused(2, "320", "logits", "-m", MODEL, "--tokens", "1,320")
        self.refused(2, "5000", "detokenize", "-m", MODEL, "--tokens", "5000")

    def test_sizes_beyond_the_model(self):
        self.refused(2, ["40000", "32768"], "run", "-m", MODEL, "-p", "a", "--ctx", 40000)
        self.refused(2, "32768", "bench", "-m", MODEL, "-p", 8, "-d", 40000)
        self.refused(2, "32768", "profile", "-m", MODEL, "-d", 40000)
        self.refused(2, "32768", "perplexity", "-m", MODEL, "-f", __file__, "--ctx", 40000)

    def test_absurd_kv_is_refused_before_it_is_allocated(self):
        self.refused(1, "GB", "bench", "-m", "dummy:gpt-oss-120b", "-p", 8, "-d", 100000, "-b", 512)


class Files(Cli):
    def test_absent(self):
        for args in (("run", "-p", "a"), ("bench",), ("logits", "--tokens", "1"), ("tokenize", "-p", "a"),
                     ("detokenize", "--tokens", "1"), ("profile",), ("perplexity", "-f", __file__), ("verify",)):
            self.refused(1, "absent", args[0], "-m", ABSENT, *args[1:])
        self.refused(1, "absent", "inspect", ABSENT)
        self.refused(1, "absent", "convert", ABSENT, FOLDER / "x.gguf")
        self.refused(1, "absent", "perplexity", "-m", MODEL, "-f", ABSENT)
        self.refused(1, "absent", "tokenize", "-m", MODEL, "-f", ABSENT)
        self.refused(1, "absent", "render", "-m", MODEL, "-f", ABSENT)

    def test_a_folder_for_a_file(self):
        self.refused(1, "folder", "tokenize", "-m", MODEL, "-f", FOLDER)

    def test_an_error_is_no_end_of_a_file(self):
        """This process's memory has no address 0."""
        for command in ("tokenize", "perplexity"):
            self.refused(1, "/proc/self/mem: cannot read it", command, "-m", MODEL, "-f", "/proc/self/mem")
        folder = os.open(FOLDER, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        done = subprocess.run([*MOESAIC, "tokenize", "-m", MODEL, "-f", "-"], stdin=folder, capture_output=True, text=True,
                              timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("cannot read it: Is a directory", done.stderr)
        done = subprocess.run([*MOESAIC, "run", MODEL, "-t", "1"], stdin=folder, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stderr), (1, "moesaic: standard input: cannot read it: Is a directory\n"))

    def test_a_line_without_end(self):
        with open("/dev/zero") as zeros:
            done = subprocess.run([*MOESAIC, "run", MODEL, "-t", "1"], stdin=zeros, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stderr), (1, "moesaic: standard input: more than 256 MB\n"))

    def damaged(self, name, change):
        folder = FOLDER / name
        shutil.copytree(MODEL, folder)
        change(folder)
        return folder

    def test_truncated_weights(self):
        def cut(folder):
            os.truncate(folder / "model.safetensors", 100000)
        folder = self.damaged("cut", cut)
        for args in (("run", "-p", "a"), ("bench",), ("logits", "--tokens", "1")):
            self.refused(1, "model.safetensors", args[0], "-m", folder, *args[1:])
        self.refused(1, "model.safetensors", "convert", folder, FOLDER / "cut.gguf")
        self.assertFalse((FOLDER / "cut.gguf").exists())

    def test_truncated_gguf(self):
        gguf = FOLDER / "cut2.gguf"
        self.ok("convert", MODEL, gguf)
        for size in (0, 10, 200, 20000, gguf.stat().st_size - 1000):
            os.truncate(gguf, size)
            self.refused(1, "cut2.gguf", "run", "-m", gguf, "-p", "a")
            with open(gguf, "ab") as file:
                file.truncate(gguf.stat().st_size)
            gguf.unlink()
            self.ok("convert", MODEL, gguf)

    def test_other_models_are_refused_by_name(self):
        def rename(folder):
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
        self.refused(1, "llama", "run", "-m", self.damaged("llama", rename), "-p", "a")

    def test_no_tokenizer(self):
        folder = self.damaged("mute", lambda f: (f / "tokenizer.json").unlink())
        self.refused(1, "tokenizer.json", "run", "-m", folder, "-p", "a")
        self.refused(1, "tokenizer.json", "tokenize", "-m", folder, "-p", "a")
        self.json("logits", "-m", folder, "--tokens", "1")

    def test_broken_tokenizer(self):
        folder = self.damaged("broken", lambda f: (f / "tokenizer.json").write_text("{\"model\": "))
        self.refused(1, "tokenizer.json", "run", "-m", folder, "-p", "a")

    def test_a_tokenizer_of_another_model(self):
        def add(folder):
            tokenizer = json.loads((folder / "tokenizer.json").read_text())
            tokenizer["added_tokens"].append({"id": 400, "content": "<|more|>", "special": True})
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        folder = self.damaged("larger", add)
        (FOLDER / "more").write_text("ab<|more|>c")
        self.refused(1, "400", "perplexity", "-m", folder, "-f", FOLDER / "more", "--special")

    def test_unwritable_target(self):
        self.refused(1, "absent", "convert", MODEL, FOLDER / "absent" / "deep" / "x.gguf")

    def test_onto_itself(self):
        folder = self.damaged("itself", lambda f: None)
        gguf, linked, link = FOLDER / "itself.gguf", FOLDER / "itself-link.gguf", FOLDER / "itself-link"
        self.ok("convert", folder, gguf)
        linked.symlink_to(gguf), link.symlink_to(folder)
        before = gguf.read_bytes(), (folder / "model.safetensors").read_bytes()
        for source, target in ((folder, folder), (folder, f"{folder}/."), (link, folder), (folder, link), (gguf, gguf), (linked, gguf),
                               (gguf, linked)):
            self.refused(1, "is the source itself", "convert", source, target, "--force")
        self.assertEqual((gguf.read_bytes(), (folder / "model.safetensors").read_bytes()), before)

    def test_names_with_newlines(self):
        self.refused(1, "a.b.c: no such file", "inspect", "a\nb\nc")
        self.refused(2, "a b c", "a\nb\nc")

    def test_targets_that_are_none(self):
        self.refused(2, "target: the value is empty", "convert", MODEL, "")
        for target in ("-", FOLDER / "x.GGUF", FOLDER / "x.safetensors"):
            self.refused(2, "is no target", "convert", MODEL, target)

    def test_a_full_disk_leaves_nothing(self):
        disk = FOLDER / "small-disk"
        disk.mkdir()
        inside = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64k none "{disk}" && "$@"; status=$?; ls -A "{disk}"; exit $status', "sh"]
        if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
            self.skipTest("this user may not mount")
        for target in (disk / "x.gguf", disk / "folder"):
            done = subprocess.run([*inside, *MOESAIC, "convert", MODEL, target], capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("No space left on device", done.stderr)

    def test_a_limit_on_the_size_of_files_is_an_error_of_one_line(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))  # noqa: E731
        for name in ("limited.gguf", "limited"):
            self.refused(1, "File too large", "convert", MODEL, FOLDER / name, preexec_fn=limit)
            self.assertFalse((FOLDER / name).exists())
        with open(FOLDER / "limited.json", "w") as file:
            done = subprocess.run([*MOESAIC, "logits", "-m", MODEL, "--tokens", "1,2", "--all"], stdout=file, stderr=subprocess.PIPE,
                                  text=True, timeout=TIMEOUT, preexec_fn=limit)
        self.assertEqual((done.returncode, done.stderr), (1, "moesaic: cannot write to standard output\n"))

    def test_a_prompt_beyond_the_context(self):
        self.refused(1, ["context", "--ctx"], "run", "-m", MODEL, "-p", "x " * 500, "--ctx", 100)

    def test_bad_conversations(self):
        self.refused(1, "standard input: ", "render", "-m", MODEL, "-f", "-", stdin="{")
        for name, text in (("json", "{"), ("role", '[{"role": "robot", "content": "a"}]'), ("none", "3")):
            path = FOLDER / f"bad-{name}.json"
            path.write_text(text)
            self.refused(1, path.name, "render", "-m", MODEL, "-f", path)


class Output(Cli):
    LONG = ("logits", "-m", MODEL, "--tokens", ",".join(["1"] * 2000), "--all")

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            for args in (("--help",), ("run", "--help"), ("--version",), ("tokenize", "-m", MODEL, "-p", "a"), self.LONG,
                         ("profile", "-m", MODEL, "-n", 1, "-o", "trace"), ("run", "-m", MODEL, "-p", "a", "--temp", 0)):
                done = subprocess.run([*MOESAIC, *args[:2], *map(str, args[2:])], stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=TIMEOUT)
                self.assertEqual(done.returncode, 1, args)
                self.assertIn("cannot write to standard output", done.stderr)

    def test_standard_error_that_takes_nothing_ends_nothing(self):
        with open("/dev/full", "w") as full:
            for args, out in ((("run", "-m", THINKER, "-p", "hello", "--temp", "0", "--show-reasoning"), "\n"),
                              (("convert", MODEL, str(FOLDER / "full.gguf")), "")):
                done = subprocess.run([*MOESAIC, *args], stdout=subprocess.PIPE, stderr=full, text=True, timeout=TIMEOUT)
                self.assertEqual((done.returncode, done.stdout), (0, out), args)

    def test_closed_pipe(self):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([*MOESAIC, *self.LONG], stdout=write, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
        os.close(write)
        self.assertIn(done.returncode, (-13, 141, 1))
        self.assertLessEqual(len(done.stderr.splitlines()), 1)

    def test_no_standard_output_at_all(self):
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *MOESAIC, "tokenize", "-m", MODEL, "-p", "a"],
                              stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write to standard output", done.stderr)

    def test_files_are_not_mistaken_for_closed_streams(self):
        gguf = FOLDER / "streams.gguf"
        done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *MOESAIC, "convert", MODEL, str(gguf)],
                              timeout=TIMEOUT)
        self.ok("inspect", gguf)
        self.assertEqual(pathlib.Path(gguf).read_bytes()[:4], b"GGUF")
