"""Whether vLLM answers the same with moesaic's layers as with its own, in one setting after the other, on one GPU.

    PYTHONPATH=site python3 vllm_answers.py [--settings plain,fp8,..] [--logs FOLDER]

`site` as for vllm_plugin.py, which says how. The model is random, of the 20b's shapes with 4 layers. Each setting runs in two
processes, without and with the plugin: prompts of 1 to 700 tokens, greedy, some of them together, some with the same beginning.
Both must write the same tokens up to a place where two are nearly as likely, and the log-probabilities up to there must
agree. The exit status says whether they do. Several processes share the GPU.
"""

import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile

import vllm_plugin as bench

LAYERS = 4
AT_ONCE = 6  # processes
TOKENS = 40
CLOSE = 0.1  # log-probabilities: BF16's are 1/64 apart here, and a step adds many such errors
LIKELIEST = 10  # vLLM's likeliest tokens, among which the other's must be
SETTINGS = {
    "plain": {},
    "chunked": {"max_num_batched_tokens": 96, "max_num_seqs": 16},
    "prefix": {"enable_prefix_caching": True},
    "blocks64": {"block_size": 64, "enable_prefix_caching": True},
    "fp8": {"kv_cache_dtype": "fp8"},
    "ngram": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}},
    "few_pages": {"num_gpu_blocks_override": 320, "max_num_seqs": 16},  # requests are preempted
    "eager": {"enforce_eager": True},
}
ENVIRONMENT = {"vllm_graphs": {"MOESAIC_VLLM_GRAPHS": "vllm"}, "mxfp8": {"MOESAIC_VLLM_DENSE": "mxfp8"}}
LOOSE = {"fp8": 4, "mxfp8": 6}  # times CLOSE: values are rounded that vLLM has otherwise


def prompts():
    rnd = random.Random(3)
    words = [rnd.randrange(1000, 190000) for _ in range(60)]
    beginning = [rnd.choice(words) for _ in range(200)]
    lengths = [1, 2, 31, 32, 33, 64, 127, 128, 129, 200, 300, 700]
    own = [[rnd.choice(words) for _ in range(length)] for length in lengths]
    return own + [beginning + prompt[:40] for prompt in own[2:8]] + [words * 3 + words[:20]]


def answer(folder, settings, kept):
    from vllm import LLM, SamplingParams

    llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True,
              **{"max_model_len": 2048, "max_num_seqs": 64, "gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 2 << 30, "enable_prefix_caching": False, **settings})
    parameters = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=LIKELIEST)
    outputs = []
    for _ in range(2):  # the second time with whatever the first left in the cache
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], parameters, use_tqdm=False)
        with open(kept, "a") as file:
            json.dump([[[token, {str(t): entry.logprob for t, entry in places.items()}]
                        for token, places in zip(o.outputs[0].token_ids, o.outputs[0].logprobs)] for o in outputs], file)
            file.write("\n")


def run(folder, setting, mode, log):
    kept = os.path.join(folder, f"{setting}-{mode}.jsonl")
    path = [os.path.join(folder, "site"), os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "MOESAIC_VLLM": mode, "PYTHONPATH": os.pathsep.join(p for p in path if p), "HF_HUB_OFFLINE": "1",
                   "VLLM_CACHE_ROOT": os.path.join(folder, "cache"), "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
                   "VLLM_HOST_IP": "127.0.0.1", **(ENVIRONMENT.get(setting, {}) if mode == "1" else {})}
    with open(log, "w") as file:
        process = subprocess.run([sys.executable, __file__, "--child", folder, "--kept", kept, "--settings", setting], env=environment,
                                 stdout=file, stderr=subprocess.STDOUT, timeout=300)
    with open(log) as file:
        text = file.read()
    if process.returncode != 0 or mode == "1" and bench.RUNS["1"] not in text:
        print(f"{setting}, MOESAIC_VLLM={mode}: exit status {process.returncode}; {log} ends:", *text.splitlines()[-20:], sep="\n  ")
        return None
    with open(kept) as file:
        return [json.loads(line) for line in file]


def compare(theirs, ours, close):
    """(tokens with the same text before them, tokens that part, the largest difference of log-probabilities, whether all is well)."""
    same, parted, largest, good = 0, 0, 0.0, True
    for a, b in ((a, b) for x, y in zip(theirs, ours) for a, b in zip(x, y)):
        for (token, places), (other, others) in zip(a, b):
            for likely in set(places) & set(others):
                largest = max(largest, abs(places[likely] - others[likely]))
            if token != other:
                parted += 1
                good &= str(other) in places and places[str(token)] - places[str(other)] < close
                break
            same += 1
    return same, parted, largest, good and largest < close and same > 0


def main():
    parser = argparse.ArgumentParser()
    every = [*SETTINGS, *ENVIRONMENT]
    parser.add_argument("--settings", default=",".join(every))
    parser.add_argument("--logs")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--kept", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        without = {"enforce_eager": True} if os.environ["MOESAIC_VLLM"] == "0" else {}  # starts sooner
        return answer(options.child, {**without, **SETTINGS.get(options.settings, {})}, options.kept)
    folder = tempfile.mkdtemp(prefix="gpt-oss-answers-")
    bench.LAYERS["answers"], bench.EXPERTS["answers"] = LAYERS, 32
    bench.write_config(folder, "answers")
    bench.write_entry_point(os.path.join(folder, "site"))
    logs = options.logs or folder
    os.makedirs(logs, exist_ok=True)
    good, names = True, options.settings.split(",")
    wanted = {(name if name in SETTINGS else "plain", "0") for name in names} | {(name, "1") for name in names}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {key: pool.submit(run, folder, *key, os.path.join(logs, f"{key[0]}-{key[1]}.log")) for key in sorted(wanted)}
    print("| setting | same tokens | places where they part | largest difference of log-probabilities | |\n| --- | ---: | ---: | ---: | --- |")
    for name in names:
        theirs, ours = runs[name if name in SETTINGS else "plain", "0"].result(), runs[name, "1"].result()
        if theirs is None or ours is None:
            good = False
            continue
        same, parted, largest, well = compare(theirs, ours, CLOSE * LOOSE.get(name, 1))
        print(f"| {name} | {same} | {parted} | {largest:.4f} | {'agree' if well else 'DIFFER'} |", flush=True)
        good &= well
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
