"""The vLLM plugin: its own decisions with stand-ins, and with vLLM's own classes where vLLM is installed."""

import importlib.metadata
import logging
import os
import pathlib
import types

import pytest

from moesaic import _engine, _serving_engine, vllm_fit, vllm_plugin


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    _serving_engine.say.cache_clear()
    _serving_engine.unfit_device.cache_clear()
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/tmp/cache/vllm")


def test_the_wheel_names_it():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has tomllib")
    project = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    point = project["entry-points"]["vllm.general_plugins"]["moesaic"]
    entry = importlib.metadata.EntryPoint("moesaic", point, "vllm.general_plugins")
    assert entry.load() is vllm_plugin.register


def test_it_does_nothing_unasked(monkeypatch, caplog):
    monkeypatch.delenv("MOESAIC_VLLM", raising=False)
    monkeypatch.setattr(vllm_fit, "misfit", lambda: 1 / 0)
    vllm_plugin.register()
    assert not caplog.records and os.environ["VLLM_CACHE_ROOT"] == "/tmp/cache/vllm"


def test_another_value_is_said(monkeypatch, caplog):
    monkeypatch.setenv("MOESAIC_VLLM", "true")
    vllm_plugin.register()
    assert [record.getMessage() for record in caplog.records] == [
        "moesaic: vLLM's own kernels run gpt-oss's experts: MOESAIC_VLLM is 'true', not 1 or experts"]


def test_a_vllm_that_is_not_there_is_one_line(monkeypatch, caplog):
    monkeypatch.setenv("MOESAIC_VLLM", "1")
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    vllm_plugin.register()
    vllm_plugin.register()
    [record] = caplog.records
    assert record.levelno == logging.WARNING and record.getMessage().startswith("moesaic: vLLM's own kernels run gpt-oss's experts: ")


def layer(**changes):
    parallel = types.SimpleNamespace(tp_size=1, dp_size=1, pcp_size=1, enable_eplb=False, is_sequence_parallel=False)
    values = dict(moe_config=types.SimpleNamespace(moe_parallel_config=parallel, is_lora_enabled=False),
                  activation=types.SimpleNamespace(value="swigluoai"), apply_router_weight_on_input=False, renormalize=True,
                  use_grouped_topk=False, scoring_func="softmax", custom_routing_function=None, routed_scaling_factor=1.0,
                  e_score_correction_bias=None)
    for name, value in changes.items():
        if hasattr(parallel, name):
            setattr(parallel, name, value)
        elif name == "is_lora_enabled":
            values["moe_config"].is_lora_enabled = value
        else:
            values[name] = value
    return types.SimpleNamespace(**values)


@pytest.mark.parametrize("changes, reason", [
    ({}, None), ({"is_lora_enabled": True}, "LoRA"), ({"tp_size": 2}, "--enable-expert-parallel"), ({"dp_size": 2}, "data"),
    ({"pcp_size": 2}, "context"), ({"enable_eplb": True}, "load balancing"), ({"is_sequence_parallel": True}, "sequence"),
    ({"activation": "silu"}, "activation silu"), ({"apply_router_weight_on_input": True}, "router weights"),
    ({"renormalize": False}, "routing"), ({"scoring_func": "sigmoid"}, "routing"), ({"routed_scaling_factor": 2.0}, "routing")])
def test_layers_that_do_not_fit_are_named(changes, reason):
    found = vllm_fit.unfit_layer(layer(**changes))
    assert found is None if reason is None else reason in found


