"""gpt-oss's layer without its experts on a GPU: moesaic.ops against moesaic.reference_ops in double precision, in CUDA graphs and on
other streams; then times beside torch's products, vLLM's FlashAttention where vLLM is there, and the floor of bytes. Prints tables in
Markdown; the exit status says whether all checks held.

    python3 layer_operators.py [--no-times] [--bandwidth 3.12e12]

Needs torch with CUDA and moesaic's wheel built with nvcc (moe_operator.py says how to carry it).

How it is timed: a CUDA graph runs the operator on several matrices or caches in turn, more bytes than L2 holds where they can be so many.
The figure is one call's; the median of 30 replays.
"""

import argparse
import statistics
import sys

import torch
import torch.nn.functional as F

from moesaic import ops, reference_ops

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, WINDOW = 2880, 64, 8, 64, 201088, 128
FORMATS = ("keep", "mxfp8", "mxfp4")
REPLAYS = 30


def random(*shape, scale=1.0, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(*shape, device="cuda", generator=generator) * scale).bfloat16()


class Cache:
    def __init__(self, lengths, page_tokens, layout, fp8, seed=0):
        self.layout = layout
        most = max((n + page_tokens - 1) // page_tokens for n in lengths)
        order = (page_tokens, KV_HEADS) if layout == "NHD" else (KV_HEADS, page_tokens)
        shape = (2, len(lengths) * most + 1, *order, HEAD_DIM)
        self.k, self.v = random(*shape, seed=seed).to(torch.float8_e4m3fn if fp8 else torch.bfloat16)
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.table = torch.randperm(len(lengths) * most, device="cuda", generator=generator).view(len(lengths), most).int()
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")


def starts_of(rows):
    return torch.tensor([0, *rows], device="cuda").cumsum(0).int()


def cosines(positions=32768):
    angle = torch.arange(positions, device="cuda").double().unsqueeze(1) * torch.pow(150000.0, -torch.arange(32, device="cuda") / 32)
    return torch.cat([angle.cos(), angle.sin()], 1).float()


# --- Checks: (what, whether it holds, what it was) ---


def close(what, got, want, relative, absolute):
    """absolute: a number, or one for each value."""
    excess = ((got.double() - want).abs() - relative * want.abs() - absolute).max().item()
    return what, excess <= 0 and bool(got.isfinite().all()), f"largest difference {(got.double() - want).abs().max().item():.3g}"


def attention_checks():
    for page_tokens, layout, fp8, window, sequences in (
            (16, "NHD", False, 0, [(1, 1), (1, 700), (3, 4100), (40, 40)]), (32, "HND", False, WINDOW, [(1, 900), (130, 300)]),
            (64, "NHD", True, 0, [(1, 5000)] * 9), (16, "HND", True, WINDOW, [(2, 33), (1, 260)])):
        rows, lengths = zip(*sequences)
        cache = Cache(lengths, page_tokens, layout, fp8)
        q, sinks = random(sum(rows), HEADS, HEAD_DIM, seed=1), random(HEADS, seed=2).float()
        inputs, options = (q, cache.k, cache.v, cache.table, cache.lengths, starts_of(rows)), {"sinks": sinks, "window": window, "layout": layout}
        name = f"attention, {layout} pages of {page_tokens}, {'FP8' if fp8 else 'BF16'}, window {window}"
        got = ops.paged_attention(*inputs, **options)
        # The result is rounded to BF16, and so is each key's share before it meets V: at most 2^-9 of the sum of shares times |V|.
        shares = reference_ops.paged_attention(q, cache.k.bfloat16(), cache.v.bfloat16().abs(), *inputs[3:], **options)
        yield close(name, got, reference_ops.paged_attention(*inputs, **options), 2 ** -8, 2 ** -8 * shares)
        yield from ways(name, lambda out: ops.paged_attention(*inputs, **options, out=out), got)
    cache.table[0, 0] = 1 << 30
    wrong = ops.paged_attention(*inputs, **options)
    yield "a wrong page gives rows of NaN", bool(wrong[:2].isnan().all()) and torch.equal(wrong[2], got[2]), ""


def ways(name, call, want):
    """The same bits in a graph and on another stream."""
    out = torch.empty_like(want)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(out)
    torch.cuda.current_stream().wait_stream(side)
    yield f"{name}: another stream", torch.equal(out, want), ""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(out)
    for _ in range(2):
        out.zero_()
        graph.replay()
        yield f"{name}: a graph", torch.equal(out, want), ""


def dense_checks():
    weight, bias = random(1000, 2880, scale=2880 ** -0.5, seed=3), random(1000, seed=4)
    for format in FORMATS:
        prepared, kept = ops.prepare_dense(weight, bias, format=format), reference_ops.rounded(weight, format)
        for tokens in (1, 8, 13, 40, 300):
            x, residual = random(tokens, 2880, seed=tokens), random(tokens, 1000, seed=9)
            name = f"{format}, {tokens} tokens ({prepared.plan(tokens)})"
            logits = ops.lm_head(x, prepared)
            yield close(f"lm_head, {name}", logits, reference_ops.lm_head(x, kept, bias), 1e-6, 5e-5)
            got = ops.project(x, prepared, residual)
            yield close(f"project, {name}", got, reference_ops.project(x, kept, bias, residual), 2 ** -8, 5e-5)
            yield from ways(f"project, {name}", lambda out: ops.project(x, prepared, residual, out), got)


def qkv_checks():
    rows = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    weight, bias, norm, table = random(rows, HIDDEN, scale=HIDDEN ** -0.5), random(rows, seed=1), random(HIDDEN, seed=2), cosines()
    for format, layout, page_tokens, fp8, tokens in (("keep", "NHD", 16, False, 1), ("keep", "HND", 32, True, 77), ("mxfp8", "NHD", 64, False, 8),
                                                     ("mxfp4", "HND", 16, True, 33)):
        prepared, kept = ops.prepare_dense(weight, bias, format=format), reference_ops.rounded(weight, format)
        cache, x = Cache([2000], page_tokens, layout, fp8), random(tokens, HIDDEN, seed=5)
        positions, slots = torch.arange(tokens, device="cuda") * 400, torch.randperm(2000, device="cuda")[:tokens]
        slots[tokens // 2] = -1 if tokens > 1 else slots[0]
        k, v = cache.k.clone(), cache.v.clone()
        want = reference_ops.norm_qkv_rope(x, norm, kept, bias, positions, table, slots, k, v, heads=HEADS, layout=layout)

        def run(out):
            return ops.norm_qkv_rope(x, norm, prepared, positions, table, slots, cache.k, cache.v, heads=HEADS, layout=layout, out=out)

        name = f"norm_qkv_rope, {format}, {tokens} tokens, {layout} pages of {page_tokens}, {'FP8' if fp8 else 'BF16'}"
        got = run(torch.empty_like(want, dtype=torch.bfloat16))
        yield close(name, got, want, 2 ** -8, 0.04)
        for what, mine, theirs in (("K", cache.k, k), ("V", cache.v, v)):
            yield close(f"{name}: {what}", mine.double(), theirs.double(), 0.13 if fp8 else 2 ** -7, 0.04)
        yield from ways(name, run, got)


# --- Times ---


def time_of(calls):
    """Seconds of one of the calls, which run in turn in a graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    seconds = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(seconds)


def line(what, ours, peer, floor):
    peers = f"{peer * 1e6:.1f} | {peer / ours:.2f}" if peer else "|"
    print(f"| {what} | {ours * 1e6:.1f} | {peers} | {floor * 1e6:.1f} | {floor / ours:.0%} |", flush=True)


def product_times(bandwidth):
    for name, rows, columns, copies, run in (("lm_head", VOCABULARY, HIDDEN, 1, ops.lm_head), ("project", HIDDEN, HEADS * HEAD_DIM, 6, ops.project)):
        weights = [random(rows, columns, scale=columns ** -0.5, seed=i) for i in range(copies)]
        xs = {tokens: random(tokens, columns) for tokens in (1, 8, 64, 512)}
        peers = {tokens: time_of([lambda w=w: F.linear(x, w) for w in weights]) for tokens, x in xs.items()}
        for format in FORMATS:
            made = [ops.prepare_dense(w, format=format) for w in weights]
            for tokens, x in xs.items():
                ours = time_of([lambda m=m: run(x, m) for m in made])
                line(f"{name}, {format}, {tokens} tokens", ours, peers[tokens], made[0].nbytes / bandwidth)
            del made


def qkv_times(bandwidth):
    rows = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    weights, table = [random(rows, HIDDEN, scale=HIDDEN ** -0.5, seed=i) for i in range(6)], cosines()
    made, cache, norm = [ops.prepare_dense(w) for w in weights], Cache([4096], 16, "NHD", False), random(HIDDEN)
    for tokens in (1, 8, 64, 512):
        x, places = random(tokens, HIDDEN), torch.arange(tokens, device="cuda")
        ours = time_of([lambda m=m: ops.norm_qkv_rope(x, norm, m, places, table, places, cache.k, cache.v, heads=HEADS) for m in made])
        peer = time_of([lambda w=w: F.linear(F.rms_norm(x, (HIDDEN,), norm), w) for w in weights])  # without RoPE and KV write
        line(f"norm_qkv_rope, {tokens} tokens", ours, peer, made[0].nbytes / bandwidth)


def flash_attention():
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except Exception as error:  # noqa: BLE001: vLLM or what it needs is not there
        print(f"vLLM's FlashAttention: {' '.join(str(error).split())[:100]}", file=sys.stderr)
        return None
    return flash_attn_varlen_func


def peer_time(calls):
    try:
        return time_of(calls)
    except Exception as error:  # noqa: BLE001: another version's arguments or devices
        print(f"vLLM's FlashAttention: {' '.join(str(error).split())[:100]}", file=sys.stderr)
        return None


def attention_times(bandwidth):
    flash, sinks = flash_attention(), random(HEADS).float()
    for sequences, rows, length in ((1, 1, 1024), (1, 1, 16384), (8, 1, 2048), (64, 1, 2048), (256, 1, 1024), (1, 2048, 2048)):
        for page_tokens, layout, fp8, window in ((16, "NHD", False, 0), (16, "NHD", False, WINDOW), (32, "HND", True, 0)):
            bytes_of_one = sequences * min(length, window or length) * KV_HEADS * HEAD_DIM * (2 if fp8 else 4)
            caches = [Cache([length] * sequences, page_tokens, layout, fp8, seed=i) for i in range(max(1, min(8, 200_000_000 // bytes_of_one)))]
            starts, q = starts_of([rows] * sequences), random(sequences * rows, HEADS, HEAD_DIM)
            ours = time_of([lambda c=c: ops.paged_attention(q, c.k, c.v, c.table, c.lengths, starts, sinks=sinks, window=window, layout=layout)
                            for c in caches])
            peer = None
            if flash is not None and layout == "NHD" and not fp8:
                peer = peer_time([lambda c=c: flash(q, c.k, c.v, max_seqlen_q=rows, cu_seqlens_q=starts, max_seqlen_k=length, seqused_k=c.lengths,
                                                    softmax_scale=HEAD_DIM ** -0.5, causal=True, window_size=[window - 1, 0] if window else [-1, -1],
                                                    block_table=c.table, fa_version=3, s_aux=sinks.bfloat16()) for c in caches])
            line(f"attention, {sequences} x {rows} rows at {length}, {layout} {page_tokens}, {'FP8' if fp8 else 'BF16'}, window {window}", ours, peer,
                 bytes_of_one / bandwidth)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--bandwidth", type=float, default=3.12e12, help="bytes a second of the floor (default: an H100's, measured)")
    options = parser.parse_args()
    failed = 0
    for checks in (attention_checks, dense_checks, qkv_checks):
        for what, holds, figure in checks():
            failed += not holds
            if figure or not holds:
                print(f"{'ok  ' if holds else 'FAIL'} {what} {figure}", flush=True)
    print(f"{failed} checks failed\n" if failed else "all checks held\n")
    if not options.no_times:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; peers: torch.nn.functional.linear, vLLM's FlashAttention 3\n")
        print("| call | us | peer, us | ratio | floor, us | share |\n|---|---:|---:|---:|---:|---:|")
        for times in (qkv_times, attention_times, product_times):
            try:
                times(options.bandwidth)
            except torch.OutOfMemoryError as error:
                print(f"{times.__name__}: {error}", file=sys.stderr)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
