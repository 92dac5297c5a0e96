"""--lora: an adapter changes what a model says, and whatever cannot be applied is refused in one line."""

import json
import math
import shutil
import struct

import small_model
from cli import FOLDER, MODEL, Cli


def adapter(name, value=0.05, rank=4, **config):
    """An adapter of all rows of o_proj in both layers, every number `value`."""
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    width = small_model.HEADS * small_model.HEAD_DIM
    floats = lambda *shape: ("F32", shape, struct.pack("<f", value) * math.prod(shape))
    tensors = []
    for layer in range(small_model.LAYERS):
        o = f"base_model.model.model.layers.{layer}.self_attn.o_proj."
        tensors += [(o + "lora_A.weight", floats(rank, width)),
                    (o + "lora_B.weight", floats(small_model.HIDDEN, rank))]
    (folder / "adapter_model.safetensors").write_bytes(small_model.safetensors(tensors))
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "base_model_name_or_path": "owner/base", **config}))
    return folder


class Lora(Cli):
    def logits(self, *args):
        return self.json("logits", "-m", MODEL, "--tokens", "1,2,3", "--device", "reference", *args)

    def test_it_is_applied(self):
        folder = adapter("applied")
        plain, adapted = self.logits(), self.logits("--lora", folder)
        self.assertNotEqual(plain, adapted)
        self.assertEqual(self.logits("--lora", f"{folder}:0"), plain)
        self.assertEqual(self.logits("--lora", f"{folder}:1"), adapted)
        self.assertNotEqual(self.logits("--lora", folder, "--lora", folder), adapted)

    def test_commands_that_take_it(self):
        folder = adapter("taken")
        for args in (("run", "-m", MODEL, "-p", "a", "-n", 2), ("bench", "-m", MODEL, "-p", 4, "-n", 2, "-r", 1),
                     ("verify", "-m", MODEL, "--quick", "--device", "reference")):
            self.ok(*args, "--lora", folder)

    def test_refused(self):
        self.refused(2, ["'x' is not a scale"], "run", "-m", MODEL, "-p", "a", "--lora", "no/such:x")
        self.refused(2, ["--lora needs a --model"], "verify", "--quick", "--lora", "x")
        self.refused(1, ["no such adapter"], "run", "-m", MODEL, "-p", "a", "--lora", FOLDER / "none")
        dora = adapter("dora", use_dora=True)
        self.refused(1, ["use_dora", "not supported"], "run", "-m", MODEL, "-p", "a", "--lora", dora)
        other = adapter("other", rank=3)
        config = json.loads((other / "adapter_config.json").read_text())
        (other / "adapter_config.json").write_text(json.dumps({**config, "r": 5}))
        self.refused(1, ["have rank 3", "says 5"], "run", "-m", MODEL, "-p", "a", "--lora", other)
        self.refused(1, ["LoRA adapter for owner/base", "-m owner/base --lora"], "run", "-m", adapter("only"), "-p", "a")

    def test_a_server_names_the_option_too(self):
        done = self.moesaic("serve", "-m", MODEL, "--port", 0, "--log", "quiet", "--lora", FOLDER / "none")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"(?m)^moesaic: --lora: \S+none: no such adapter folder$")

    def test_beside_the_model(self):
        folder = FOLDER / "both"
        shutil.copytree(MODEL, folder)
        adapter("both")
        run = ("run", "-m", folder, "-p", "a", "-n", 2)
        self.assertRegex(self.moesaic(*run).stderr, r"moesaic: note: \S*both holds a LoRA adapter that is not applied; "
                                                    r"to apply it: --lora \S*both\n")
        self.assertNotIn("not applied", self.moesaic(*run, "--lora", folder).stderr)
