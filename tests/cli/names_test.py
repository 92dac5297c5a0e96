"""The names by which people hold models: each row of the table in docs/user/model-files.md, `list`, and what a miss says."""

import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import unittest

from cli import FOLDER, MODEL, MOESAIC, SANITIZED, Cli

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs/user/model-files.md"
COMMIT, SUM = "c0ffee" + "0" * 34, "ab" * 32
HOME = FOLDER / "home"
GGUF = FOLDER / "small.gguf"
STORES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "OLLAMA_MODELS")
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if name not in STORES}, "HOME": str(HOME)}


def rows():
    """The table's rows: what is typed and what it opens, as a shell in HOME/work has them."""
    text = DOCS.read_text().split("<!-- table: names -->")[1].split("<!-- end -->")[0]
    shell = lambda path: re.sub("^~|^[.]/", lambda m: str(HOME) if m[0] == "~" else "", path).replace("COMMIT", COMMIT).replace("SUM", SUM)
    for line in text.strip().splitlines()[2:]:
        _, name, path = (re.search("`(.*?)`", cell).group(1) if "`" in cell else cell for cell in line.strip("| ").split(" | "))
        yield shell(name.removeprefix("-m ")), shell(path)


def put(path, text=None):
    """A file with this text, else the small model."""
    path = HOME / path
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        os.link(GGUF, path)
    else:
        path.write_text(text)


def manifest(path, digest=SUM, kind="model", more=()):
    layer = lambda k, d: {"mediaType": f"application/vnd.ollama.image.{k}", "digest": f"sha256:{d}", "size": 1}
    put(f".ollama/models/manifests/{path}", json.dumps(
        {"schemaVersion": 2, "layers": [layer("license", "0" * 64), layer(kind, digest), *(layer(*m) for m in more)]}))


def hub(name):
    folder = f".cache/huggingface/hub/models--{name.replace('/', '--')}"
    put(f"{folder}/refs/main", COMMIT)
    return f"{folder}/snapshots/{COMMIT}"


def stores():
    subprocess.run([*MOESAIC, "convert", MODEL, str(GGUF)], check=True, capture_output=True)
    shutil.copytree(MODEL, HOME / hub("openai/gpt-oss-20b"))
    put(hub("ggml-org/gpt-oss-20b-GGUF") + "/gpt-oss-20b-MXFP4.gguf")
    several = hub("unsloth/gpt-oss-20b-GGUF")
    put(f"{several}/config.json", "{}")  # unsloth's repositories have one beside their GGUF files
    for name in ("gpt-oss-20b-Q8_0", "gpt-oss-20b-F16", "Q4_K_M/gpt-oss-20b-Q4_K_M"):
        put(f"{several}/{name}.gguf")
    put(f".ollama/models/blobs/sha256-{SUM}")
    for name in ("registry.ollama.ai/library/gpt-oss/20b", "hf.co/unsloth/gpt-oss-20b-GGUF/Q8_0"):
        manifest(name)
    manifest("registry.ollama.ai/library/tuned/latest", more=[("adapter", "cd" * 32)])
    manifest("registry.ollama.ai/library/mlx/latest", kind="tensor")
    manifest("registry.ollama.ai/library/gone/latest", digest="ef" * 32)
    put(".lmstudio/models/lmstudio-community/gpt-oss-20b-GGUF/gpt-oss-20b-MXFP4.gguf")
    put(".lmstudio/hub/models/openai/gpt-oss-120b/manifest.json", json.dumps({"dependencies": [
        {"type": "model", "sources": [{"type": "huggingface", "user": "lmstudio-community", "repo": "gpt-oss-20b-GGUF"}]}]}))
    shutil.copytree(MODEL, HOME / "work/models/gpt-oss-20b")
    put("work/models/gguf/Q8_0/gpt-oss-20b.gguf")


