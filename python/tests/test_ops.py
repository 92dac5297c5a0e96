"""moesaic.ops without a GPU: what it refuses, in one line; its torch operators with a stand-in for the GPU's work. The work
itself is compared with a double loop in src/backend/cuda/testing/host_simulator and on a GPU by tools/benchmarks/moe_operator.py."""

import subprocess
import sys

import pytest

import moesaic
from moesaic import InvalidRequest, MoesaicError, _engine, _experts, _views, ops


def message(call, *arguments, error=InvalidRequest, **options):
    with pytest.raises(error) as raised:
        call(*arguments, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_importing_loads_neither_torch_nor_numpy():
    code = "import sys, moesaic.ops, moesaic.vllm_plugin; print(sorted({'torch', 'numpy', 'vllm'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_is_no_tensor_is_refused():
    assert message(ops.prepare_mxfp4_moe, [1], None, None, None, None, None) == (
        "w13_blocks is a list; give a tensor with DLPack, such as torch's")




def test_a_tensor_of_the_cpu_is_refused():
    numpy = pytest.importorskip("numpy")
    blocks = numpy.zeros((2, 64, 1, 16), numpy.uint8)
    assert message(ops.prepare_mxfp4_moe, blocks, None, None, None, None, None) == "w13_blocks is not on a CUDA device"


def test_dlpack_tensors_are_read():
    numpy = pytest.importorskip("numpy")
    from moesaic._engine import DlpackTensor

    tensor = DlpackTensor(numpy.zeros((3, 5, 7), numpy.float16)[:, ::2].__dlpack__())
    assert (tensor.shape, tensor.strides, tensor.dtype, tensor.on_cuda) == ((3, 3, 7), (35, 14, 1), "float16", False)


def test_without_a_gpu_preparing_says_so():
    if any(device["backend"] == "cuda" and device["usable"] for device in moesaic.list_devices()):
        pytest.skip("this machine has a GPU")
    from moesaic._engine import prepare_moe

    matrix = (0, 0, 0, "bfloat16", [0, 0, 0, 0, 0])
    line = message(prepare_moe, matrix, matrix, device=0, experts=4, first_expert=0, routed_experts=4, top_k=4, hidden=64,
                   intermediate=64, alpha=1.702, limit=7.0, offset=1.0, interleaved=True, stream=0, error=MoesaicError)
    assert line.startswith("moe: ")
    assert _engine.unfit_gpu(0).startswith("moe: ")


def test_streams_get_dlpacks_numbers():
    given = []

    class Theirs:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, stream):
            given.append(stream)
            raise BufferError("no")

    for stream in (None, 0, 77):
        assert message(_views.view_of, Theirs(), "x", stream) == "x: no"
    assert given == [1, 1, 77]


class NoMoe:
    """Stands for experts on a GPU."""

    bytes = 0

    def workspace_bytes(self, tokens):
        return 256

    def plan(self, tokens):
        return "none"


def prepared_for(hidden=64):
    return ops.Prepared(NoMoe(), experts=4, first_expert=0, num_experts=4, top_k=2, hidden=hidden, intermediate=32, device=0)


def test_handles_live_as_long_as_what_they_name():
    prepared = prepared_for()
    assert _experts.of_handle(prepared.handle) is prepared
    handle = prepared.handle
    del prepared
    assert "is gone" in message(_experts.of_handle, handle)


def test_torch_tensors_are_checked():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.zeros(3, 64, dtype=torch.bfloat16)
    ids, weights = torch.zeros(3, 2, dtype=torch.int32), torch.zeros(3, 2)
    assert message(ops.mxfp4_moe, x, ids, weights, prepared_for()) == "x is on cpu; it must be on a CUDA device"
    assert message(ops.mxfp4_moe, x, ids, weights, None).startswith("prepared is a NoneType")
    assert message(ops.mxfp4_moe, x, [1], weights, prepared_for()) == "topk_ids is a list; give one of torch's tensors, as the others"
    assert message(ops.mxfp4_moe_from_logits, x, None, prepared_for()).startswith("router_logits is a NoneType")
    assert message(ops.mxfp4_moe_from_logits, x, x.to_sparse(), prepared_for()).startswith("router_logits is a tensor of layout torch.sparse_coo")