def configuration(**changes):
    """vLLM's VllmConfig as far as unfit_model() looks at it; "model.dtype": of its model_config."""
    parts = dict(
        parallel=dict(world_size=1, data_parallel_size=1, use_ubatching=False),
        cache=dict(cache_dtype="auto", block_size=16, user_specified_block_size=False, kv_cache_dtype_skip_layers=[]),
        model=dict(dtype="torch.bfloat16", enable_sleep_mode=False, enable_cumem_allocator=False,
                   enable_prompt_embeds=False, runner_type="generate", enable_return_routed_experts=False),
        offload=dict(uva=types.SimpleNamespace(cpu_offload_gb=0), prefetch=types.SimpleNamespace(offload_group_size=0)))
    config = types.SimpleNamespace(lora_config=None, speculative_config=None, kv_transfer_config=None, weight_transfer_config=None,
                                   quant_config=types.SimpleNamespace(is_moesaics=True))
    for name, values in parts.items():
        setattr(config, name + "_config", types.SimpleNamespace(**values))
    for name, value in changes.items():
        owner, _, attribute = name.rpartition(".")
        setattr(getattr(config, owner + "_config") if owner else config, attribute, value)
    return config


# These fit neither the whole model nor the experts alone.
NOWHERE = [
    ({"offload.uva": types.SimpleNamespace(cpu_offload_gb=10)}, "weights are offloaded"),
    ({"offload.prefetch": types.SimpleNamespace(offload_group_size=4)}, "weights are offloaded"),
    ({"model.enable_return_routed_experts": True}, "chosen experts are returned"),
    ({"aux_output_config": types.SimpleNamespace(enable_return_routed_experts=True)}, "chosen experts are returned"),
    ({"quant.online_quantization_config": "x"}, "quantised while"), ({"weight_transfer_config": "x"}, "other weights are loaded"),
    ({"model.enable_sleep_mode": True}, "sleep mode"), ({"model.enable_cumem_allocator": True}, "sleep mode")]


def drafts(method):
    return types.SimpleNamespace(method=method)


@pytest.mark.parametrize("changes, reason", [
    ({}, None), ({"speculative_config": drafts("ngram")}, None), ({"cache.cache_dtype": "fp8"}, None),
    ({"cache.block_size": 64, "cache.user_specified_block_size": True}, None), ({"parallel.world_size": 2}, "several GPUs"),
    ({"parallel.data_parallel_size": 2}, "several GPUs"), ({"parallel.use_ubatching": True}, "in parts"), ({"lora_config": "x"}, "LoRA"),
    ({"speculative_config": drafts("eagle3")}, "drafts by eagle3"), ({"model.dtype": "torch.float16"}, "torch.float16"),
    ({"cache.cache_dtype": "fp8_e5m2"}, "fp8_e5m2"),
    ({"cache.block_size": 48, "cache.user_specified_block_size": True}, "48 tokens"), ({"model.enable_prompt_embeds": True}, "embeddings"),
    ({"model.runner_type": "pooling"}, "pooling"), ({"cache.kv_cache_dtype_skip_layers": ["sliding_window"]}, "KV cache has another type"),
    ({"kv_transfer_config": "x"}, "KV connector"), *NOWHERE])
def test_configurations_that_do_not_fit_are_named(monkeypatch, changes, reason):
    monkeypatch.setattr(vllm_fit, "unfit_device", lambda: None)
    found = vllm_fit.unfit_model(configuration(**changes))
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("changes, reason", [({}, None), ({"kv_transfer_config": "x"}, None), *NOWHERE])
def test_configurations_that_do_not_fit_the_experts_are_named(changes, reason):
    found = vllm_fit.unfit_settings(configuration(**changes))
    assert found is None if reason is None else reason in found


def test_variables_of_vllms_that_do_not_fit_are_named(monkeypatch):
    monkeypatch.setattr(vllm_fit, "unfit_device", lambda: None)
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")
    assert vllm_fit.unfit_model(configuration()) is None
    monkeypatch.setenv("MOESAIC_VLLM_GRAPHS", "vllm")
    assert "VLLM_USE_BREAKABLE_CUDAGRAPH" in vllm_fit.unfit_model(configuration())
    monkeypatch.delenv("MOESAIC_VLLM_GRAPHS")
    for layout, fits in (("HND", True), ("LBNHC", True), ("BLNHC", False)):
        monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", layout)
        assert (vllm_fit.unfit_model(configuration()) is None) == fits
    monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "uniform_random")
    assert "simulated" in vllm_fit.unfit_settings(configuration())
    monkeypatch.delenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY")
    for value, fits in (("0", True), ("1", False)):
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", value)
        assert (vllm_fit.unfit_settings(configuration()) is None) == fits
    assert "VLLM_BATCH_INVARIANT" in vllm_fit.unfit_model(configuration())


