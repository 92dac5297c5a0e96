"""vLLM's gpt-oss by moesaic, with vLLM's own classes on the CPU and a stand-in for the GPU's part. Skipped without vLLM."""

import os
import subprocess
import sys
import types

import pytest

MODEL = """
import contextlib, json, os, sys, tempfile
from inspect import signature
import torch, vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from moesaic import _engine, vllm_fit, vllm_plugin
vllm_fit.unfit_device = lambda: None
vllm_plugin.register()
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.network_utils import get_open_port

folder = tempfile.mkdtemp()
config = dict(
    architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True, eos_token_id=2, pad_token_id=1, experts_per_token=4,
    num_experts_per_tok=4, head_dim=64, hidden_act="silu", hidden_size=128, intermediate_size=128, num_attention_heads=4,
    num_key_value_heads=2, num_hidden_layers=2, num_local_experts=8, layer_types=["sliding_attention", "full_attention"],
    max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=150000, sliding_window=128, swiglu_limit=7.0, vocab_size=1000,
    tie_word_embeddings=False, torch_dtype="bfloat16", quantization_config=dict(quant_method="mxfp4"), initial_context_length=4096,
    rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096, rope_type="yarn", truncate=False))
json.dump(config, open(folder + "/config.json", "w"))
arguments = EngineArgs(model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=16,
                       max_num_batched_tokens=256, dtype="bfloat16", enforce_eager=True, **json.loads(sys.argv[1]))
settings = arguments.create_engine_config()
with set_current_vllm_config(settings):
    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
    initialize_model_parallel(1, 1)
    torch.set_default_dtype(torch.bfloat16)
    model = initialize_model(settings)
print("gave", type(model).__name__)
if type(model).__name__ != "MoesaicGptOss":
    sys.exit()
for parameter in model.parameters():
    parameter.data.random_(100, 120) if parameter.dtype == torch.uint8 else parameter.data.normal_()
head, q = model.lm_head.weight.data.clone(), model.model.layers[1].attn.qkv_proj.weight.data[:256].clone()

torch.cuda.synchronize = lambda *_: None
torch.cuda.device = lambda *_: contextlib.nullcontext()
torch.cuda.current_stream = lambda *_: type("Stream", (), dict(cuda_stream=5))
real = _engine.prepare_step
class Step:
    bytes = 1e9
    caches, calls = [], []
    def set_cache(self, *place):
        self.caches.append(place)
    def run(self, *call):
        self.calls.append(call)
    def logits(self, *call):
        self.calls.append(call)
step = Step()
def prepare(config, tensors, device, release, **options):
    try:
        real(config, tensors, device=0, release=None, **options)  # looks at names and shapes, then at the GPU
    except Exception as error:
        print("engine", error)
    by_name = {name: (shape, place) for name, _, shape, place in tensors}
    held = model._loaded[1]["model.layers.1.self_attn.q_proj.weight"]
    print("q", torch.equal(held, q), by_name["model.layers.1.self_attn.q_proj.weight"] == ([256, 128], held.data_ptr()))
    for layer in (-1, 0, 1):
        release(layer)
    print("options", options)
    return step
_engine.prepare_step = prepare
process_weights_after_loading(model, settings.model_config, torch.device("cpu"))
print("left", sum(p.numel() for p in model.parameters()), model._loaded)

from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata
attention = [layer.attn.attn for layer in model.model.layers]
starts, lengths = torch.tensor([0, 3, 4], dtype=torch.int32), torch.tensor([3, 9], dtype=torch.int32)
tables, slots = [torch.full((2, 7), group, dtype=torch.int32) for group in (0, 1)], torch.stack([torch.arange(4), torch.arange(4) + 1])
if hasattr(AttentionBackend, "supported_kv_cache_layouts"):  # vLLM makes caches and metadata as its runner does
    from vllm.platforms.interface import Platform
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.engine import core
    from vllm.v1.worker.gpu import attn_utils

    settings.cache_config.num_gpu_blocks_override = 200
    with set_current_vllm_config(settings):
        Platform.update_block_size_for_backend(settings)
        register_all_kvcache_specs(settings)
        specs = attn_utils.get_kv_cache_spec(settings)
        layouts = get_supported_kv_cache_layouts([layer.get_attn_backend() for layer in attention])
        resolve_kv_cache_layout(settings, [[layout.name for layout in layouts]], specs.values())
        more = [core.get_global_kv_cache_groups(settings, [specs])] if hasattr(core, "get_global_kv_cache_groups") else []
        [plan] = core.get_kv_cache_configs(settings, [specs], [1 << 30], *more)
        groups, _, sizes = attn_utils.init_attn_backend(plan, settings, torch.device("cpu"))
        first = [[]] if "runner_kv_caches" in signature(attn_utils.init_kv_cache).parameters else []
        attn_utils.init_kv_cache(*first, settings.compilation_config.static_forward_context, plan, torch.device("cpu"), sizes, settings)
    metadata = attn_utils.build_attn_metadata(groups, 2, 4, starts, starts, 3, lengths, 1 << 30, tables, slots, plan)
else:
    from moesaic.vllm_attention import MoesaicAttentionBackend, StepMetadataBuilder

    metadata = {}
    for layer, table, slot in zip(attention, tables, slots):
        layer.kv_cache = torch.zeros(MoesaicAttentionBackend.get_kv_cache_shape(200, 32, 2, 64), dtype=torch.bfloat16)
        common = CommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lengths, num_reqs=2, num_actual_tokens=4, max_query_len=3,
            max_seq_len=1 << 30, block_table_tensor=table, slot_mapping=slot)
        builder = StepMetadataBuilder(layer.get_kv_cache_spec(settings), [layer.layer_name], settings, torch.device("cpu"))
        metadata[layer.layer_name] = builder.build(0, common)
tokens, positions = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
with set_forward_context(None, settings):
    print("unmeasured", tuple(model(tokens, positions).shape), step.calls)
with set_forward_context(metadata, settings):
    for _ in range(2):
        hidden = model(tokens, positions)
print("caches", [(i, blocks, page) for i, _, blocks, page in step.caches], [place for _, place, *_ in step.caches] == [
    a.kv_cache.data_ptr() for a in attention])
sliding, full = metadata[attention[0].layer_name], metadata[attention[1].layer_name]
print("call", step.calls[-1] == (4, 2, starts.data_ptr(), starts.data_ptr(), tokens.data_ptr(), positions.data_ptr(),
      (full.pages.data_ptr(), full.pages.stride(0), full.slots.data_ptr()),
      (sliding.pages.data_ptr(), sliding.pages.stride(0), sliding.slots.data_ptr()), 2048, hidden.data_ptr(), 5), len(step.calls))
print("pages", sliding.pages.tolist(), full.pages.tolist(), sliding.slots.tolist(), full.slots.tolist())
logits = model.compute_logits(hidden[1:3])
print("logits", tuple(logits.shape), logits.dtype, step.calls[-1] == (hidden[1:3].data_ptr(), 2, logits.data_ptr(), 5))
for wrong in (lambda: model(None, positions, inputs_embeds=hidden), model._prepare, lambda: model.load_weights([])):
    try:
        wrong()
    except NotImplementedError as error:
        print("refused", error)
"""


