"""vLLM with and without moesaic's plugin on random gpt-oss weights, one GPU: decode, prefill, and greedy tokens of both.

    PYTHONPATH=site python3 vllm_plugin.py 20b [--backend triton|marlin] [--json FILE] [--logs FOLDER]       or 120b
    .. --modes 0,experts,1 --batches 1,8     MOESAIC_VLLM of each run, the first to be compared with; fewer figures
    .. --modes 0,bench --program moesaic     vLLM alone, and `moesaic bench` on the same card
    .. --modes count                         how many experts vLLM's steps choose, beside what even routing chooses

`site` holds vLLM 0.25.1 with what it imports, and moesaic's wheel unpacked; moe_operator.py says how. No model is needed: the
configuration is written here, FP4 codes, scales and routers are random. Each of the two runs in processes of its own (2 to 5
minutes), and what it has measured is kept if it ends early. Prints figures as they come, and one table in Markdown; the exit status
says whether both ran, whether the plugin's kernels were used, and whether the greedy tokens agree or part where the two likeliest
tokens are close.

decode: tokens/s at so many sequences, by the time stamps that vLLM's engine gives a sequence's first and last token: the best of
three runs, and the slowest beside it. pp2048 x 16: 16 prompts of 2,048 tokens.
"""

import argparse
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
RUNS = {"1": "all layers of it", "experts": "run on moesaic's kernels"}  # the plugin's line then
LAYERS, EXPERTS = {"20b": 24, "120b": 36}, {"20b": 32, "120b": 128}
GREEDY_PROMPTS, GREEDY_TOKENS = 8, 48
STEP_TOKENS = 8192  # most of a step
# vLLM's logits are BF16: the likeliest ones of random weights, 4 to 8, are 1/32 apart. Two such steps, and a little.
CLOSE = 0.07


def decode_name(batch):
    return f"decode {batch}"


def depth_name(depth):
    return f"decode 1 behind {depth:,}"


def prompt_name(count, length):
    return f"pp{length}" + (f" x {count}" if count > 1 else "")


def figures(options):
    """The names of a run's figures, in the table's order."""
    names = [decode_name(batch) for batch in options.batches] + [depth_name(depth) for depth in options.depths]
    return names + [prompt_name(*prompt) for prompt in options.prompts]


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


