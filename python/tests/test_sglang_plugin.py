"""The SGLang plugin: its own decisions with stand-ins, and with SGLang's own classes where SGLang is installed."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import pathlib
import subprocess
import sys
import types

import pytest

from moesaic import _serving_engine, sglang_plugin


@pytest.fixture(autouse=True)
def fresh():
    _serving_engine.say.cache_clear()


def test_the_wheel_names_it():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has tomllib")
    project = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    point = project["entry-points"]["sglang.srt.plugins"]["moesaic"]
    assert importlib.metadata.EntryPoint("moesaic", point, "sglang.srt.plugins").load() is sglang_plugin.register


@pytest.mark.parametrize("asked", [None, "", "0"])
def test_it_does_nothing_unasked(monkeypatch, caplog, asked):
    monkeypatch.delenv("MOESAIC_SGLANG", raising=False)
    if asked is not None:
        monkeypatch.setenv("MOESAIC_SGLANG", asked)
    monkeypatch.setattr(sglang_plugin, "misfit", lambda *_: 1 / 0)
    sglang_plugin.register()
    assert not caplog.records


def test_another_value_is_said(monkeypatch, caplog):
    monkeypatch.setenv("MOESAIC_SGLANG", "experts")
    sglang_plugin.register()
    assert [record.getMessage() for record in caplog.records] == [
        "moesaic: SGLang's own kernels run gpt-oss's experts: MOESAIC_SGLANG is 'experts', not 1"]


def test_an_sglang_that_is_not_there_is_one_line(monkeypatch, caplog):
    monkeypatch.setenv("MOESAIC_SGLANG", "1")
    monkeypatch.setitem(sys.modules, "sglang", None)
    sglang_plugin.register()
    sglang_plugin.register()
    [record] = caplog.records
    assert record.levelno == logging.WARNING and record.getMessage().startswith("moesaic: SGLang's own kernels run gpt-oss's experts: ")


def test_another_interface_is_one_line(monkeypatch, caplog):
    monkeypatch.setenv("MOESAIC_SGLANG", "1")
    monkeypatch.setitem(sys.modules, "sglang", types.SimpleNamespace(__version__="0.9"))
    sglang_plugin.register()
    [record] = caplog.records
    assert "SGLang 0.9 has another interface than 0.5.23: Mxfp4Config.get_quant_method is not there" in record.getMessage()


class NoExchange:
    value = "none"

    def is_none(self):
        return self.value == "none"


def reason(**changes):
    config = types.SimpleNamespace(gemm1_alpha=1.702, gemm1_clamp_limit=7.0, is_gated=True, gate_up_interleaved=True, activation="silu",
                                   apply_router_weight_on_input=False, no_combine=False, routed_scaling_factor=None,
                                   params_dtype="torch.bfloat16")
    layer = types.SimpleNamespace(moe_runner_config=config, moe_tp_size=1, num_fused_shared_experts=0, with_bias=True)
    moe = types.SimpleNamespace(ep_num_redundant_experts=0, enable_eplb=False, enable_paged_experts=False)
    features = types.SimpleNamespace(enable_memory_saver=False, enable_weights_cpu_backup=False)
    offload = types.SimpleNamespace(cpu_offload_gb=0, offload_group_size=-1)
    deterministic = types.SimpleNamespace(enable_deterministic_inference=False, rl_on_policy_target=None)
    lora = types.SimpleNamespace(enable_lora=None, lora_paths=None)
    exchange, parallel = NoExchange(), types.SimpleNamespace(dwdp_size=1)
    for name, value in changes.items():
        [owner] = [o for o in (config, layer, moe, features, offload, deterministic, lora, exchange, parallel) if hasattr(o, name)]
        setattr(owner, name, value)
    execution = types.SimpleNamespace(moe=moe, features=features, offload=offload, deterministic=deterministic)
    return sglang_plugin.unfit_layer(layer, execution, exchange, lora, parallel)


def test_gpt_oss_fits():
    assert reason() is None


@pytest.mark.parametrize("changes, expected", [
    (dict(moe_tp_size=2), "tensor parallelism of 2 cuts experts; use --ep-size 2"),
    (dict(enable_lora=True), "LoRA is enabled"),
    (dict(lora_paths=["a"]), "LoRA is enabled"),
    (dict(value="deepep"), "experts exchange rows by deepep"),
    (dict(ep_num_redundant_experts=4), "redundant experts"),
    (dict(enable_eplb=True), "expert load balancing"),
    (dict(dwdp_size=2), "ranks lend each other experts (--dwdp-size 2)"),
    (dict(enable_paged_experts=True), "paged experts"),
    (dict(num_fused_shared_experts=1), "shared experts"),
    (dict(gemm1_alpha=None), "the activation is not gpt-oss's"),
    (dict(gate_up_interleaved=False), "the activation is not gpt-oss's"),
    (dict(with_bias=False), "the activation is not gpt-oss's"),
    (dict(apply_router_weight_on_input=True), "router weights on the input"),
    (dict(no_combine=True), "experts whose results are not added up"),
    (dict(routed_scaling_factor=2.5), "results scaled by 2.5"),
    (dict(params_dtype="torch.float16"), "activations are torch.float16"),
    (dict(enable_deterministic_inference=True), "results must not depend on the batch"),
    (dict(rl_on_policy_target="fsdp"), "results must not depend on the batch"),
    (dict(enable_memory_saver=True), "the weights' memory may be released"),
    (dict(enable_weights_cpu_backup=True), "the weights' memory may be released"),
    (dict(cpu_offload_gb=8), "weights are offloaded to the CPU"),
    (dict(offload_group_size=4), "weights are offloaded to the CPU"),
])
def test_layers_that_do_not_fit_are_named(changes, expected):
    assert reason(**changes) == expected


# --- with SGLang's own classes, on the CPU ---

LAYER = """
import json, logging, os, socket, sys
import torch
from moesaic import ops, sglang_plugin
if sys.argv[1] == "fits":
    sglang_plugin.unfit_device = lambda: None
