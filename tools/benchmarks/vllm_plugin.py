"""vLLM with and without moesaic's plugin on random gpt-oss weights, one GPU: decode, prefill, and greedy tokens of both.

    PYTHONPATH=site python3 vllm_plugin.py 20b [--backend triton|marlin] [--json FILE]       or 120b

`site` holds vLLM 0.25.1 with what it imports, and moesaic's wheel unpacked; moe_operator.py says how. No model is needed: the
configuration is written here, FP4 codes, scales and routers are random, so that routing is spread. Each of the two runs in a
process of its own (3 to 4 minutes for 20b). Prints one table in Markdown; the exit status says whether both ran, whether the
plugin's kernels were used, and whether the greedy tokens agree or part where the two likeliest tokens are close.

decode: tokens/s at so many sequences, from the difference of two lengths, the best of three. pp2048: one prompt of 2,048 tokens.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
LAYERS, EXPERTS = {"20b": 24, "120b": 36}, {"20b": 32, "120b": 128}
GREEDY_PROMPTS, GREEDY_TOKENS = 8, 48
# Of log-probabilities: logits of random weights are about 1, BF16 tells 1/256 of that apart, and a step adds many such errors.
CLOSE = 0.05


def write_config(folder, size):
    layers = LAYERS[size]
    kinds = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    config = {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
        "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": kinds, "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": layers,
        "num_key_value_heads": 8, "num_local_experts": EXPERTS[size], "output_router_logits": False, "pad_token_id": 199999,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
        "rms_norm_eps": 1e-05, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                         "rope_type": "yarn", "truncate": False},
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 201088}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "generation_config.json"), "w") as file:
        json.dump({"eos_token_id": [200002], "bos_token_id": 199998}, file)


FILLED = itertools.count()


def fill(module, *_, **__):
    """Instead of vLLM's dummy weights, which are nearly alike: the same random ones in both processes. Called for each of the
    model's modules in turn."""
    import torch

    for name, parameter in module.named_parameters(recurse=False):
        g = torch.Generator(device="cuda").manual_seed(next(FILLED))
        t = parameter.data
        # Padded weights are filled where the checkpoint has values, so that padded and unpadded models are the same.
        if t.dtype == torch.uint8:
            scale, down = "scale" in name, "w2_" in name
            rows = 2880 if down else 5760
            columns = 2880 // (32 if scale else 2)
            t.zero_()
            for expert in range(t.shape[0]):
                low, high = (117, 121) if scale else (0, 256)
                t[expert, :rows, :columns] = torch.randint(low, high, (rows, columns), dtype=torch.uint8, device=t.device, generator=g)
        elif "w13_bias" in name or "w2_bias" in name:
            rows = 2880 if "w2_" in name else 5760
            t.zero_()
            t[:, :rows] = (torch.randn(t.shape[0], rows, device=t.device, generator=g) * 0.1).to(t.dtype)
        elif t.is_floating_point():
            if "norm" in name:
                t.fill_(1.0)
            else:
                deviation = 0.02 if t.ndim >= 2 else 0.1
                t.copy_((torch.randn(t.shape, device=t.device, generator=g) * deviation).to(t.dtype))