def test_a_checkpoint_that_is_not_mxfp4_fits_nowhere():
    assert vllm_fit.unfit_checkpoint(configuration()) is None
    assert "MXFP4" in vllm_fit.unfit_checkpoint(configuration(quant_config=None))


def test_without_a_configuration_the_experts_fit():
    assert vllm_fit.unfit_settings(None) is None


@pytest.mark.parametrize("variable, value, reason", [
    ("DENSE", "mxfp9", "MOESAIC_VLLM_DENSE: dense format 'mxfp9': use one of keep, "), ("GRAPHS", "typo", "MOESAIC_VLLM_GRAPHS is 'typo', not vllm")])
def test_a_wrong_option_leaves_the_experts_alone(monkeypatch, caplog, variable, value, reason):
    monkeypatch.setenv(f"MOESAIC_VLLM_{variable}", value)
    vllm_plugin._register_model()
    [record] = caplog.records
    assert record.getMessage().startswith("moesaic: only gpt-oss's experts run on moesaic's kernels, the other layers on vLLM's: " + reason)


@pytest.mark.parametrize("variable, value", [("DENSE", ""), ("DENSE", "mxfp8"), ("GRAPHS", "vllm"), ("GRAPHS", "0")])
def test_options_that_there_are(monkeypatch, variable, value):
    monkeypatch.setenv(f"MOESAIC_VLLM_{variable}", value)
    assert vllm_fit.unfit_options() is None


def test_only_the_current_gpu_is_asked(monkeypatch):
    import sys

    cuda = types.SimpleNamespace(is_available=lambda: True, get_device_capability=lambda: (9, 0), current_device=lambda: 3)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(_engine, "list_devices", lambda: 1 / 0)
    monkeypatch.setattr(_engine, "unfit_gpu", lambda device: f"moe: device cuda:{device}: no")
    assert _serving_engine.unfit_device() == "device cuda:3: no"
    _serving_engine.unfit_device.cache_clear()
    monkeypatch.setattr(_engine, "unfit_gpu", lambda device: "")
    assert _serving_engine.unfit_device() is None
    _serving_engine.unfit_device.cache_clear()


class Map(list):
    def tolist(self):
        return list(self)


@pytest.mark.parametrize("places, experts, first", [
    ([0, 1, 2, 3], 4, 0), ([-1, -1, 0, 1], 2, 2), ([0, -1, 1, -1], 2, None), ([1, 0, -1, -1], 2, None), ([-1, -1], 2, None)])
def test_a_ranks_experts_must_stand_together(places, experts, first):
    assert vllm_fit.first_expert(Map(places), experts) == first


def test_compiled_graphs_are_kept_apart_once(monkeypatch):
    for _ in range(2):
        vllm_plugin._separate_cache()
        assert os.environ["VLLM_CACHE_ROOT"] == "/tmp/cache/vllm/moesaic"


# --- with vLLM's own classes ---