# --- torch operators: the stand-in computes on the CPU, so that torch can compare what it gives with the fake kernels ---


@pytest.fixture(scope="module")
def torch_ops():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from moesaic import _torch_ops

    def value(x, ids, weights):
        return (x.double() * (weights.double() * (ids.double() + 1)).sum(1, keepdim=True)).to(x.dtype)

    def of_logits(x, logits):
        top = logits.float().topk(2)
        return value(x, top.indices, top.values.softmax(1))

    library = torch.library.Library("moesaic", "IMPL")
    library.impl("mxfp4_moe", lambda x, ids, weights, prepared: value(x, ids, weights), "CPU")
    library.impl("mxfp4_moe_out", lambda x, ids, weights, prepared, out: (out.copy_(value(x, ids, weights)), None)[1], "CPU")
    library.impl("mxfp4_moe_from_logits", lambda x, logits, prepared: of_logits(x, logits), "CPU")
    library.impl("mxfp4_moe_from_logits_out", lambda x, logits, prepared, out: (out.copy_(of_logits(x, logits)), None)[1], "CPU")
    yield _torch_ops
    library._destroy()


def inputs(torch, tokens=5, dtype=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, 64, generator=generator).to(dtype or torch.bfloat16)
    ids = torch.randint(0, 4, (tokens, 2), generator=generator)
    return x, ids, torch.rand(tokens, 2, generator=generator), torch.randn(tokens, 4, generator=generator)


@pytest.mark.parametrize("name", ["mxfp4_moe", "mxfp4_moe_out", "mxfp4_moe_from_logits", "mxfp4_moe_from_logits_out"])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_schemas_and_fake_kernels_agree_with_what_runs(torch_ops, name, tokens):
    import torch

    x, ids, weights, logits = inputs(torch, tokens)
    arguments = [x, logits, 7] if "logits" in name else [x, ids, weights, 7]
    if name.endswith("_out"):
        arguments.append(torch.empty_like(x))
    torch.library.opcheck(getattr(torch.ops.moesaic, name).default, tuple(arguments),
                          test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


def test_a_compiled_function_has_no_breaks(torch_ops, monkeypatch):
    import torch

    monkeypatch.setattr(torch_ops, "_checked", lambda x, prepared: prepared.handle)  # CPU tensors
    prepared = prepared_for()

    def layer(x, ids, weights, logits):
        y = ops.mxfp4_moe(x * 2, ids, weights, prepared)
        out = torch.empty_like(y)
        return ops.mxfp4_moe_from_logits(y, logits, prepared, out) + 1

    arguments = inputs(torch)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(*arguments), layer(*arguments))
    more = inputs(torch, 9)
    torch.testing.assert_close(compiled(*more), layer(*more))


class RecordingMoe(NoMoe):
    def __init__(self):
        self.calls = []

    def run(self, *arguments):
        self.calls.append(arguments)




