"""gpt-oss's mixture of experts alone on a Hopper GPU: moesaic.ops against a loop in double precision, and against vLLM's
kernels (Triton and Marlin) where vLLM is there. Prints tables in Markdown; the exit status says whether all checks held.

    python3 moe_operator.py 20b [--json FILE] [--tokens 1,8,64] [--no-peers] [--no-checks]       or 120b

Needs torch with CUDA, numpy not; moesaic's wheel built with nvcc. On a machine without an index, carry the wheel (some 15 MB with
code for Hopper alone) and unpack it, since Python finds a package in any folder:

    here   MOESAIC_CUDA=ON python3.12 -m pip wheel --no-deps -w wheels . -C cmake.define.CMAKE_CUDA_ARCHITECTURES=90a-real
    there  python3 -m zipfile -e wheels/moesaic-*.whl site && PYTHONPATH=site python3 moe_operator.py 20b

vLLM (0.25.1), if it is to be compared, is another folder of PYTHONPATH.

How it is timed: a CUDA graph runs the operator on several layers in turn, each with its own weights and routing, more bytes
than L2 holds. The figure is a layer's mean; the median of 30 replays, with the least and the most. `logits` begins at the
router's logits, `ids` at given ids and weights; the peers begin at the logits, as they do in vLLM.
"""

import argparse
import json
import statistics
import sys
import time

import torch

from moesaic import ops

HIDDEN, TOP_K, ALPHA, LIMIT = 2880, 4, 1.702, 7.0
EXPERTS = {"20b": 32, "120b": 128}
TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
LAYERS = 4  # in turn
REPLAYS = 30
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