def run(arguments="{}", **environment):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("vllm", reason="vLLM is not installed")
    ran = subprocess.run([sys.executable, "-c", MODEL, arguments], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "MOESAIC_VLLM": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **environment})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [line for line in ran.stdout.splitlines() if line.split(" ")[0] in {
        "gave", "engine", "q", "options", "left", "unmeasured", "caches", "call", "pages", "logits", "refused"}], ran.stdout + ran.stderr


def test_weights_and_steps_reach_the_operator():
    lines, everything = run(MOESAIC_VLLM_DENSE="mxfp8")
    assert lines[0] == "gave MoesaicGptOss", everything
    assert lines[1].startswith("engine step: "), everything  # not a word on a tensor or on the configuration
    assert lines[2:] == [
        "q True True",
        "options {'max_rows': 256, 'max_sequences': 16, 'max_context': 2048, 'fp8_cache': False, 'dense': 'mxfp8', 'graphs': False}",
        "left 0 {}",
        "unmeasured (4, 128) []",
        "caches [(0, 200, 16384), (1, 200, 16384)] True",
        "call True 2",
        f"pages {[[0] * 7] * 2} {[[1] * 7] * 2} [0, 1, 2, 3] [1, 2, 3, 4]",
        "logits (2, 1000) torch.float32 True",
        "refused moesaic: prompts are tokens, not embeddings; start vLLM with MOESAIC_VLLM=experts",
        *["refused moesaic: weights cannot be loaded a second time; start vLLM without MOESAIC_VLLM"] * 2,
    ], everything


def test_vllms_larger_blocks_are_pages_of_the_operator():
    pytest.importorskip("torch", reason="torch is not installed")
    backend = pytest.importorskip("vllm.v1.attention.backend", reason="vLLM is not installed").AttentionBackend
    if not hasattr(backend, "supported_kv_cache_layouts"):
        pytest.skip("this vLLM asks the backend for the cache's shape")
    lines, everything = run('{"block_size": 64, "kv_cache_dtype": "fp8"}')
    assert "caches [(0, 400, 8192), (1, 400, 8192)] True" in lines, everything
    from vllm.v1.worker.utils import AttentionGroup

    if hasattr(AttentionGroup, "map_to_kernel_block_table"):  # up to 0.31 the runner's tables have pages already, by a kernel
        assert f"pages {[[0, 1] * 7] * 2} {[[2, 3] * 7] * 2} [0, 1, 2, 3] [1, 2, 3, 4]" in lines, everything


@pytest.mark.parametrize("environment, arguments", [({"MOESAIC_VLLM": "experts"}, "{}"), ({}, '{"block_size": 16}')])
def test_elsewhere_vllms_own_class_is_made(environment, arguments):
    lines, everything = run(arguments, **environment)
    assert lines == ["gave GptOssForCausalLM"], everything
    assert ("not a multiple of 32" in everything) == (arguments != "{}")


def test_a_pooling_model_keeps_its_pooler():
    lines, everything = run('{"runner": "pooling"}')
    assert lines == ["gave GptOssForEmbedding"] and "the model is for pooling" in everything, everything


@pytest.mark.parametrize("drafted, support", [(0, "UNIFORM_BATCH"), (7, "UNIFORM_BATCH"), (8, "UNIFORM_SINGLE_TOKEN_DECODE")])
def test_vllm_captures_no_more_rows_than_the_operator_takes(monkeypatch, drafted, support):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from moesaic.vllm_attention import StepMetadataBuilder
    speculative = types.SimpleNamespace(num_speculative_tokens=drafted) if drafted else None
    settings = types.SimpleNamespace(speculative_config=speculative)
    monkeypatch.delenv("MOESAIC_VLLM_GRAPHS", raising=False)
    assert StepMetadataBuilder.get_cudagraph_support(settings, None).name == "NEVER"
    monkeypatch.setenv("MOESAIC_VLLM_GRAPHS", "vllm")
    assert StepMetadataBuilder.get_cudagraph_support(settings, None).name == support
