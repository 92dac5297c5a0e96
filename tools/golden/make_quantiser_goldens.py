#!/usr/bin/env python3
"""What llama.cpp's quantiser makes of gpt-oss: tests/golden/gguf/quantiser.json and quantised.bin.

    make_quantiser_goldens.py llama-quantize libggml-base.so tests/golden/gguf

Needs `pip install gguf numpy` and a build of llama.cpp. quantiser.json has the types of every tensor for each file type, from
a dry run over a file with gpt-oss-20b's shapes (BF16, experts in MXFP4, no data): with the experts kept (--tensor-type
exps=mxfp4), and those of the experts where they are requantised. quantised.bin has 4,096 normal numbers in F32, then for each
type its name in 8 bytes, its size (u32) and the numbers as ggml's quantiser stores them, all weighted alike.
"""
import ctypes
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS, EXPERTS, VOCAB = 2880, 2880, 64, 8, 64, 24, 32, 201088
FILES = ["Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K_L",
         "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K", "Q2_K_S", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS",
         "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0", "Q2_0", "Q1_0", "MXFP4_MOE"]
TYPES = ["Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K",
         "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0", "Q2_0", "Q1_0"]
NUMBERS = 4096


def tensors():
    yield "token_embd.weight", (VOCAB, HIDDEN), "BF16"
    yield "output.weight", (VOCAB, HIDDEN), "BF16"
    yield "output_norm.weight", (HIDDEN,), "F32"
    for i in range(LAYERS):
        for name, rows, cols in (("attn_q", HEADS * HEAD, HIDDEN), ("attn_k", KV_HEADS * HEAD, HIDDEN),
                                 ("attn_v", KV_HEADS * HEAD, HIDDEN), ("attn_output", HIDDEN, HEADS * HEAD)):
            yield f"blk.{i}.{name}.weight", (rows, cols), "BF16"
            yield f"blk.{i}.{name}.bias", (rows,), "F32"
        for name in ("attn_norm", "post_attention_norm"):
            yield f"blk.{i}.{name}.weight", (HIDDEN,), "F32"
        yield f"blk.{i}.attn_sinks.weight", (HEADS,), "F32"
        yield f"blk.{i}.ffn_gate_inp.weight", (EXPERTS, HIDDEN), "F32"
        yield f"blk.{i}.ffn_gate_inp.bias", (EXPERTS,), "F32"
        for name, rows, cols in (("ffn_gate_exps", INNER, HIDDEN), ("ffn_up_exps", INNER, HIDDEN), ("ffn_down_exps", HIDDEN, INNER)):
            yield f"blk.{i}.{name}.weight", (EXPERTS, rows, cols), "MXFP4"
            yield f"blk.{i}.{name}.bias", (EXPERTS, rows), "F32"


def write_empty_model(path):
    w = gguf.GGUFWriter(path, "gpt-oss")
    w.add_block_count(LAYERS), w.add_context_length(131072), w.add_embedding_length(HIDDEN), w.add_feed_forward_length(INNER)
    w.add_expert_feed_forward_length(INNER), w.add_head_count(HEADS), w.add_head_count_kv(KV_HEADS), w.add_key_length(HEAD)
    w.add_value_length(HEAD), w.add_layer_norm_rms_eps(1e-5), w.add_rope_freq_base(150000.0), w.add_expert_count(EXPERTS)
    w.add_expert_used_count(4), w.add_sliding_window(128), w.add_tokenizer_model("none"), w.add_vocab_size(VOCAB)
    for name, shape, kind in tensors():
        kind = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        bytes_ = int(np.prod(shape)) // block * size
        w.add_tensor_info(name, (*shape[:-1], shape[-1] // block * size) if block > 1 else shape,
                          np.dtype(np.uint8 if block > 1 else np.float32), bytes_, raw_dtype=kind)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_ti_data_to_file(), w.close()
    with open(path, "r+b") as out:
        out.truncate(64 << 30)


def types_of(program, model, file_type, options):
    ran = subprocess.run([program, "--dry-run", *options, model, file_type], capture_output=True, text=True)
    found = {}
    for name, before, after in re.findall(r"\] +(\S+) +- \[.*?\], type = +(\w+),.*?MiB(?: -> .*?MiB \((\w+)\))?$", ran.stdout + ran.stderr,
                                          re.MULTILINE):
        tensor = re.sub(r"^blk\.\d+\.", "", name)
        if tensor.endswith(".weight") and "norm" not in tensor and not tensor.startswith(("attn_sinks", "ffn_gate_inp")):
            found.setdefault(tensor.removesuffix(".weight"), set()).add((after or before).upper())
    return {tensor: sorted(types) for tensor, types in found.items()}


def quantised(library, numbers, kind):
    ggml = ctypes.CDLL(library)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
                                         ctypes.c_void_p]
    out, weights = np.zeros(4 * NUMBERS, np.uint8), np.ones(NUMBERS, np.float32)
    number = {"Q2_0": 42, "Q1_0": 41}.get(kind) or int(gguf.GGMLQuantizationType[kind])
    size = ggml.ggml_quantize_chunk(number, numbers.ctypes.data, out.ctypes.data, 0, 1, NUMBERS, weights.ctypes.data)
    return out[:size].tobytes()


def main():
    program, library, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    table = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = f"{scratch}/model.gguf"
        write_empty_model(model)
        for file_type in FILES:
            kept = types_of(program, model, file_type, ["--tensor-type", "exps=mxfp4"])
            changed = types_of(program, model, file_type, ["--allow-requantize"])
            table[file_type] = kept | {f"{k}, requantised": v for k, v in changed.items() if "exps" in k} if kept else {}
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(types)}" for name, types in table.items())
    (folder / "quantiser.json").write_text("{" + rows + "}\n")
    numbers = np.random.default_rng(7).standard_normal(NUMBERS).astype("<f4")
    with open(folder / "quantised.bin", "wb") as out:
        out.write(numbers.tobytes())
        for kind in TYPES:
            data = quantised(library, numbers, kind)
            out.write(kind.encode().ljust(8, b"\0") + len(data).to_bytes(4, "little") + data)


if __name__ == "__main__":
    main()
