"""A small gpt-oss model folder with a tokenizer, made from nothing but a seed.

The model says what it is told to: token t is followed by successor[t], because lm_head's row successor[t] is the
embedding of t and the layers, random but small, only add noise. So answers are known beforehand, while every op runs.
"""

import json
import pathlib
import random
import struct

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, LAYERS, VOCAB = 64, 64, 4, 2, 32, 6, 2, 320
CONTEXT = 32768
O200K_PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (" ", "w"), ("f", "i"), ("n", "a"), ("fi", "na"),
          ("fina", "l"), ("a", "na"), ("l", "y"), ("ana", "ly"), ("s", "i"), ("analy", "si"), ("analysi", "s"),
          ("a", "s"), ("as", "si"), ("s", "t"), ("assi", "st"), ("a", "n"), ("an", "t"), ("assist", "ant"), ("O", "K"),
          ("OK", "!"), ("H", "m")]
SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
            "<|message|>", "<|call|>"]
IDS = {name: 300 + i for i, name in enumerate(SPECIALS)}
IDS.update({a + b: 256 + i for i, (a, b) in enumerate(MERGES)})

ANSWER = [IDS[word] for word in ("<|channel|>", "final", "<|message|>", "OK!", "<|return|>")]
THOUGHT = [IDS[word] for word in ("<|channel|>", "analysis", "<|message|>", "Hm", "<|return|>")]
# A call of f in the channel x, without arguments; no token comes twice.
CALL = [IDS["<|channel|>"], *b"x to=f", IDS["<|message|>"], *b"{}", IDS["<|call|>"]]


def spelling():
    """GPT-2's printable spelling of every byte."""
    plain = [b for b in range(256) if 0x20 < b < 0x7F or (b > 0xA0 and b != 0xAD)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def tokenizer_json():
    spelled = spelling()
    spell = lambda text: "".join(spelled[b] for b in text.encode())
    vocab = {spelled[b]: b for b in range(256)}
    vocab.update({spell(a + b): 256 + i for i, (a, b) in enumerate(MERGES)})
    return {
        "normalizer": None,
        "added_tokens": [{"id": IDS[name], "content": name, "special": True} for name in SPECIALS],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": O200K_PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]},
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocab,
                  "merges": [[spell(a), spell(b)] for a, b in MERGES]},
    }


def config_json():
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "num_local_experts": EXPERTS,
        "num_experts_per_tok": 4, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-05, "rope_theta": 150000.0, "swiglu_limit": 7.0, "eos_token_id": IDS["<|return|>"],
        "pad_token_id": IDS["<|endoftext|>"], "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "original_max_position_embeddings": 4096, "truncate": False},
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    }


def successors(answer):
    """Printable bytes count upwards and start again; "<|start|>assistant" leads to the answer."""
    after = {t: t + 1 if t < 0x7E else 0x20 for t in range(0x20, 0x7F)}
    after.update(zip([IDS["assistant"]] + answer, answer))
    return after


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def head_rows(embedding, answer):
    """Row v: half the sum of the embeddings of the tokens that v follows."""
    rows = [[0.0] * HIDDEN for _ in range(VOCAB)]
    for before, token in successors(answer).items():
        rows[token] = [a + 0.5 * b for a, b in zip(rows[token], embedding[before])]
    return rows


def tensors(answer):
    rng = random.Random(7)
    noise = lambda *shape: ("BF16", shape, bf16([rng.gauss(0, 0.05) for _ in range(product(shape))]))
    ones = lambda *shape: ("BF16", shape, bf16([1.0] * product(shape)))
    embedding = [[rng.choice((-1.0, 1.0)) for _ in range(HIDDEN)] for _ in range(VOCAB)]
    yield "model.embed_tokens.weight", ("BF16", (VOCAB, HIDDEN), bf16(sum(embedding, [])))
    yield "lm_head.weight", ("BF16", (VOCAB, HIDDEN), bf16(sum(head_rows(embedding, answer), [])))
    yield "model.norm.weight", ones(HIDDEN)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", ones(HIDDEN)
        yield name + "post_attention_layernorm.weight", ones(HIDDEN)
        yield name + "self_attn.sinks", noise(HEADS)
        for p, rows, cols in (("q", HEADS * HEAD_DIM, HIDDEN), ("k", KV_HEADS * HEAD_DIM, HIDDEN),
                              ("v", KV_HEADS * HEAD_DIM, HIDDEN), ("o", HIDDEN, HEADS * HEAD_DIM)):
            yield f"{name}self_attn.{p}_proj.weight", noise(rows, cols)
            yield f"{name}self_attn.{p}_proj.bias", noise(rows)
        yield name + "mlp.router.weight", noise(EXPERTS, HIDDEN)
        yield name + "mlp.router.bias", noise(EXPERTS)
        for p, rows, cols in (("gate_up", 2 * INTERMEDIATE, HIDDEN), ("down", HIDDEN, INTERMEDIATE)):
            blocks, scales = (EXPERTS, rows, cols // 32, 16), (EXPERTS, rows, cols // 32)
            yield f"{name}mlp.experts.{p}_proj_blocks", ("U8", blocks, rng.randbytes(product(blocks)))
            # E8M0 codes: 2^-7 to 2^-5.
            yield f"{name}mlp.experts.{p}_proj_scales", ("U8", scales, bytes(
                rng.randrange(120, 123) for _ in range(product(scales))))
            yield f"{name}mlp.experts.{p}_proj_bias", noise(EXPERTS, rows)


def product(shape):
    n = 1
    for size in shape:
        n *= size
    return n


def safetensors(named):
    header, parts, at = {}, [], 0
    for name, (dtype, shape, data) in named:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def make(folder, answer=ANSWER):
    """Writes the model; it answers every harmony prompt with `answer`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json()))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "model.safetensors").write_bytes(safetensors(tensors(answer)))
    return folder
