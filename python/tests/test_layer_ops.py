"""The operators of a layer on the CPU, against plain torch in double precision; what they refuse; their torch operators. The GPU's
kernels are compared with the same reference in src/backend/cuda/testing/host_simulator."""

import array
import copy
import pickle
import subprocess
import sys
import threading
import time

import pytest

from moesaic import InvalidRequest, MoesaicError, Unsupported, ops
from moesaic._engine import prepare_dense as engine_prepare_dense


def message(call, *arguments, error=InvalidRequest, **options):
    with pytest.raises(error) as raised:
        call(*arguments, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_importing_loads_no_torch():
    code = "import sys, moesaic.ops; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def bf16(values):
    """The upper halves of floats that have nothing in the lower."""
    return array.array("H", [bits >> 16 for bits in memoryview(array.array("f", values)).cast("B").cast("I").tolist()])


def test_a_product_of_plain_memory():
    columns, rows, tokens = 32, 3, 2
    weight = [(r + 1) * (c - 8) / 8 for r in range(rows) for c in range(columns)]
    x = [(t + 1) * (c % 5 - 2) / 2 for t in range(tokens) for c in range(columns)]
    w, given, out = array.array("f", weight), bf16(x), array.array("f", [0] * rows * tokens)
    dense = engine_prepare_dense(w.buffer_info()[0], "float32", rows, columns, columns, 0, "float32", format="keep", device=-1, stream=0)
    dense.run(tokens, given.buffer_info()[0], out.buffer_info()[0], "float32", 0, 0, 0, 0)
    want = [sum(weight[r * columns + c] * x[t * columns + c] for c in range(columns)) for t in range(tokens) for r in range(rows)]
    assert out.tolist() == pytest.approx(want, rel=1e-6) and dense.bytes == 4 * rows * columns and dense.plan(1) == "reference"


# --- With torch ---


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def reference(torch):
    from moesaic import reference_ops

    return reference_ops


class Cache:
    """Random pages, and tables of them for sequences of so many tokens."""

    def __init__(self, torch, lengths, page_tokens=16, layout="NHD", kv_heads=2, head_dim=64, fp8=False, seed=1):
        self.generator = torch.Generator().manual_seed(seed)
        self.layout, self.page_tokens, self.kv_heads, self.head_dim = layout, page_tokens, kv_heads, head_dim
        most = max((n + page_tokens - 1) // page_tokens for n in lengths)
        pages = len(lengths) * most + 1
        order = (page_tokens, kv_heads) if layout == "NHD" else (kv_heads, page_tokens)
        both = torch.randn(pages, 2, *order, head_dim, generator=self.generator).to(torch.float8_e4m3fn if fp8 else torch.bfloat16)
        self.k, self.v = both[:, 0], both[:, 1]  # pages of both lie together
        self.table = torch.randperm(pages, generator=self.generator)[:len(lengths) * most].view(len(lengths), most).int()
        self.lengths = torch.tensor(lengths, dtype=torch.int32)


def attention_inputs(torch, lengths, rows, heads=8, **options):
    cache = Cache(torch, lengths, **options)
    starts = torch.tensor([0, *rows], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    q = torch.randn(sum(rows), heads, cache.head_dim, generator=cache.generator).bfloat16()
    sinks = torch.randn(heads, generator=cache.generator)
    return cache, (q, cache.k, cache.v, cache.table, cache.lengths, starts), sinks


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_tokens", [16, 32, 64])
@pytest.mark.parametrize("fp8", [False, True])
def test_attention_is_the_references(torch, reference, layout, page_tokens, fp8):
    for window, with_sinks in ((0, True), (20, True), (0, False)):
        cache, inputs, sinks = attention_inputs(torch, [1, 40, 133], [1, 3, 1], page_tokens=page_tokens, layout=layout, fp8=fp8)
        options = {"sinks": sinks if with_sinks else None, "window": window, "layout": layout}
        got = ops.paged_attention(*inputs, **options)
        want = reference.paged_attention(*inputs, **options)
        torch.testing.assert_close(got.double(), want, rtol=2 ** -8, atol=1e-6)
        out = torch.full_like(got, 7)
        assert ops.paged_attention(*inputs, **options, out=out) is out and torch.equal(out, got)


def test_attention_marks_rows_that_it_cannot_compute(torch):
    cache, inputs, sinks = attention_inputs(torch, [40, 50, 60], [1, 2, 1])
    right = ops.paged_attention(*inputs, sinks=sinks)
    cache.table[0, 2], cache.lengths[1] = 1 << 20, 1
    got = ops.paged_attention(*inputs, sinks=sinks)
    assert got[:3].isnan().all() and torch.equal(got[3], right[3])


def test_attention_leaves_rows_of_no_sequence(torch, reference):
    for lead, behind in ((0, 2), (3, 0), (40, 1)):
        cache, (q, k, v, table, lengths, starts), sinks = attention_inputs(torch, [40, 133, 0], [3, 20, 0])
        q = torch.cat([q.new_zeros(lead, 8, 64), q, q.new_zeros(behind, 8, 64)])
        out = torch.full_like(q, 7)
        ops.paged_attention(q, k, v, table, lengths, starts + lead, sinks=sinks, out=out)
        assert (out[:lead] == 7).all() and (out[lead + 23:] == 7).all()
        want = reference.paged_attention(q, k, v, table, lengths, starts + lead, sinks=sinks)
        torch.testing.assert_close(out[lead:lead + 23].double(), want[lead:lead + 23], rtol=2 ** -8, atol=1e-6)


def test_a_sequence_of_rows_that_are_not_there_is_nan(torch, reference):
    cache, inputs, sinks = attention_inputs(torch, [40, 50], [2, 3])
    for place, value, wrong in ((2, 6, slice(2, 5)), (0, -1, slice(0, 2))):
        starts = inputs[-1].clone()
        starts[place] = value
        for got in (ops.paged_attention(*inputs[:-1], starts), reference.paged_attention(*inputs[:-1], starts)):
            nan = got.isnan().flatten(1)
            assert nan[wrong].all() and nan.sum() == nan[wrong].numel()
    inputs[4][0] = 1000  # more than its page table has room for
    for window in (0, 20):
        for got in (ops.paged_attention(*inputs, window=window), reference.paged_attention(*inputs, window=window)):
            assert got.isnan().flatten(1).all(1).tolist() == [True, True, False, False, False]


def test_the_reference_marks_what_attention_marks(torch, reference):
    cache, inputs, sinks = attention_inputs(torch, [40, 50, 60], [1, 2, 1], fp8=True)
    cache.table[0, 2], cache.lengths[1], cache.table[2, 0] = 1 << 20, 1, -5
    byte = (inputs[0], cache.k.view(torch.uint8), cache.v.view(torch.uint8), *inputs[3:])
    for window in (0, 20):
        got, want = ops.paged_attention(*byte, window=window), reference.paged_attention(*byte, window=window)
        assert got.isnan().flatten(1).all(1).tolist() == [True, True, True, window == 0]
        torch.testing.assert_close(got.double(), want, rtol=2 ** -8, atol=1e-6, equal_nan=True)


def test_sinks_of_any_size(torch, reference):
    cache, inputs, sinks = attention_inputs(torch, [1, 40], [1, 3])
    for sink in (float("-inf"), -1e30, 1e30, float("inf"), float("nan")):
        sinks.fill_(sink)
        got, want = ops.paged_attention(*inputs, sinks=sinks), reference.paged_attention(*inputs, sinks=sinks)
        torch.testing.assert_close(got.double(), want, rtol=2 ** -8, atol=1e-6, equal_nan=True)


def test_attention_refuses(torch):
    cache, (q, k, v, table, lengths, starts), sinks = attention_inputs(torch, [40, 50], [1, 1])

    def refused(error=InvalidRequest, **changes):
        given = {"q": q, "k_cache": k, "v_cache": v, "page_table": table, "lengths": lengths, "starts": starts, "sinks": sinks, **changes}
        return message(ops.paged_attention, error=error, **given)

    assert refused(q=q[0]) == "q is [8, 64], not [rows, heads, head_dim]"
    assert refused(q=q.half()) == "q is float16, not bfloat16"
    assert refused(q=torch.stack([q, q], 3)[..., 0]) == "q is not contiguous; call .contiguous()"
    assert refused(k_cache=k.half()) == "k_cache is float16, not bfloat16 or float8_e4m3fn or uint8"
    assert refused(v_cache=v[1:]).startswith("v_cache is [8, 16, 2, 64], not [9, 16, 2, 64]")
    assert refused(v_cache=v.contiguous()).startswith("k_cache and v_cache have strides")
    assert refused(layout="NDH") == "layout 'NDH': use NHD or HND"
    assert refused(lengths=lengths.long()) == "lengths is int64, not int32"
    assert refused(starts=starts[:2]) == "starts is [2], not [3]"
    assert refused(page_table=table[:1]).startswith("page_table is [1, 4] with strides [4, 1]; give [2, pages]")
    assert refused(sinks=sinks.bfloat16()) == "sinks is bfloat16, not float32"
    assert refused(sinks=sinks[:3]) == "sinks is [3], not [8]"
    assert refused(window=-1) == "paged_attention: a window of -1 tokens; 0 is none"
    assert refused(error=Unsupported, k_cache=k[:, :8], v_cache=v[:, :8]) == "paged_attention: pages of 8 tokens; use 16, 32 or 64"
    assert refused(error=Unsupported, q=q[:, :7].contiguous(), sinks=None).startswith("paged_attention: 7 heads and 2 KV heads")
    assert refused(out=q) == "paged_attention: out is q itself"
    both = torch.zeros(2 * q.numel() + 64).bfloat16()
    assert refused(q=both[:q.numel()].view_as(q), out=both[64:64 + q.numel()].view_as(q)) == "paged_attention: out overlaps q"
    dense = k.contiguous()
    assert refused(k_cache=dense, v_cache=dense, out=dense.view(-1)[:q.numel()].view_as(q)) == "paged_attention: out is the cache's k itself"
    assert refused(window=1.5) == "window is 1.5; give a whole number" and refused(window=None) == "window is None; give a whole number"
    assert refused(layout=None) == "layout None: use NHD or HND"
    assert refused(page_table=[[0]]) == "page_table is a list; give one of torch's tensors, as the others"
    assert refused(k_cache=k.to_sparse()).startswith("k_cache is a tensor of layout torch.sparse_coo")
    assert torch.equal(ops.paged_attention(q, k, v, table, lengths, starts, window=1 << 40), ops.paged_attention(q, k, v, table, lengths, starts))


def dense_inputs(torch, rows=70, columns=64, tokens=5, seed=2, dtype=None):
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(rows, columns, generator=generator) / columns ** 0.5).to(dtype or torch.bfloat16)
    return weight, torch.randn(rows, generator=generator).bfloat16(), torch.randn(tokens, columns, generator=generator).bfloat16()


@pytest.mark.parametrize("format", ["keep", "bf16", "mxfp8", "mxfp4"])
def test_projections_are_the_references(torch, reference, format):
    weight, bias, x = dense_inputs(torch)
    prepared = ops.prepare_dense(weight, bias, format=format)
    kept = reference.rounded(weight, format)
    assert (kept - weight.double()).abs().max() <= weight.abs().max() / (4 if format == "mxfp4" else 8)  # 8 becomes 6, 512 becomes 448
    torch.testing.assert_close(ops.project(x, prepared).double(), reference.project(x, kept, bias), rtol=2 ** -8, atol=1e-6)
    for residual in (torch.randn(5, 70).bfloat16(), torch.randn(5, 70)):
        want = reference.project(x, kept, bias, residual)
        got = ops.project(x, prepared, residual)
        assert got.dtype == residual.dtype
        torch.testing.assert_close(got.double(), want, rtol=2 ** -8, atol=2e-6)
        out = residual.clone()
        assert ops.project(x, prepared, out, out) is out and torch.equal(out, got)
        assert torch.equal(ops.project(x, prepared, residual, torch.empty_like(residual)), got)
    torch.testing.assert_close(ops.lm_head(x, prepared).double(), reference.lm_head(x, kept, bias), rtol=1e-6, atol=1e-6)
    assert ops.lm_head(x[:0], prepared).shape == (0, 70)


def test_weights_may_have_padded_rows_and_other_types(torch, reference):
    weight, bias, x = dense_inputs(torch)
    padded = torch.zeros(70, 80, dtype=torch.bfloat16)
    padded[:, :64] = weight
    want = ops.lm_head(x, ops.prepare_dense(weight, bias))
    assert torch.equal(ops.lm_head(x, ops.prepare_dense(padded[:, :64], bias)), want)
    assert torch.equal(ops.lm_head(x, ops.prepare_dense(weight.float(), bias.float())), want)
    half = ops.prepare_dense(weight.half())
    torch.testing.assert_close(ops.lm_head(x, half).double(), reference.lm_head(x, weight.half()), rtol=1e-6, atol=1e-6)
    assert repr(half) == "Dense(70 x 64, keep, cpu)" and half.nbytes == 4 * 70 * 64


def test_dense_refuses(torch):
    weight, bias, x = dense_inputs(torch)
    prepared = ops.prepare_dense(weight, bias)
    assert message(ops.prepare_dense, weight, format="q8_0") == "format 'q8_0': use keep, bf16, mxfp8, mxfp4"
    assert message(ops.prepare_dense, weight[:, :60].contiguous(), error=Unsupported).startswith("dense: a matrix of 70 x 60")
    assert message(ops.prepare_dense, weight.T).startswith("weight is [64, 70] with strides [1, 64]")
    assert message(ops.prepare_dense, weight.double()) == "weight is float64, not bfloat16 or float16 or float32"
    assert message(ops.prepare_dense, weight, bias[:3]) == "bias is [3], not [70]"
    weight[3, 5] = float("nan")
    assert message(ops.prepare_dense, weight) == "dense: the weight's row 3 has a value that is not finite"
    assert message(ops.project, x[:, :32].contiguous(), prepared) == "x is [5, 32], not [tokens, 64]"
    assert message(ops.project, x.float(), prepared) == "x is float32, not bfloat16"
    assert message(ops.project, x, prepared, torch.zeros(5, 3)) == "residual is [5, 3], not [5, 70]"
    assert message(ops.project, x, prepared, torch.zeros(5, 70), torch.zeros(5, 70).bfloat16()) == "residual is float32, not bfloat16"
    assert message(ops.lm_head, x, prepared, torch.zeros(5, 70).bfloat16()) == "out is bfloat16, not float32"
    assert message(ops.lm_head, x, None) == "prepared is a NoneType; give what prepare_dense() returned"
    handle = ops.prepare_dense(bias.view(1, 70)[:, :64].contiguous()).handle
    assert "is gone" in message(torch.ops.moesaic.lm_head, x, handle)
    for given in (x[0], x[None], torch.tensor(1.).bfloat16()):
        assert message(ops.project, given, prepared) == f"x is {list(given.shape)}, not [tokens, columns]"
    assert message(ops.project, x, prepared, [1]) == "residual is a list; give one of torch's tensors, as the others"
    assert message(ops.project, x, None, None, x, stream=0).startswith("prepared is a NoneType")
    assert message(ops.lm_head, [1], prepared, torch.zeros(5, 70)) == "x is a list; give a tensor with DLPack, such as torch's"
    assert message(ops.project, x, prepared, None, torch.zeros(5, 70), stream="a") == "stream is 'a'; give a whole number"
    assert message(prepared.plan, "a") == "tokens is 'a'; give a whole number"
    many = torch.zeros(5 * 70 + 64).bfloat16()
    assert message(ops.project, many[:320].view(5, 64), prepared, None, many[64:].view(5, 70)) == "dense: out overlaps x"
    moved = torch.zeros(5 * 70 + 8).bfloat16()
    assert message(ops.project, x, prepared, moved[:350].view(5, 70), moved[8:].view(5, 70)) == "dense: out overlaps residual"
    assert ops.project(torch.zeros(64, 0).bfloat16().T, prepared).shape == (0, 70)


class Readonly:
    """A tensor that its library does not give."""

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        raise BufferError("readonly\narrays are not exported")


def test_what_a_library_refuses_is_said_in_one_line():
    assert message(ops.prepare_dense, Readonly()) == "weight: readonly arrays are not exported"


def test_copies_are_the_matrix_itself(torch):
    weight, bias, x = dense_inputs(torch)
    prepared = ops.prepare_dense(weight, bias)
    want = ops.project(x, prepared)
    module = torch.nn.Module()
    module.dense = prepared
    copies = [copy.copy(prepared), copy.deepcopy(module).dense]
    del prepared, module
    assert all(torch.equal(ops.project(x, one), want) for one in copies)
    with pytest.raises(TypeError, match="Dense cannot be pickled: its weights are in a device's memory"):
        pickle.dumps(copies[0])


def test_a_handle_of_other_weights_is_refused(torch):
    from moesaic._handles import Prepares

    other = Prepares()
    assert message(torch.ops.moesaic.lm_head, dense_inputs(torch)[2], other.handle) == "prepared is a Prepares; give what prepare_dense() returned"


def test_other_threads_run_meanwhile(torch):
    prepared = ops.prepare_dense(torch.zeros(4096, 2880).bfloat16())
    x = torch.zeros(64, 2880).bfloat16()
    done, counted = threading.Event(), []

    def count():
        while not done.is_set():
            counted.append(0)
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    while not counted:
        time.sleep(0.001)
    before = len(counted)
    ops.lm_head(x, prepared)
    during = len(counted) - before
    done.set()
    thread.join()
    assert during > 3  # some hundreds, if it does not block


def qkv_inputs(torch, layout="NHD", fp8=False, page_tokens=16, tokens=7, heads=4, hidden=96):
    cache = Cache(torch, [40], page_tokens=page_tokens, layout=layout, fp8=fp8)
    weight, bias, x = dense_inputs(torch, (heads + 2 * cache.kv_heads) * cache.head_dim, hidden, tokens)
    angle = torch.arange(50).unsqueeze(1) * torch.pow(0.5, torch.arange(cache.head_dim // 2))
    cos_sin = 1.3 * torch.cat([angle.cos(), angle.sin()], 1)
    positions = torch.randint(0, 50, (tokens,), generator=cache.generator)
    slots = torch.randperm(cache.k.shape[0] * page_tokens, generator=cache.generator)[:tokens]
    slots[2] = -1
    return cache, weight, bias, (x, torch.randn(hidden, generator=cache.generator), positions, cos_sin, slots)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("format", ["keep", "mxfp8", "mxfp4"])
def test_norm_qkv_rope_is_the_references(torch, reference, layout, fp8, format):
    cache, weight, bias, (x, norm, positions, cos_sin, slots) = qkv_inputs(torch, layout, fp8)
    prepared, kept = ops.prepare_dense(weight, bias, format=format), reference.rounded(weight, format)
    k, v = cache.k.clone(), cache.v.clone()
    want = reference.norm_qkv_rope(x, norm, kept, bias, positions, cos_sin, slots, k, v, heads=4, layout=layout)
    before = cache.k.clone()
    got = ops.norm_qkv_rope(x, norm, prepared, positions, cos_sin, slots, cache.k, cache.v, heads=4, layout=layout)
    torch.testing.assert_close(got.double(), want, rtol=2 ** -8, atol=1e-5)
    last = 2 ** -3 if fp8 else 2 ** -7
    for mine, theirs in ((cache.k, k), (cache.v, v)):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=last, atol=1e-2)
    changed = (cache.k.double() != before.double()).any(-1).sum()
    assert changed == 6 * cache.kv_heads
    out = torch.empty_like(got)
    options = {"heads": 4, "layout": layout, "out": out}
    assert ops.norm_qkv_rope(x, norm.bfloat16(), prepared, positions, cos_sin.bfloat16(), slots, cache.k, cache.v, **options) is out
    torch.testing.assert_close(out.double(), want, rtol=0.05, atol=0.05)


def test_norm_qkv_rope_marks_tokens_that_it_cannot_compute(torch):
    cache, weight, bias, (x, norm, positions, cos_sin, slots) = qkv_inputs(torch)
    prepared = ops.prepare_dense(weight, bias)
    positions[0], positions[1], slots[3] = 50, -1, cache.k.shape[0] * 16
    before = cache.k.clone()
    q = ops.norm_qkv_rope(x, norm, prepared, positions, cos_sin, slots, cache.k, cache.v, heads=4)
    assert q[[0, 1, 3]].isnan().all() and not q[[2, 4, 5, 6]].isnan().any()
    assert (cache.k != before).any(-1).sum() == 3 * cache.kv_heads  # the third token's slot is -1


def test_norm_qkv_rope_refuses(torch):
    cache, weight, bias, (x, norm, positions, cos_sin, slots) = qkv_inputs(torch)
    prepared = ops.prepare_dense(weight, bias)

    def refused(error=InvalidRequest, **changes):
        given = {"x": x, "norm": norm, "prepared": prepared, "positions": positions, "cos_sin": cos_sin, "slots": slots,
                 "k_cache": cache.k, "v_cache": cache.v, "heads": 4, **changes}
        return message(ops.norm_qkv_rope, error=error, **given)

    assert refused(x=x[:, :64].contiguous()) == "x is [7, 64], not [tokens, 96]"
    assert refused(norm=norm[:3]) == "norm is [3], not [96]"
    assert refused(positions=positions.int()) == "positions is int32, not int64"
    assert refused(slots=slots[:2]) == "slots is [2], not [7]"
    assert refused(cos_sin=cos_sin[:, :32].contiguous()) == "cos_sin is [50, 32], not [50, 64]"
    assert refused(heads=6) == "norm_qkv_rope: the weight has 512 rows; 6 heads and 2 KV heads of 64 have 640"
    assert refused(eps=-1.0) == "norm_qkv_rope: eps -1"
    assert refused(out=torch.empty(7, 5, 64).bfloat16()) == "out has 5 heads, not 4"
    assert refused(out=torch.empty(7, 5, 64).bfloat16(), stream=0) == "out has 5 heads, not 4"
    assert refused(heads=-4) == "heads is -4; 1 to 2147483647 are possible" and refused(heads=2.0) == "heads is 2.0; give a whole number"
    assert refused(heads=1 << 30) == f"heads is {1 << 30}, and the matrix has 512 rows"
    assert refused(eps=None) == "eps is None; give a number"
    assert refused(k_cache=None) == "k_cache is a NoneType; give one of torch's tensors, as the others"
    assert refused(k_cache=cache.k[0]).startswith("k_cache is [16, 2, 64]")
    assert refused(x=x[0]) == "x is [96], not [tokens, columns]"
    assert refused(v_cache=cache.k) == "norm_qkv_rope: the cache's k is its v"
    folded = torch.zeros(4096).bfloat16().as_strided((3, 16, 2, 64), (1024, 64, 64, 1))
    assert "its rows overlap" in refused(k_cache=folded, v_cache=folded.clone().as_strided(folded.shape, folded.stride()))
    dense = cache.k.contiguous()
    q = dense.view(-1)[64:64 + 7 * 4 * 64].view(7, 4, 64)
    assert refused(k_cache=dense, v_cache=dense.clone(), out=q) == "norm_qkv_rope: q overlaps the cache's k"


# --- torch operators ---


def layer(torch):
    """A layer's operators on small tensors, as torch.ops takes them."""
    cache, weight, bias, (x, norm, positions, cos_sin, slots) = qkv_inputs(torch)
    q = torch.randn(2, 4, 64).bfloat16()
    attention = (q, cache.k, cache.v, cache.table.repeat(2, 1), torch.tensor([3, 40], dtype=torch.int32),
                 torch.tensor([0, 1, 2], dtype=torch.int32), torch.randn(4), 0, "NHD")
    dense = ops.prepare_dense(weight, bias)
    qkv = (x, norm, dense.handle, positions, cos_sin, slots, cache.k, cache.v, 4, 1e-5, "NHD")
    residual = torch.randn(7, dense.rows).bfloat16()
    return dense, {"paged_attention": attention, "paged_attention_out": (*attention, torch.empty_like(q)), "norm_qkv_rope": qkv,
                   "norm_qkv_rope_out": (*qkv, torch.empty(7, 4, 64).bfloat16()), "project": (x, dense.handle, residual),
                   "project_out": (x, dense.handle, None, torch.empty_like(residual)), "project_add": (x, dense.handle, residual),
                   "lm_head": (x, dense.handle), "lm_head_out": (x, dense.handle, torch.empty(7, dense.rows))}


NAMES = ["paged_attention", "paged_attention_out", "norm_qkv_rope", "norm_qkv_rope_out", "project", "project_out", "project_add",
         "lm_head", "lm_head_out"]


@pytest.mark.parametrize("name", NAMES)
def test_schemas_and_fake_kernels_agree_with_what_runs(torch, name):
    dense, arguments = layer(torch)
    import moesaic._torch_layer_ops  # noqa: F401: registers them

    torch.library.opcheck(getattr(torch.ops.moesaic, name).default, arguments[name],
                          test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


def test_a_compiled_layer_has_no_breaks(torch):
    cache, weight, bias, (x, norm, positions, cos_sin, slots) = qkv_inputs(torch)
    qkv, o = ops.prepare_dense(weight, bias), ops.prepare_dense(*dense_inputs(torch, 96, 256)[:2])
    starts, lengths = torch.tensor([0, 7], dtype=torch.int32), torch.tensor([30], dtype=torch.int32)

    def run(x, positions, slots, k_cache, v_cache):
        q = ops.norm_qkv_rope(x, norm, qkv, positions, cos_sin, slots, k_cache, v_cache, heads=4)
        a = ops.paged_attention(q, k_cache, v_cache, cache.table, lengths, starts, window=9)
        y = ops.project(a.flatten(1), o, residual=x)
        return y, ops.lm_head(y, qkv)

    given = [(x, positions, slots, cache.k.clone(), cache.v.clone()) for _ in range(2)]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(*given[0]), run(*given[1]))
    torch.testing.assert_close(given[0][3], given[1][3])


def test_without_a_gpu_its_tensors_are_no_choice(torch):
    weight, bias, x = dense_inputs(torch)
    assert message(ops.prepare_dense, weight.to("meta")) == "weight is on meta; it must be on a CUDA device"
    line = message(engine_prepare_dense, 4096, "bfloat16", 64, 64, 64, 0, "bfloat16", format="keep", device=77, stream=0,
                   error=MoesaicError)
    assert line.startswith("dense: ")