def measure(size, backend, folder):
    """In the child process; the last line of its output is JSON."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                      DO_NOT_TRACK="1", VLLM_USE_FLASHINFER_SAMPLER="0")
    import torch
    import vllm.model_executor.model_loader.dummy_loader as dummy_loader
    from vllm import LLM, SamplingParams

    dummy_loader.initialize_dummy_weights = fill
    options = {"moe_backend": backend} if backend else {}
    begin = time.time()
    llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=20480, max_num_seqs=256,
              gpu_memory_utilization=0.9, enable_prefix_caching=False, max_num_batched_tokens=8192,
              compilation_config={"cudagraph_capture_sizes": BATCHES}, **options)
    results = {"ready_s": time.time() - begin}

    def generate(prompts, **parameters):
        torch.cuda.synchronize()
        start = time.time()
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts],
                               SamplingParams(detokenize=False, ignore_eos=True, **parameters), use_tqdm=False)
        return time.time() - start, outputs

    rnd = random.Random(7)

    def prompts(count, length):
        return [[rnd.randrange(1000, 190000) for _ in range(length)] for _ in range(count)]

    def seconds(count, length, tokens):
        return generate(prompts(count, length), temperature=1.0, max_tokens=tokens, min_tokens=tokens)[0]

    greedy = generate(prompts(GREEDY_PROMPTS, 40), temperature=0.0, max_tokens=GREEDY_TOKENS, logprobs=2)[1]
    results["greedy"] = [[[token, sorted((entry.logprob for entry in places.values()), reverse=True)[:2]]
                          for token, places in zip(o.outputs[0].token_ids, o.outputs[0].logprobs)] for o in greedy]
    seconds(8, 32, 8)
    short, long = 32, 160
    for batch in BATCHES:
        a = min(seconds(batch, 64, short) for _ in range(3))
        b = min(seconds(batch, 64, long) for _ in range(3))
        results[f"decode {batch}"] = batch * (long - short) / (b - a)
        print(f"decode {batch}: {results[f'decode {batch}']:.0f} tok/s", flush=True)
    seconds(1, 2048, 1)
    results["pp2048"] = 2048 / min(seconds(1, 2048, 1) for _ in range(4))
    results["pp2048 x 16"] = 16 * 2048 / min(seconds(16, 2048, 1) for _ in range(2))
    print(json.dumps(results), flush=True)


def child(size, backend, folder, plugin, log):
    """Results of a process, or None; its log stays."""
    environment = {**os.environ, "MOESAIC_VLLM": "1" if plugin else "0", "VLLM_CACHE_ROOT": os.path.join(folder, "cache")}
    command = [sys.executable, __file__, size, "--child", folder] + (["--backend", backend] if backend else [])
    with open(log, "w") as file:
        code = subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
    lines = open(log).read().splitlines()
    uses = next((line for line in lines if "moesaic: " in line), None)
    if code != 0 or not lines:
        print(f"{'with' if plugin else 'without'} the plugin: exit status {code}; {log} ends:", *lines[-15:], sep="\n  ", flush=True)
        return None, uses
    return json.loads(lines[-1]), uses


def compare_greedy(a, b):
    """(prompts that agree, gaps of the two likeliest tokens where the others part)."""
    same, gaps = 0, []
    for ours, theirs in zip(a, b):
        place = next((i for i, (x, y) in enumerate(zip(ours, theirs)) if x[0] != y[0]), None)
        if place is None:
            same += 1
        else:
            gaps.append(theirs[place][1][0] - theirs[place][1][1])
    return same, gaps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=LAYERS)
    parser.add_argument("--backend", help="vLLM's own, for the run without the plugin: triton or marlin")
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return measure(options.size, options.backend, options.child)
    folder = tempfile.mkdtemp(prefix=f"gpt-oss-{options.size}-")
    write_config(folder, options.size)
    runs = {}
    for plugin in (False, True):
        begin = time.time()
        runs[plugin], uses = child(options.size, None if plugin else options.backend, folder, plugin, os.path.join(folder, f"plugin-{int(plugin)}.log"))
        print(f"{'with' if plugin else 'without'} the plugin: {time.time() - begin:.0f} s; {uses or 'vLLM alone'}", flush=True)
    good = all(runs.values()) and uses is not None and "run on moesaic's kernels" in uses
    if all(runs.values()):
        print(f"\n{options.size}, tokens/s\n\n| test | vLLM {options.backend or ''} | with the plugin | ratio |\n| --- | ---: | ---: | ---: |")
        for name in [f"decode {batch}" for batch in BATCHES] + ["pp2048", "pp2048 x 16"]:
            a, b = runs[False][name], runs[True][name]
            print(f"| {name} | {a:,.0f} | {b:,.0f} | {b / a:.2f} |")
        same, gaps = compare_greedy(runs[True]["greedy"], runs[False]["greedy"])
        print(f"\ngreedy: {same} of {GREEDY_PROMPTS} prompts give the same {GREEDY_TOKENS} tokens; the others part where the two likeliest "
              f"differ by {', '.join(f'{gap:.4f}' for gap in gaps) or 'nothing'} in log-probability")
        good &= all(gap < CLOSE for gap in gaps)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"size": options.size, "backend": options.backend, "without": runs[False], "with": runs[True]}, file)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