from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
publish(ServerArgs(model_path="dummy", device="cpu", moe_runner_backend=sys.argv[2]), role="test", ranks=SpawnRanks(world_rank=0))
init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo")
initialize_model_parallel(backend="gloo")
sglang_plugin.register()
HookRegistry.apply_hooks()
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.moe.topk import TopK
from sglang.srt.layers.quantization.mxfp4 import Mxfp4Config

torch.set_default_dtype(torch.bfloat16)
torch.manual_seed(5)
layer = FusedMoE(num_experts=8, hidden_size=96, intermediate_size=160, layer_id=0, top_k=4, params_dtype=torch.bfloat16,
                 quant_config=Mxfp4Config(is_checkpoint_mxfp4_serialized=True), prefix="experts", activation="silu", gemm1_alpha=1.702,
                 gemm1_clamp_limit=7.0, with_bias=True)
print("gave", type(layer.quant_method).__name__, layer.runner_backend)
if sys.argv[1] != "fits":
    sys.exit()
stored = {}
for name, shape in dict(w13_weight=(320, 48), w13_weight_scale=(320, 3), w2_weight=(96, 80), w2_weight_scale=(96, 5)).items():
    stored[name] = torch.randint(0, 256, (8, *shape), dtype=torch.uint8)
stored["w13_weight_bias"], stored["w2_weight_bias"] = torch.randn(8, 320), torch.randn(8, 96)
for name, tensor in stored.items():
    parameter = getattr(layer, name)
    parameter.weight_loader(parameter, tensor, weight_name="experts." + name, shard_id=None, expert_id=None)

given = {}
class Prepared:
    handle = 3
    plan = staticmethod(lambda tokens: "a kernel")
def prepare(*tensors, **options):
    names = ["w13_weight", "w13_weight_scale", "w13_weight_bias", "w2_weight", "w2_weight_scale", "w2_weight_bias"]
    print("weights", [torch.equal(t, stored[n]) for t, n in zip(tensors, names, strict=True)])
    print("options", json.dumps(options, sort_keys=True))
    return Prepared()
ops.prepare_mxfp4_moe = prepare
def run(x, ids, weights, prepared):
    given.update(ids=ids.clone(), weights=weights.clone(), handle=prepared)
    return x * 2
library = torch.library.Library("moesaic", "IMPL")
library.impl("mxfp4_moe", run, "CPU")
layer.quant_method.process_weights_after_loading(layer)
print("left", sum(getattr(layer, n).numel() for n in stored if "bias" not in n))
topk = TopK(top_k=4, renormalize=True, layer_id=0)
topk.bind_runner_backend(layer.runner_backend)
x, logits = torch.randn(5, 96), torch.randn(5, 8)
y = layer(x, topk(x, logits))
best = torch.softmax(logits.float(), -1).topk(4)
print("answer", torch.equal(y, x * 2), given["handle"], torch.equal(given["ids"].long(), best.indices),
      torch.allclose(given["weights"], best.values / best.values.sum(-1, keepdim=True), atol=1e-6), str(given["weights"].dtype))
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
model = torch.nn.ModuleList([layer])
updates = WeightUpdater.__new__(WeightUpdater)
for name, value in dict(device="cpu", get_model=lambda: model).items():
    object.__setattr__(updates, name, value)
updates.begin_weight_update()
print("refused", updates.load_weights_from_distributed([]), updates.update_weights_from_disk("other", "auto"))
updates.end_weight_update(run_post_load=False)
"""


def sglangs_layer(fits, backend="auto"):
    pytest.importorskip("torch", reason="torch is not installed")
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    ran = subprocess.run([sys.executable, "-c", LAYER, fits, backend], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "MOESAIC_SGLANG": "1"})
    lines = [line for line in ran.stdout.splitlines() if line.split(" ")[0] in {"gave", "weights", "options", "left", "answer", "refused"}]
    return lines, ran.stdout + ran.stderr


@pytest.mark.parametrize("backend", ["auto", "triton_kernel", "marlin"])
def test_sglangs_own_layer_runs_the_method(backend):
    lines, everything = sglangs_layer("fits", backend)
    refused = (False, "moesaic: weights cannot be loaded a second time; start SGLang without MOESAIC_SGLANG")
    assert lines == [
        "gave MoesaicMoEMethod None",
        "weights [True, True, True, True, True, True]",
        "options " + json.dumps({"alpha": 1.702, "limit": 7.0, "top_k": 4}),
        "left 0",
        "answer True 3 True True torch.float32",
        f"refused {refused} {refused}",
    ], everything


def test_without_a_gpu_sglangs_own_method_is_left():
    lines, everything = sglangs_layer("unfit")
    assert lines and lines[0].startswith("gave Mxfp4MoEMethod "), everything
    assert everything.count("moesaic: SGLang's own kernels run gpt-oss's experts: there is no CUDA device") == 1, everything