@pytest.fixture
def quantization(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("vllm", reason="vLLM is not installed")
    import vllm.model_executor.layers.quantization as quantization

    monkeypatch.setattr(quantization, "_CUSTOMIZED_METHOD_TO_QUANT_CONFIG", {})
    return quantization


def registered(quantization, monkeypatch):
    monkeypatch.setenv("MOESAIC_VLLM", "1")
    vllm_plugin.register()
    return quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG.get("gpt_oss_mxfp4")


def test_this_vllms_interface_fits(quantization):
    assert vllm_fit.misfit() is None and vllm_fit.misfit_of_model() is None


def test_another_interface_of_caches_leaves_the_experts_alone(quantization, monkeypatch, caplog):
    from vllm.v1.attention.backend import AttentionBackend

    monkeypatch.setattr(AttentionBackend, "get_supported_kernel_block_sizes", lambda pages: [])
    assert registered(quantization, monkeypatch) is not None
    assert "only gpt-oss's experts" in caplog.text and f"another interface than {vllm_fit.VERSIONS}" in caplog.text


def test_it_registers_a_config_by_vllms_interface(quantization, monkeypatch, caplog):
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config

    config = registered(quantization, monkeypatch)
    assert issubclass(config, GptOssMxfp4Config) and config.get_name() == "gpt_oss_mxfp4"
    assert quantization.get_quantization_config("gpt_oss_mxfp4") is config
    hf = types.SimpleNamespace(model_type="gpt_oss")
    assert config.override_quantization_method({"quant_method": "mxfp4"}, None, hf) == "gpt_oss_mxfp4"
    assert not [record for record in caplog.records if record.name == "vllm.moesaic"]


def test_vllm_can_send_its_configuration_to_its_processes(quantization, monkeypatch):
    import pickle

    config = registered(quantization, monkeypatch)()
    config.whole_model = True
    assert pickle.loads(pickle.dumps(config)).whole_model and pickle.loads(pickle.dumps(config)).is_moesaics


def test_another_interface_is_refused(quantization, monkeypatch, caplog):
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

    monkeypatch.setattr(FusedMoEMethodBase, "apply_monolithic", lambda self, layer, x: None)
    assert registered(quantization, monkeypatch) is None
    assert "FusedMoEMethodBase.apply_monolithic takes self, layer, x, not self" in caplog.text
    assert f"has another interface than {vllm_fit.VERSIONS} (pip install vllm==0." in caplog.text


@pytest.fixture
def experts(quantization):
    """A RoutedExperts as far as methods look at it, without the model around it."""
    import torch
    from vllm.model_executor.layers.fused_moe import RoutedExperts

    made = RoutedExperts.__new__(RoutedExperts)
    torch.nn.Module.__init__(made)
    for name, value in vars(layer()).items():
        setattr(made, name, value)
    made.top_k, made.global_num_experts, made._expert_map, made.rocm_aiter_fmoe_enabled, made.quant_method = 2, 4, None, False, None
    made.moe_config.has_bias, made.moe_config.w13_num_shards = True, 2
    return made


def test_without_a_gpu_vllms_own_method_is_left(quantization, monkeypatch, caplog, experts):
    import torch
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    config = registered(quantization, monkeypatch)
    monkeypatch.setattr(GptOssMxfp4Config, "get_quant_method", lambda self, layer, prefix: "vLLM's")
    assert config().get_quant_method(experts, "a") == config().get_quant_method(experts, "b") == "vLLM's"
    assert [record.getMessage() for record in caplog.records if record.name == "vllm.moesaic"] == [
        "moesaic: vLLM's own kernels run gpt-oss's experts: there is no CUDA device"]


def test_the_method_prepares_and_runs(quantization, monkeypatch, experts):
    import torch

    from moesaic import ops

    config = registered(quantization, monkeypatch)
    monkeypatch.setattr(vllm_fit, "unfit_device", lambda: None)
    method = config().get_quant_method(experts, "model.layers.0.mlp.experts")
    assert type(method).__name__ == "MoesaicMoEMethod" and method.is_monolithic and method.weight_dtype == "gpt_oss_mxfp4"
    assert method.maybe_roundup_sizes(64, 32, torch.bfloat16, None) == (64, 32)
    assert not method.skip_forward_padding and not method.has_unpadded_output and method.get_fused_moe_quant_config(experts) is None
    method.create_weights(experts, num_experts=2, hidden_size=64, intermediate_size_per_partition=32, params_dtype=torch.bfloat16)
    assert experts.w13_weight.shape == (2, 64, 32) and experts.w2_bias.shape == (2, 64)

    given = {}

    class Prepared:
        handle = 7

        def plan(self, tokens):
            return "a kernel"

    def prepare(*tensors, **options):
        given.update(tensors=tensors, options=options)
        return Prepared()

    monkeypatch.setattr(ops, "prepare_mxfp4_moe", prepare)
    experts._expert_map = torch.tensor([-1, -1, 0, 1], dtype=torch.int32)
    method.process_weights_after_loading(experts)
    assert [tuple(t.shape) for t in given["tensors"]] == [(2, 64, 32), (2, 64, 2), (2, 64), (2, 64, 16), (2, 64, 1), (2, 64)]
    assert given["options"] == {"top_k": 2, "first_expert": 2, "num_experts": 4}
    assert experts.w13_weight.numel() == 0 and experts.w2_weight_scale.numel() == 0

    library = torch.library.Library("moesaic", "IMPL")
    library.impl("mxfp4_moe_from_logits", lambda x, logits, prepared: x * prepared, "CPU")
    try:
        x = torch.ones(3, 64)
        assert torch.equal(method.apply_monolithic(experts, x, torch.zeros(3, 4)), 7 * x)
    finally:
        library._destroy()
    # A reload of vLLM's weights makes the parameters again, and calls this.
    method.create_weights(experts, num_experts=2, hidden_size=64, intermediate_size_per_partition=32, params_dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="weights cannot be loaded a second time"):
        method.process_weights_after_loading(experts)
    experts._expert_map = torch.tensor([0, -1, 1, -1], dtype=torch.int32)
    method.create_weights(experts, num_experts=2, hidden_size=64, intermediate_size_per_partition=32, params_dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="linear"):
        method.process_weights_after_loading(experts)


LAYER = """
import torch, vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from moesaic import ops, vllm_fit, vllm_plugin
vllm_fit.unfit_device = lambda: None
vllm_plugin.register()
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers import fused_moe
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.utils.network_utils import get_open_port

given = {}
class Prepared:
    handle = 3
    plan = staticmethod(lambda tokens: "a kernel")
ops.prepare_mxfp4_moe = lambda *tensors, **options: (given.update(options), Prepared())[1]
library = torch.library.Library("moesaic", "IMPL")
library.impl("mxfp4_moe_from_logits", lambda x, logits, prepared: x * prepared + logits.shape[1], "CPU")
config = VllmConfig(device_config=DeviceConfig(device="cpu"))
with set_current_vllm_config(config):
    init_distributed_environment(world_size=1, rank=0, distributed_init_method=f"tcp://127.0.0.1:{get_open_port()}", local_rank=0, backend="gloo")
    ensure_model_parallel_initialized(1, 1, backend="gloo")
    make = getattr(fused_moe, "FusedMoEFactory", None) or fused_moe.FusedMoE  # its name up to 0.26
    layer = make(num_experts=4, top_k=2, hidden_size=64, intermediate_size=32, renormalize=True, has_bias=True,
                 quant_config=get_quantization_config("gpt_oss_mxfp4")(), prefix="model.layers.0.mlp.experts",
                 apply_router_weight_on_input=False, activation="swigluoai", params_dtype=torch.bfloat16)
    layer._quant_method.process_weights_after_loading(layer.routed_experts)
    with set_forward_context(None, config):
        y = layer(hidden_states=torch.ones(3, 64, dtype=torch.bfloat16), router_logits=torch.zeros(3, 4, dtype=torch.bfloat16))
print("gave", type(layer._quant_method).__name__, layer.moe_config.hidden_dim, given, tuple(y.shape), y.unique().tolist())
"""


def test_vllms_own_layer_runs_the_method(quantization):
    import subprocess
    import sys

    ran = subprocess.run([sys.executable, "-c", LAYER], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "MOESAIC_VLLM": "1", "VLLM_NO_USAGE_STATS": "1"})
    said = [line for line in ran.stdout.splitlines() if line.startswith("gave ")]
    assert said == ["gave MoesaicMoEMethod 64 {'top_k': 2, 'first_expert': 0, 'num_experts': 4} (3, 64) [7.0]"], ran.stdout + ran.stderr