class Layer:
    """Random experts as checkpoints have them."""

    def __init__(self, experts, seed, hidden=HIDDEN, intermediate=HIDDEN, first=118):
        g = torch.Generator(device="cuda").manual_seed(seed)

        def integers(low, high, *shape):
            return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda", generator=g)

        self.experts, self.hidden, self.intermediate = experts, hidden, intermediate
        self.w13, self.s13 = integers(0, 256, experts, 2 * intermediate, hidden // 2), integers(first, first + 4, experts, 2 * intermediate, hidden // 32)
        self.w2, self.s2 = integers(0, 256, experts, hidden, intermediate // 2), integers(first, first + 4, experts, hidden, intermediate // 32)
        self.b13 = (torch.randn(experts, 2 * intermediate, device="cuda", generator=g) * 0.3).bfloat16()
        self.b2 = (torch.randn(experts, hidden, device="cuda", generator=g) * 0.3).bfloat16()

    def prepare(self, first=0, count=None, **options):
        part = slice(first, first + (self.experts if count is None else count))
        return ops.prepare_mxfp4_moe(self.w13[part], self.s13[part], self.b13[part], self.w2[part], self.s2[part], self.b2[part],
                                     first_expert=first, num_experts=self.experts, **options)

    @staticmethod
    def values(codes, scales):
        table = torch.tensor(FP4 + [-v for v in FP4], dtype=torch.float64, device="cuda")
        both = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
        return table[both] * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)

    def expected(self, x, ids, weights, alpha=ALPHA, limit=LIMIT, offset=1.0, interleaved=True):
        """The loop in double precision, on [tokens, hidden] double."""
        out = torch.zeros_like(x)
        for expert in range(self.experts):
            token, choice = (ids == expert).nonzero(as_tuple=True)
            if token.numel() == 0:
                continue
            both = x[token] @ self.values(self.w13[expert], self.s13[expert]).T + self.b13[expert].double()
            gate, up = (both[:, ::2], both[:, 1::2]) if interleaved else both.chunk(2, 1)
            if limit is not None:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            h = gate * torch.sigmoid(alpha * gate) * (up + offset)
            y = h @ self.values(self.w2[expert], self.s2[expert]).T + self.b2[expert].double()
            out.index_add_(0, token, y * weights[token, choice, None].double())
        return out


def inputs(tokens, experts, seed, dtype=torch.bfloat16, hidden=HIDDEN, top_k=TOP_K):
    g = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(tokens, hidden, device="cuda", generator=g).to(dtype)
    # Values that BF16 tells apart, so that all choose the same.
    steps = torch.linspace(-3, 3, experts, device="cuda")
    logits = steps[torch.rand(tokens, experts, device="cuda", generator=g).argsort(1)].bfloat16()
    top = logits.double().topk(top_k)
    return x, logits, top.indices.int(), top.values.softmax(1).float()


def error_of(got, want):
    return float((got.double() - want).norm() / want.norm())


# --- Checks beside the table ---


def checks(size):
    """Yields a line and whether it holds."""
    experts = EXPERTS[size]
    layer = Layer(experts, 5)
    prepared = layer.prepare()
    bound = {torch.bfloat16: 2.6e-3, torch.float16: 6e-4}  # the output's rounding, and h's to F16
    for tokens in (1, 3, 8, 9, 33, 127, 500, 5000):
        for dtype in bound:
            x, logits, ids, weights = inputs(tokens, experts, tokens, dtype)
            want = layer.expected(x.double(), ids, weights)
            for name, got in (("ids", ops.mxfp4_moe(x, ids, weights, prepared)),
                              ("ids64", ops.mxfp4_moe(x, ids.long(), weights, prepared, torch.empty_like(x))),
                              ("logits", ops.mxfp4_moe_from_logits(x, logits, prepared))):
                yield f"{tokens} tokens, {dtype}, {name}", error_of(got, want) < bound[dtype]
    x, logits, ids, weights = inputs(40, experts, 1)
    skipped = torch.where(torch.rand(ids.shape, device="cuda") < 0.3, torch.full_like(ids, -1), ids)
    want = layer.expected(x.double(), skipped, weights)
    yield "skipped ids", error_of(ops.mxfp4_moe(x, skipped, weights, prepared), want) < 2.6e-3
    for tokens in (1, 5, 40, 700):
        x, logits, ids, weights = inputs(tokens, experts, tokens)
        want = layer.expected(x.double(), ids, weights)
        parts = [layer.prepare(0, 3), layer.prepare(3, experts - 3)]
        yield f"{tokens} tokens, two ranges of experts", error_of(sum(ops.mxfp4_moe(x, ids, weights, p).double() for p in parts), want) < 4e-3
        yield f"{tokens} tokens, two ranges, logits", error_of(
            sum(ops.mxfp4_moe_from_logits(x, logits, p).double() for p in parts), want) < 4e-3
    x, logits, ids, weights = inputs(6, experts, 1)
    x[2, 7], x[4, 0] = float("nan"), 1e6
    bad = ops.mxfp4_moe(x, ids, weights, prepared).isnan()
    yield "rows that cannot be computed are NaN", bool(bad[[2, 4]].all()) and not bool(bad[[0, 1, 3, 5]].any())
    small = Layer(8, 9, 512, 256, 122)
    for options in ({"alpha": 1.0, "limit": None, "up_offset": 0.0, "interleaved": False}, {"limit": 2.0}, {"top_k": 2}):
        top_k = options.get("top_k", TOP_K)
        for tokens in (1, 30, 300):
            x, logits, ids, weights = inputs(tokens, 8, tokens, hidden=512, top_k=top_k)
            renamed = {"offset" if k == "up_offset" else k: v for k, v in options.items() if k != "top_k"}
            want = small.expected(x.double(), ids, weights, **renamed)
            yield f"512 x 256, {options}, {tokens} tokens", error_of(ops.mxfp4_moe(x, ids, weights, small.prepare(**options)), want) < 3e-3
    for tokens in (1, 8, 64, 1000):
        x, logits, ids, weights = inputs(tokens, experts, tokens)
        first = ops.mxfp4_moe_from_logits(x, logits, prepared)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = ops.mxfp4_moe_from_logits(x, logits, prepared)
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        yield f"{tokens} tokens, a graph gives the same bits", torch.equal(out, first)
    compiled = torch.compile(lambda x, l: ops.mxfp4_moe_from_logits(x * 2, l, prepared) + 1, fullgraph=True, backend="aot_eager")
    yield "torch.compile", torch.equal(compiled(x, logits), ops.mxfp4_moe_from_logits(x * 2, logits, prepared) + 1)


# --- vLLM's kernels ---


def padded(tensor, *sizes):
    out = torch.zeros(sizes, dtype=tensor.dtype, device=tensor.device)
    out[tuple(slice(0, n) for n in tensor.shape)] = tensor
    return out


def marlin(layer):
    """As vLLM's MARLIN backend has it: hidden padded to 256, intermediate to 128."""
    from types import SimpleNamespace

    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import prepare_moe_mxfp4_layer_for_marlin
    from vllm.scalar_type import scalar_types

    e, k, n = layer.experts, (layer.hidden + 255) // 256 * 256, (layer.intermediate + 127) // 128 * 128
    w13, w2, s13, s2, b13, b2 = prepare_moe_mxfp4_layer_for_marlin(
        SimpleNamespace(params_dtype=torch.bfloat16), padded(layer.w13, e, 2 * n, k // 2), padded(layer.w2, e, k, n // 2),
        padded(layer.s13, e, 2 * n, k // 32), padded(layer.s2, e, k, n // 32), padded(layer.b13, e, 2 * n), padded(layer.b2, e, k))

    def run(x, logits):
        weights, ids, _ = fused_topk(x, logits, TOP_K, True)
        rows = torch.nn.functional.pad(x, (0, k - layer.hidden))
        return fused_marlin_moe(rows, w13, w2, b13, b2, s13, s2, weights, ids, scalar_types.float4_e2m1f.id, global_num_experts=e,
                                activation=MoEActivation.SWIGLUOAI, clamp_limit=LIMIT, gemm1_alpha=ALPHA, gemm1_beta=1.0)[:, :layer.hidden]

    return run


def triton(layer):
    from vllm.utils.import_utils import import_triton_kernels

    import_triton_kernels()  # vLLM has a copy of the package
    from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
    from vllm.model_executor.layers.fused_moe.config import mxfp4_w4a16_moe_quant_config
    from vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe import triton_kernel_moe_forward
    from vllm.model_executor.layers.quantization.utils.mxfp4_utils import _swizzle_mxfp4

    (w13, f13, s13), (w2, f2, s2) = _swizzle_mxfp4(layer.w13, layer.s13), _swizzle_mxfp4(layer.w2, layer.s2)
    config = mxfp4_w4a16_moe_quant_config(
        w1_scale=PrecisionConfig(weight_scale=s13, flex_ctx=FlexCtx(rhs_data=f13)),
        w2_scale=PrecisionConfig(weight_scale=s2, flex_ctx=FlexCtx(rhs_data=f2)),
        w1_bias=layer.b13.float(), w2_bias=layer.b2.float(), gemm1_alpha=ALPHA, gemm1_beta=1.0, gemm1_clamp_limit=LIMIT)

    def run(x, logits):
        return triton_kernel_moe_forward(x, w13, w2, logits, TOP_K, True, quant_config=config, global_num_experts=layer.experts)

    return run


def peers(layers):
    found = {}
    for name, make in (("Triton", triton), ("Marlin", marlin)):
        try:
            found[name] = [make(layer) for layer in layers]
        except Exception as error:  # a peer that is not there is named, and the others go on
            print(f"{name}: not compared: {type(error).__name__}: {error}".splitlines()[0], flush=True)
    return found


# --- Times ---


def time_of(calls):
    """Microseconds of one of the calls: median, least, most."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    times = []
    for i in range(REPLAYS + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) * 1000 / len(calls))
    del kept
    return statistics.median(times), min(times), max(times)


def table(size, token_counts, with_peers):
    layers = [Layer(EXPERTS[size], seed) for seed in range(LAYERS)]
    prepared = [layer.prepare() for layer in layers]
    others = peers(layers) if with_peers else {}
    names = ["logits", "ids", *others]
    print(f"\n{size}: us a layer (least to most), relative error against double precision\n")
    print("| tokens | kernel | " + " | ".join(f"{name} us | error" for name in names) + (" | best peer / logits |" if others else " |"))
    print("| ---: | --- |" + " ---: | ---: |" * len(names) + (" ---: |" if others else ""))
    rows, holds = [], True
    for tokens in token_counts:
        given = [inputs(tokens, EXPERTS[size], 100 * tokens + i) for i in range(LAYERS)]
        calls = {"logits": [lambda i=i: ops.mxfp4_moe_from_logits(given[i][0], given[i][1], prepared[i]) for i in range(LAYERS)],
                 "ids": [lambda i=i: ops.mxfp4_moe(given[i][0], given[i][2], given[i][3], prepared[i]) for i in range(LAYERS)]}
        for name, runs in others.items():
            calls[name] = [lambda i=i, runs=runs: runs[i](given[i][0], given[i][1]) for i in range(LAYERS)]
        want = layers[0].expected(given[0][0].double(), given[0][2], given[0][3])
        row = {"tokens": tokens, "kernel": prepared[0].plan(tokens)}
        for name in names:
            try:
                row[name] = {"error": error_of(calls[name][0](), want)}
                row[name]["us"], row[name]["least"], row[name]["most"] = time_of(calls[name])
            except Exception as error:
                print(f"{name}, {tokens} tokens: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr, flush=True)
                holds &= name in others
        cells = [f"{row[n]['us']:.1f} ({row[n]['least']:.1f} to {row[n]['most']:.1f}) | {row[n]['error']:.2e}" if "us" in row.get(n, {}) else "failed | "
                 for n in names]
        best = min((row[n]["us"] for n in others if "us" in row.get(n, {})), default=None)
        ratio = f" {best / row['logits']['us']:.2f} |" if best and "us" in row["logits"] else " |" if others else ""
        print(f"| {tokens:,} | {row['kernel']} | " + " | ".join(cells) + " |" + ratio, flush=True)
        least_error = min((row[n]["error"] for n in others if "error" in row.get(n, {})), default=2.6e-3)
        holds &= row["logits"].get("error", 1) <= max(1.02 * least_error, 2.0e-3)
        rows.append(row)
    return rows, holds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=EXPERTS)
    parser.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=TOKENS)
    parser.add_argument("--json")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--no-checks", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("moe_operator.py: there is no CUDA device")
    begin = time.time()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}", flush=True)
    failed = 0
    if not options.no_checks:
        results = list(checks(options.size))
        for line, holds in results:
            if not holds:
                print("FAILED:", line)
        failed = sum(not holds for _, holds in results)
        print(f"{len(results) - failed} of {len(results)} checks hold, {time.time() - begin:.0f} s", flush=True)
    torch.cuda.empty_cache()
    rows, holds = table(options.size, options.tokens, not options.no_peers)
    print(f"\n{time.time() - begin:.0f} s; errors {'within' if holds else 'BEYOND'} bounds")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"size": options.size, "device": torch.cuda.get_device_name(), "checks_failed": failed, "rows": rows}, file, indent=1)
    sys.exit(failed > 0 or not holds)


if __name__ == "__main__":
    main()
