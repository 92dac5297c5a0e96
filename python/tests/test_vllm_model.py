"""vLLM's gpt-oss by moesaic, with vLLM's own classes on the CPU and a stand-in for the GPU's part. Skipped without vLLM."""

import os
import subprocess
import sys
import types

import pytest

MODEL = """
import contextlib, json, os, sys, tempfile
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

from moesaic.vllm_attention import MoesaicAttentionBackend, StepMetadataBuilder
from vllm.v1.attention.backend import CommonAttentionMetadata
shape = MoesaicAttentionBackend.get_kv_cache_shape(10, 32, 2, 64)
attention = [layer.attn.attn for layer in model.model.layers]
for layer in attention:
    layer.kv_cache = torch.zeros(shape, dtype=torch.bfloat16)
starts = torch.tensor([0, 3, 4], dtype=torch.int32)
metadata = {}
for index, layer in enumerate(attention):
    common = CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor([3, 9], dtype=torch.int32), num_reqs=2, num_actual_tokens=4,
        max_query_len=3, max_seq_len=1 << 30, block_table_tensor=torch.full((2, 7), index, dtype=torch.int32),
        slot_mapping=torch.arange(4) + index)
    builder = StepMetadataBuilder(layer.get_kv_cache_spec(settings), [layer.layer_name], settings, torch.device("cpu"))
    metadata[layer.layer_name] = builder.build(0, common)
tokens, positions = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
with set_forward_context(None, settings):
    print("unmeasured", tuple(model(tokens, positions).shape), step.calls)
with set_forward_context(metadata, settings):
    for _ in range(2):
        hidden = model(tokens, positions)
print("caches", step.caches == [(i, a.kv_cache.data_ptr(), 10, 2 * 2 * 32 * 64 * 2) for i, a in enumerate(attention)])
sliding, full = metadata[attention[0].layer_name], metadata[attention[1].layer_name]
print("call", step.calls[-1] == (4, 2, starts.data_ptr(), starts.data_ptr(), tokens.data_ptr(), positions.data_ptr(),
      (full.pages.data_ptr(), 7, full.slots.data_ptr()), (sliding.pages.data_ptr(), 7, sliding.slots.data_ptr()), 2048, hidden.data_ptr(), 5),
      len(step.calls))
logits = model.compute_logits(hidden[1:3])
print("logits", tuple(logits.shape), logits.dtype, step.calls[-1] == (hidden[1:3].data_ptr(), 2, logits.data_ptr(), 5))
for wrong in (lambda: model(None, positions, inputs_embeds=hidden), model._prepare):
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
        "gave", "engine", "q", "options", "left", "unmeasured", "caches", "call", "logits", "refused"}], ran.stdout + ran.stderr


def test_weights_and_steps_reach_the_operator():
    lines, everything = run(MOESAIC_VLLM_DENSE="mxfp8")
    assert lines[0] == "gave MoesaicGptOss", everything
    assert lines[1].startswith("engine step: "), everything  # not a word on a tensor or on the configuration
    assert lines[2:] == [
        "q True True",
        "options {'max_rows': 256, 'max_sequences': 16, 'max_context': 2048, 'fp8_cache': False, 'dense': 'mxfp8', 'graphs': False}",
        "left 0 {}",
        "unmeasured (4, 128) []",
        "caches True",
        "call True 2",
        "logits (2, 1000) torch.float32 True",
        "refused moesaic: prompts are tokens, not embeddings; start vLLM with MOESAIC_VLLM=experts",
        "refused moesaic: weights cannot be loaded a second time; start vLLM with MOESAIC_VLLM=experts",
    ], everything


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