class Names(Cli):
    @classmethod
    def setUpClass(cls):
        stores()

    def here(self, *args, **options):
        return {"env": ENVIRONMENT, "cwd": HOME / "work", **options}

    def opened(self, name, **options):
        return self.json("inspect", name, "-o", "json", **self.here(**options))["path"]

    def test_each_row_of_the_table(self):
        table = list(rows())
        self.assertGreater(len(table), 15)
        for name, path in table:
            with self.subTest(name):
                self.assertEqual(self.opened(name), path)

    def test_every_listed_name_opens_its_path(self):
        listed = {row["model"]: row for row in self.json("list", "-o", "json", **self.here())}
        for name in ("openai/gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF", "unsloth/gpt-oss-20b-GGUF:Q8_0",
                     "unsloth/gpt-oss-20b-GGUF:Q4_K_M", "gpt-oss:20b", "hf.co/unsloth/gpt-oss-20b-GGUF:Q8_0",
                     "lmstudio-community/gpt-oss-20b-GGUF", "models/gpt-oss-20b", "models/gguf/Q8_0/gpt-oss-20b.gguf", "tiny"):
            self.assertIn(name, listed)
        for name, row in listed.items():
            self.assertEqual(self.opened(name), row["path"])
            self.assertGreater(row["bytes"], 0)
        text = self.ok("list", **self.here())
        for name in listed:
            self.assertRegex(text, rf"(?m)^{re.escape(name)} +[\d.]+ [MG]B  (safetensors|GGUF) ")

    @unittest.skipIf(SANITIZED, "address space")
    def test_a_file_with_huge_metadata_is_stepped_over(self):
        """A text of 32 GB, which takes no disk, before the architecture."""
        path = HOME / "work/models/huge.gguf"
        size = 32 << 30
        with open(path, "wb") as file:
            self.addCleanup(path.unlink)
            file.write(struct.pack("<IIQQ Q1sIQ", 0x46554747, 3, 0, 2, 1, b"a", 8, size))
            file.seek(size, os.SEEK_CUR)
            name, value = b"general.architecture", b"gpt-oss"
            file.write(struct.pack(f"<Q{len(name)}sIQ{len(value)}s", len(name), name, 8, len(value), value))
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (48 << 30, 48 << 30))  # it is mapped once  # noqa: E731
        names = self.ok("list", "-o", "names", **self.here(preexec_fn=limit)).split()
        self.assertTrue({"models/huge.gguf", "models/gpt-oss-20b", "gpt-oss:20b"} <= set(names), names)
        self.refused(1, "more than 256 MB inside metadata 'a'", "inspect", path, **self.here(preexec_fn=limit))

    def test_variables_name_the_places(self):
        cache = HOME / ".cache/huggingface"
        for variables in ({"HF_HUB_CACHE": f"{cache}/hub"}, {"HUGGINGFACE_HUB_CACHE": f"{cache}/hub"}, {"HF_HOME": f"{cache}"},
                          {"XDG_CACHE_HOME": f"{HOME}/.cache"}, {"HF_HOME": "/nowhere", "HF_HUB_CACHE": f"{cache}/hub"}):
            env = {**ENVIRONMENT, "HOME": "/nowhere", **variables}
            self.assertIn("models--openai--gpt-oss-20b", self.opened("openai/gpt-oss-20b", env=env))
        for name, value in (("HF_HOME", "~/.cache/huggingface"), ("HF_HOME", "${HOME}/.cache/huggingface"),
                            ("HF_HUB_CACHE", "$HOME/$X/huggingface/hub"), ("XDG_CACHE_HOME", "$HOME/.cache")):
            env = {**ENVIRONMENT, "X": ".cache", name: value}
            self.assertIn("models--openai--gpt-oss-20b", self.opened("openai/gpt-oss-20b", env=env))
        env = {**ENVIRONMENT, "HF_HUB_CACHE": "$HOME/$Y${}/${Z/$"}  # unset names stay as they are
        self.refused(1, [re.escape(f"({HOME}/$Y${{}}/${{Z/$)")], "inspect", "openai/gpt-oss-20b2", **self.here(env=env))
        env = {**ENVIRONMENT, "HOME": "/nowhere", "OLLAMA_MODELS": f"{HOME}/.ollama/models"}
        self.assertIn(SUM, self.opened("gpt-oss:20b", env=env))

    def test_misses(self):
        for name, words in (("gpt-oss-20b", ["nearest here: -m openai/gpt-oss-20b"]),
                            ("openai/gpt-oss-20", ["nearest here: -m openai/gpt-oss-20b", "moesaic pull openai/gpt-oss-20$"]),
                            ("gpt-oss:21b", ["nearest here: -m gpt-oss:20b"]),
                            ("gpt-oss-120b", ["moesaic pull openai/gpt-oss-120b"]),
                            ("models/gpt-oss-2b", ["nearest here: -m models/gpt-oss-20b"]),
                            ("unsloth/gpt-oss-20b-GGUF", ["several models", "unsloth/gpt-oss-20b-GGUF/gpt-oss-20b-Q8_0.gguf"]),
                            ("unsloth/gpt-oss-20b-GGUF:Q2_K", ["not here, but ", "moesaic pull unsloth/gpt-oss-20b-GGUF:Q2_K"]),
                            ("unsloth/gpt-oss-20b-GGUF/../../x.gguf", ["no such file"]),
                            ("frobnicate", ["moesaic list"]), ("models", ["several models", "gguf/Q8_0/gpt-oss-20b.gguf"])):
            with self.subTest(name):
                self.refused(1, words, "inspect", name, **self.here())

    def test_models_of_ollama_that_are_not_opened(self):
        self.refused(1, ["tuned:latest", "adapter", f"-m .*sha256-{SUM}"], "inspect", "tuned", **self.here())
        self.refused(1, ["mlx:latest", "no GGUF file"], "inspect", "mlx", **self.here())
        self.refused(1, ["gone:latest", "missing", "ollama pull gone:latest"], "inspect", "gone", **self.here())