def test_run_checks_shapes_dtypes_and_strides(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(_experts, "view_of", lambda t, name, stream: _views.View(
        t.data_ptr(), tuple(t.shape), t.stride(), str(t.dtype).removeprefix("torch."), 0, t))
    monkeypatch.setattr(_experts, "current_stream", lambda tensor, stream: 77)
    prepared = prepared_for()
    prepared._moe = RecordingMoe()
    x, ids, weights, logits = inputs(torch)
    out = torch.empty_like(x)
    _experts.run(prepared, x, out, ids, weights, workspace=(4096, 256))
    _experts.run(prepared, x, out, logits=logits.bfloat16())
    assert prepared._moe.calls == [
        (5, "bfloat16", x.data_ptr(), out.data_ptr(), ids.data_ptr(), True, weights.data_ptr(), 0, "float32", 4096, 256, 77),
        (5, "bfloat16", x.data_ptr(), out.data_ptr(), 0, False, 0, prepared._moe.calls[1][7], "bfloat16", 0, 0, 77)]

    def refused(*arguments, **options):
        return message(_experts.run, prepared, *arguments, **options)

    assert refused(x[:, :32], out, ids, weights) == "x is [5, 32], not [tokens, 64]"
    assert refused(x.float(), out, ids, weights) == "x is float32, not bfloat16 or float16"
    assert refused(x, out.half(), ids, weights) == "out is float16, not bfloat16"
    assert refused(x, out[:3], ids, weights) == "out is [3, 64], not [5, 64]"
    assert refused(x, out, ids.float(), weights) == "topk_ids is float32, not int32 or int64"
    assert refused(x, out, ids, weights.half()) == "topk_weights is float16, not float32"
    assert refused(x, out, ids[:, :1], weights) == "topk_ids is [5, 1], not [5, 2]"
    assert refused(torch.stack([x, x], 2)[:, :, 0], out, ids, weights) == "x is not contiguous; call .contiguous()"
    assert refused(x, out, logits=logits[:, :3]) == "router_logits is [5, 3], not [5, 4]"


def test_preparing_checks_what_it_is_given(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(_experts, "view_of", lambda t, name, stream: _views.View(
        t.data_ptr(), tuple(t.shape), t.stride(), str(t.dtype).removeprefix("torch."), 0, t))
    monkeypatch.setattr(_experts, "current_stream", lambda tensor, stream: 0)
    given = []
    monkeypatch.setattr(_experts, "_prepare_moe", lambda *arguments, **options: given.append((arguments, options)) or NoMoe())
    b13, s13, c13 = torch.zeros(4, 64, 2, 16).byte(), torch.zeros(4, 64, 2).byte(), torch.zeros(4, 64).bfloat16()
    b2, s2, c2 = torch.zeros(4, 64, 16).byte(), torch.zeros(4, 64, 1).byte(), torch.zeros(4, 64)
    prepared = ops.prepare_mxfp4_moe(b13, s13, c13, b2, s2, c2, first_expert=2, num_experts=9, limit=None)
    (w13, w2), options = given[0]
    assert w13[3:] == ("bfloat16", [64 * 32, 32, 128, 2, 64]) and w2[3:] == ("float32", [64 * 16, 16, 64, 1, 64])
    assert options["hidden"] == 64 and options["intermediate"] == 32 and options["limit"] == 0.0 and options["routed_experts"] == 9
    assert repr(prepared) == "Prepared(4 experts from 2 of 9, top 4, 32 x 64, cuda:0)"
    ops.prepare_mxfp4_moe(b13, s13, None, torch.zeros(4, 80, 16).byte()[:, :64], s2, None)  # padded rows
    assert given[1][0][1][4][:2] == [80 * 16, 16] and given[1][0][1][2] == 0

    def refused(*arguments, **options):
        return message(ops.prepare_mxfp4_moe, *arguments, **options)

    assert refused(b13.float(), s13, c13, b2, s2, c2) == "w13_blocks is float32, not uint8"
    assert refused(b13, s13[:, :, :1], c13, b2, s2, c2) == "w13_scales is [4, 64, 1], not [4, 64, 2]"
    assert refused(b13, s13, c13, b2, s2, c2[:3]) == "w2_bias is [3, 64], not [4, 64]"
    assert "do not belong together" in refused(b13, s13, c13, b2[:, :32], s2[:, :32], c2[:, :32])
    assert refused(b13, s13, c13, b2.transpose(1, 2).contiguous().transpose(1, 2), s2, c2).startswith("w2_blocks: a row is not")
    assert refused(b13, s13, c13, b2, s2, c2, limit=0) == "limit 0: give a number above 0, or None"
    assert refused(torch.zeros(4, 64).byte(), s13, c13, b2, s2, c2).startswith("w13_blocks is [4, 64]; give")
    for wrong, line in ((dict(top_k="4"), "top_k is '4'; give a whole number"), (dict(top_k=1 << 40), f"top_k is {1 << 40}; 0 to"),
                        (dict(first_expert=2**31 - 2), "first_expert is 2147483646; 0 to 2147483643"), (dict(num_experts=2.5), "num_experts is 2.5"),
                        (dict(alpha="a"), "alpha is 'a'; give a number"), (dict(limit=[1]), "limit is [1]; give a number"),
                        (dict(up_offset=10**400), "up_offset is 1000"), (dict(interleaved="no"), "interleaved is 'no'; give True or False")):
        assert refused(b13, s13, c13, b2, s2, c2, **wrong).startswith(line)
    assert message(prepared.plan, "a") == "tokens is 'a'; give a whole number"