def write_entry_point(folder):
    """vLLM calls install() in each of its processes, as it does with any plugin. The folder is for PYTHONPATH."""
    about = os.path.join(folder, "random_gpt_oss-0.dist-info")
    os.makedirs(about)
    with open(os.path.join(about, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: random-gpt-oss\nVersion: 0\n")
    with open(os.path.join(about, "entry_points.txt"), "w") as file:
        file.write(f"[vllm.general_plugins]\nrandom_gpt_oss = {os.path.splitext(os.path.basename(__file__))[0]}:install\n")


def install():
    import vllm.model_executor.model_loader.dummy_loader as dummy_loader

    dummy_loader.initialize_dummy_weights = fill
    if os.environ.get(COUNTS):
        count_experts(os.environ[COUNTS])


COUNTS = "GPT_OSS_EXPERT_COUNTS"  # the file that gets lines of: tokens, layer, different experts


def count_experts(file):
    """vLLM's own layers write down how many experts each step chooses."""
    from vllm.model_executor.models.gpt_oss import MLPBlock

    forward = MLPBlock.forward

    def counted(self, x):
        chosen = self.router(x).topk(self.experts_per_token, dim=-1).indices
        with open(file, "a") as lines:
            print(x.shape[0], self.layer_idx, chosen.unique().numel(), file=lines)
        return forward(self, x)

    MLPBlock.forward = counted


FILLED = itertools.count()
WEIGHTS_ARE_RANDOM = "vllm_plugin.py: weights are random"


def fill(module, *_, **__):
    """Instead of vLLM's dummy weights, which are nearly alike: the same random ones in both processes. Called for each of the
    model's modules in turn. The blocks add little to the embedding (their last matrices are an eighth as large, biases small):
    otherwise the hidden states of all tokens become alike in deep layers, which then choose the same experts. Biases of routers are
    small beside their products, for the same reason."""
    import torch

    for name, parameter in module.named_parameters(recurse=False):
        seed = next(FILLED)
        if seed == 0:
            print(WEIGHTS_ARE_RANDOM, flush=True)
        g = torch.Generator(device="cuda").manual_seed(seed)
        t = parameter.data
        # Padded weights are filled where the checkpoint has values, so that padded and unpadded models are the same.
        if t.dtype == torch.uint8:
            scale, down = "scale" in name, "w2_" in name
            rows = 2880 if down else 5760
            columns = 2880 // (32 if scale else 2)
            t.zero_()
            for expert in range(t.shape[0]):
                low, high = ((114, 118) if down else (117, 121)) if scale else (0, 256)
                t[expert, :rows, :columns] = torch.randint(low, high, (rows, columns), dtype=torch.uint8, device=t.device, generator=g)
        elif "w13_bias" in name or "w2_bias" in name:
            rows = 2880 if "w2_" in name else 5760
            t.zero_()
            t[:, :rows] = (torch.randn(t.shape[0], rows, device=t.device, generator=g) * 0.02).to(t.dtype)
        elif t.is_floating_point():
            kind = type(module).__name__
            if kind == "RMSNorm":
                t.fill_(1.0)
            else:
                deviation = 1.0 if kind == "VocabParallelEmbedding" else 0.02 / 8 if kind == "RowParallelLinear" and t.ndim >= 2 else 0.02
                t.copy_((torch.randn(t.shape, device=t.device, generator=g) * deviation).to(t.dtype))


def start(folder, options, **changes):
    """vLLM's engine on random weights, for the figures of `options`."""
    from vllm import LLM

    longest = max([16384, *options.depths, *(length for _, length in options.prompts)]) + 4096
    most = max([256, *options.batches])
    choice = {"moe_backend": options.backend} if options.backend else {}
    settings = {"max_model_len": longest, "max_num_seqs": most, "gpu_memory_utilization": 0.9, "enable_prefix_caching": False,
                "max_num_batched_tokens": STEP_TOKENS, "disable_log_stats": False,
                "compilation_config": {"cudagraph_capture_sizes": sorted({*BATCHES, *options.batches})}, **choice, **changes}
    return LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, **settings)


class Generator:
    """Times what vLLM writes for random prompts."""

    def __init__(self, llm):
        self.llm, self.random = llm, random.Random(7)

    def run(self, count, length, **parameters):
        """(seconds, outputs)"""
        from vllm import SamplingParams

        requests = [{"prompt_token_ids": [self.random.randrange(1000, 190000) for _ in range(length)]} for _ in range(count)]
        parameters = SamplingParams(detokenize=False, ignore_eos=True, **parameters)
        begin = time.time()
        outputs = self.llm.generate(requests, parameters, use_tqdm=False)
        passed = time.time() - begin
        assert all(len(output.outputs[0].token_ids) == parameters.max_tokens for output in outputs)
        return passed, outputs

    def seconds(self, count, length, tokens):
        return self.run(count, length, temperature=1.0, max_tokens=tokens)[0]

    def decode(self, count, length, tokens):
        """Tokens a second while all `count` sequences decode, best and worst of three runs."""
        self.seconds(count, length, tokens)  # vLLM's Triton kernels are compiled when their shape comes first
        rates = [self.decode_rate(count, length, tokens) for _ in range(3)]
        return max(rates), min(rates)

    def decode_rate(self, count, length, tokens):
        outputs = self.run(count, length, temperature=1.0, max_tokens=tokens)[1]
        times = [(output.metrics.first_token_ts, output.metrics.last_token_ts) for output in outputs]
        # Steps read prompts until the last sequence begins, so the last one is timed.
        first, last = max(times)
        return count * (tokens - 1) / (last - first)

    def prefill(self, count, length):
        for _ in range(3):
            self.seconds(count, length, 1)
        rates = [count * length / self.seconds(count, length, 1) for _ in range(8 if count == 1 else 4)]
        return max(rates), min(rates)

    def greedy(self):
        outputs = self.run(GREEDY_PROMPTS, 40, temperature=0.0, max_tokens=GREEDY_TOKENS, logprobs=2)[1]
        return [[[token, sorted((entry.logprob for entry in places.values()), reverse=True)[:2]]
                 for token, places in zip(o.outputs[0].token_ids, o.outputs[0].logprobs)] for o in outputs]


def measure(folder, kept, options):
    """In a process of its own. Its results are in the file `kept` as they come; it prints lines that begin with 'figure: '."""
    results = {}

    def keep(name, value, shown):
        results[name] = value
        with open(kept + ".new", "w") as file:
            json.dump(results, file)
        os.replace(kept + ".new", kept)
        print(f"figure: {name}: {shown}", flush=True)

    if os.environ.get(COUNTS):
        return keep("counts", counts(folder, options), "done")
    begin = time.time()
    generator = Generator(start(folder, options))
    keep("ready_s", time.time() - begin, f"{time.time() - begin:.0f} s")
    try:
        keep("greedy", generator.greedy(), "done")
    except Exception:  # the times are worth having without it
        traceback.print_exc()
    generator.seconds(8, 32, 8)
    tests = [(prompt_name(*prompt), generator.prefill, prompt) for prompt in options.prompts]
    tests += [(depth_name(depth), generator.decode, (1, depth, 257)) for depth in options.depths]
    # One step reads all prompts, so that all sequences begin together.
    tests += [(decode_name(batch), generator.decode, (batch, min(64, STEP_TOKENS // batch), 129 if batch < 64 else 257))
              for batch in options.batches]
    for name, test, arguments in tests:
        best, worst = test(*arguments)
        keep(name, best, f"{best:,.0f} tok/s (slowest {worst:,.0f})")


def counts(folder, options):
    """Of each number of sequences: the experts that a decoding step chooses, of the average layer, the least and the most."""
    generator = Generator(start(folder, options, enforce_eager=True, compilation_config={}))
    open(os.environ[COUNTS], "w").close()  # without the engine's own first steps
    for batch in options.batches:
        generator.seconds(batch, 67, 16)  # no step of prompts has as many rows as one of these batches
    layers = {}
    with open(os.environ[COUNTS]) as file:
        for tokens, layer, experts in (map(int, line.split()) for line in file):
            layers.setdefault(tokens, {}).setdefault(layer, []).append(experts)
    means = {batch: [statistics.mean(of) for of in layers[batch].values()] for batch in options.batches}
    return {str(batch): [statistics.mean(of), min(of), max(of)] for batch, of in means.items()}


def print_counts(of, experts):
    print(f"\n| sequences | different experts a layer, of {experts} | least and most chosen by a layer | by even routing |\n| ---: | ---: | ---: | ---: |")
    for batch, (mean, least, most) in of.items():
        print(f"| {batch} | {mean:.1f} | {least:.1f} to {most:.1f} | {experts * (1 - (1 - 4 / experts) ** int(batch)):.1f} |")


def bench(options, log):
    """(results, whether all ran) of `moesaic bench` on the same card."""
    results, good = {}, True
    model = f"dummy:gpt-oss-{options.size},dense=bf16"

    def row(name, *arguments):
        nonlocal good
        command = [options.program, "bench", "-m", model, "--device", "cuda", "-o", "json", "-r", "3", *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True)
        good &= done.returncode == 0
        for entry in json.loads(done.stdout) if done.returncode == 0 else []:
            results[name(entry)] = entry["tok_s"]
            print(f"  {name(entry)}: {entry['tok_s']:,.0f} tok/s, {entry['share']:.0%} of the bandwidth", flush=True)

    for tokens, batches in ((128, [b for b in options.batches if b < 64]), (256, [b for b in options.batches if b >= 64])):
        if batches:
            row(lambda entry: decode_name(entry["batch"]), "-p", 0, "-n", tokens, "-b", ",".join(map(str, batches)))
    for depth in options.depths:
        row(lambda entry: depth_name(entry["depth"]), "-p", 0, "-n", 256, "-d", depth)
    for length in dict.fromkeys(length for _, length in options.prompts):
        batches = ",".join(str(count) for count, other in options.prompts if other == length)
        row(lambda entry: prompt_name(entry["batch"], length), "-p", length, "-n", 0, "-b", batches)
    return results, good


def run(options, backend, folder, mode, log):
    """(results, whether the process ended well, the line on the plugin, vLLM's own backend) of a process; its log stays."""
    kept = os.path.join(folder, f"plugin-{mode}.json")
    path = [os.path.join(folder, "site"), os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "MOESAIC_VLLM": mode, "VLLM_CACHE_ROOT": os.path.join(folder, "cache"),
                   "PYTHONPATH": os.pathsep.join(part for part in path if part), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
                   "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_HOST_IP": "127.0.0.1"}
    counted = os.path.join(folder, "counts.txt")
    environment.update({COUNTS: counted, "MOESAIC_VLLM": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if mode == "count" else {})
    command = [sys.executable, __file__, *options.arguments, "--child", folder, "--kept", kept]
    command += ["--backend", backend] if backend else []
    lines = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as process, open(log, "w") as file:
        timer = threading.Timer(options.limit, os.killpg, (process.pid, signal.SIGKILL))  # vLLM's engine is a child of it
        timer.start()
        for line in process.stdout:
            lines.append(line.rstrip())
            print(line, end="", file=file, flush=True)
            if line.startswith("figure: "):
                print("  " + line[len("figure: "):], end="", flush=True)
        timer.cancel()
    good = process.returncode == 0 and any(WEIGHTS_ARE_RANDOM in line for line in lines)
    if not good:
        print(f"exit status {process.returncode}; {log} ends:", *lines[-25:], sep="\n  ", flush=True)
    uses = next((line for line in lines if "moesaic: " in line), None)
    chosen = next(iter(re.findall(r"Using '(\w+)' Mxfp4 MoE backend", "\n".join(lines))), None)
    results = {}
    if os.path.exists(kept):
        with open(kept) as file:
            results = json.load(file)
    return results, good, uses, chosen


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


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def prompt_sizes(text):
    """[(prompts, tokens)] of 2048,16x2048."""
    return [(int(count or 1), int(length)) for count, _, length in (each.rpartition("x") for each in text.split(",") if each)]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=LAYERS)
    parser.add_argument("--backend", help="vLLM's own, for the runs without the plugin: triton or marlin")
    parser.add_argument("--modes", default="0,1", help="MOESAIC_VLLM of each run: 0 (vLLM alone), experts, 1; or bench, count")
    parser.add_argument("--program", default="moesaic", help="of mode bench")
    parser.add_argument("--batches", type=numbers, default=BATCHES)
    parser.add_argument("--depths", type=numbers, default=[16384])
    parser.add_argument("--prompts", type=prompt_sizes, default=[(1, 2048), (16, 2048)], help="2048,16x2048: one, and 16 at a time")
    parser.add_argument("--json")
    parser.add_argument("--logs", help="folder for the logs")
    parser.add_argument("--limit", type=float, default=1200, help="seconds after which a run is stopped")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--kept", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.arguments = [options.size, "--batches", ",".join(map(str, options.batches)), "--depths", ",".join(map(str, options.depths)),
                         "--prompts", ",".join(f"{count}x{length}" for count, length in options.prompts)]
    return options


def run_mode(options, mode, folder, logs):
    """(results, whether all is well) of one mode."""
    begin = time.time()
    log = os.path.join(logs, f"vllm-{options.size}-plugin-{mode}.log")
    if mode == "bench":
        with open(log, "w") as file:
            results, good = bench(options, file)
        print(f"{options.program} bench: {time.time() - begin:.0f} s", flush=True)
        return results, good
    alone = mode in ("0", "count")
    results, good, uses, chosen = run(options, options.backend if alone else None, folder, mode, log)
    good &= alone or uses is not None and RUNS[mode] in uses
    said = f"vLLM alone, {chosen}" if alone else uses or "nothing was said of it"
    print(f"MOESAIC_VLLM={mode}: {time.time() - begin:.0f} s; {said}", flush=True)
    return {"backend": chosen, **results}, good


def main():
    options = parse()
    if options.child:
        return measure(options.child, options.kept, options)
    folder = tempfile.mkdtemp(prefix=f"gpt-oss-{options.size}-")
    write_config(folder, options.size)
    write_entry_point(os.path.join(folder, "site"))
    logs = options.logs or folder
    os.makedirs(logs, exist_ok=True)
    modes = options.modes.split(",")
    results, good, summary = {}, True, {"size": options.size, "backend": options.backend}
    for mode in modes:
        results[mode], ended_well = run_mode(options, mode, folder, logs)
        good &= ended_well
        summary[mode] = results[mode]
        if options.json:
            with open(options.json, "w") as file:
                json.dump(summary, file)
    if "counts" in results.get("count", {}):
        print_counts(results["count"]["counts"], EXPERTS[options.size])
    modes = [mode for mode in modes if mode != "count"]
    if modes:
        print_table(options, results, modes)
    for mode in modes[1:]:
        good &= mode == "bench" or greedy_agrees(mode, results[mode], results[modes[0]])
    return 0 if good else 1


def print_table(options, results, modes):
    heads = ["moesaic bench" if mode == "bench" else f"MOESAIC_VLLM={mode}" for mode in modes]
    print(f"\n{options.size}, tokens/s\n\n| test | {heads[0]} |{''.join(f' {head} | ratio |' for head in heads[1:])}")
    print("| --- | ---: |" + " ---: | ---: |" * (len(modes) - 1))
    for name in figures(options):
        a = results[modes[0]].get(name)
        cells = [f"{a:,.0f}" if a else ""]
        for b in (results[mode].get(name) for mode in modes[1:]):
            cells += [f"{b:,.0f}" if b else "", f"{b / a:.2f}" if a and b else ""]
        print(f"| {name} | {' | '.join(cells)} |")


def greedy_agrees(mode, ours, theirs):
    if "greedy" not in ours or "greedy" not in theirs:
        return False
    same, gaps = compare_greedy(ours["greedy"], theirs["greedy"])
    print(f"\ngreedy, {mode}: {same} of {GREEDY_PROMPTS} prompts give the same {GREEDY_TOKENS} tokens; the others part where the two "
          f"likeliest differ by {', '.join(f'{gap:.4f}' for gap in gaps) or 'nothing'} in log-probability")
    return all(gap < CLOSE for gap in gaps)


if __name__ == "__main__":
    sys.exit(main())
