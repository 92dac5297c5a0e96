"""vllm_plugin.py and the classes that it registers share this: the options, which vLLM fits, and the line where one does not."""

from __future__ import annotations

import logging
import os
from typing import Any

from . import _engine
from ._serving_engine import misfit as _misfit
from ._serving_engine import say, unfit_device
from .errors import InvalidRequest

_logger = logging.getLogger("vllm.moesaic")
QUANTIZATION = "gpt_oss_mxfp4"
VERSIONS = "0.25.1 to 0.33.0"  # vLLM's that have these interfaces
# vLLM calls these methods, which vllm_experts.py overrides: [module, class, method, parameters].
_INTERFACE = (
    ("model_executor.layers.fused_moe.fused_moe_method_base", "FusedMoEMethodBase", "apply_monolithic",
     ["self", "layer", "x", "router_logits", "input_ids"]),
    ("model_executor.layers.fused_moe.fused_moe_method_base", "FusedMoEMethodBase", "maybe_roundup_sizes",
     ["self", "hidden_size", "intermediate_size_per_partition", "act_dtype", "moe_parallel_config"]),
    ("model_executor.layers.quantization.mxfp4", "GptOssMxfp4MoEMethod", "create_weights",
     ["self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype", "extra_weight_attrs"]),
    ("model_executor.layers.quantization.mxfp4", "GptOssMxfp4MoEMethod", "process_weights_after_loading", ["self", "layer"]),
    ("model_executor.layers.quantization.mxfp4", "GptOssMxfp4Config", "get_quant_method", ["self", "layer", "prefix"]),
)
# vllm_model.py and vllm_attention.py override, call and read these.
_MODEL_INTERFACE = (
    ("model_executor.models.gpt_oss", "OAIAttention", "_build_attention", ["self", "config", "cache_config", "quant_config", "prefix"]),
    ("model_executor.models.gpt_oss", "GptOssForCausalLM", "__init__", ["self", "vllm_config", "prefix"]),
    ("model_executor.models.gpt_oss", "GptOssForCausalLM", "forward",
     ["self", "input_ids", "positions", "intermediate_tensors", "inputs_embeds"]),
    ("v1.attention.backend", "AttentionMetadataBuilder", "build", ["self", "common_prefix_len", "common_attn_metadata", "fast_build"]),
    ("v1.attention.backend", "AttentionMetadataBuilder", "get_cudagraph_support", ["vllm_config", "kv_cache_spec"]),
)
_BACKEND = ("v1.attention.backend", "AttentionBackend")
# Up to 0.28 the backend says the shape of a layer's cache. From 0.29 on vLLM has one of its own, in one of the layouts that the
# backend takes. One of these is there.
_CACHE_INTERFACES = (
    ((*_BACKEND, "get_kv_cache_shape", ["num_blocks", "block_size", "num_kv_heads", "head_size", "cache_dtype_str"]),
     (*_BACKEND, "get_supported_kernel_block_sizes", [])),
    ((*_BACKEND, "supported_kv_cache_layouts", []), (*_BACKEND, "get_supported_kernel_block_sizes", [])),
    ((*_BACKEND, "supported_kv_cache_layouts", []), (*_BACKEND, "get_supported_kernel_block_sizes", ["kv_cache_spec"])),
)
MOST_CAPTURED_ROWS = 8  # rows of a sequence in a step that vLLM captures
PAGE = 32  # tokens; vLLM's blocks of the KV cache have a multiple of it
DENSE_LAYOUTS = ("LBNHC", "LBHNC")  # vLLM's from 0.29 on in which the blocks of a layer's cache follow each other without gaps
FP8 = ("fp8", "fp8_e4m3")
KV_DTYPES = ("auto", "bfloat16", *FP8)
LOADED_ONCE = "moesaic: weights cannot be loaded a second time; start vLLM without MOESAIC_VLLM"


def graphs_are_vllms() -> bool:
    """True if vLLM captures the steps. moesaic's own graphs know how long the contexts are."""
    return os.environ.get("MOESAIC_VLLM_GRAPHS") == "vllm"


def dense_format() -> str:
    """The format of projections and lm_head, as `--dense` names it."""
    return os.environ.get("MOESAIC_VLLM_DENSE") or "keep"


def unfit_options() -> str | None:
    """Which variable of the whole model has a value that is none; None: neither."""
    graphs = os.environ.get("MOESAIC_VLLM_GRAPHS", "")
    if graphs not in ("", "0", "vllm"):
        return f"MOESAIC_VLLM_GRAPHS is {graphs!r:.40}, not vllm"
    try:
        _engine.check_dense_format(dense_format())
    except InvalidRequest as error:
        return f"MOESAIC_VLLM_DENSE: {error}"
    return None


def _another(reason: str | None) -> str | None:
    if reason is None:
        return None
    import vllm

    return f"vLLM {vllm.__version__} has another interface than {VERSIONS} (pip install vllm=={VERSIONS.split()[-1]}): {reason}"


def misfit() -> str | None:
    """Why this vLLM is not one that vllm_experts.py knows; None: it is."""
    return _another(_misfit("vllm", _INTERFACE))


def misfit_of_model() -> str | None:
    """The same of vllm_model.py and vllm_attention.py."""
    of_caches = [_misfit("vllm", interface) for interface in _CACHE_INTERFACES]
    return _another(_misfit("vllm", _MODEL_INTERFACE) or (None if None in of_caches else of_caches[-1]))


def dense_layouts() -> tuple[Any, ...]:
    """DENSE_LAYOUTS as vLLM's own values."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return tuple(KVCacheLayout[name] for name in DENSE_LAYOUTS)


def unfit_settings(config: Any) -> str | None:
    """Why not even the experts are for this configuration of vLLM's; None: they are. config: None where there is none."""
    if config is None:
        return None
    offload, model, extra = config.offload_config, config.model_config, getattr(config, "aux_output_config", None)
    checks = (
        # The experts are in memory that vLLM's allocator does not know.
        (getattr(model, "enable_sleep_mode", False) or getattr(model, "enable_cumem_allocator", False), "sleep mode"),
        (offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0, "weights are offloaded to the CPU"),
        (config.weight_transfer_config is not None, "other weights are loaded while it runs"),
        # From 0.31 on it stands in aux_output_config.
        (getattr(model, "enable_return_routed_experts", False) or getattr(extra, "enable_return_routed_experts", False),
         "the chosen experts are returned"),
        (getattr(config.quant_config, "online_quantization_config", None) is not None, "weights are quantised while they are loaded"),
        (bool(os.environ.get("VLLM_MOE_ROUTING_SIMULATION_STRATEGY")), "the choice of experts is simulated"),
        # Few and many rows are added up in different orders.
        (os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"), "results must not depend on the batch (VLLM_BATCH_INVARIANT)"),
    )
    return next((reason for unfit, reason in checks if unfit), None)


def unfit_checkpoint(config: Any) -> str | None:
    """Why no layer of this checkpoint is for moesaic; None: some are. config: vLLM's."""
    return None if getattr(config.quant_config, "is_moesaics", False) else "the checkpoint's experts are not gpt-oss's MXFP4"


def unfit_layer(layer: Any) -> str | None:
    """Why this layer is not for the operator; None: it is. moe: vLLM's FusedMoEConfig."""
    moe = layer.moe_config
    parallel = moe.moe_parallel_config
    checks = (
        (getattr(moe, "is_lora_enabled", False), "LoRA is enabled"),
        (parallel.tp_size > 1, f"tensor parallelism of {parallel.tp_size} cuts experts; use --enable-expert-parallel"),
        (parallel.dp_size > 1 or parallel.pcp_size > 1, "data or context parallelism of the experts"),
        (parallel.enable_eplb, "expert load balancing"),
        (parallel.is_sequence_parallel, "sequence parallelism"),
        (getattr(layer.activation, "value", layer.activation) != "swigluoai", f"activation {layer.activation}"),
        (layer.apply_router_weight_on_input, "router weights on the input"),
        (not layer.renormalize or layer.use_grouped_topk or layer.scoring_func != "softmax" or layer.custom_routing_function is not None
         or layer.routed_scaling_factor != 1.0 or layer.e_score_correction_bias is not None, "routing is not the softmax of the top k"),
    )
    return next((reason for unfit, reason in checks if unfit), None)


def unfit_model(config: Any) -> str | None:
    """Why moesaic's model is not for this configuration of vLLM's; None: it is."""
    parallel, model, cache = config.parallel_config, config.model_config, config.cache_config
    draft, layout = getattr(config.speculative_config, "method", None), os.environ.get("VLLM_KV_CACHE_LAYOUT") or DENSE_LAYOUTS[0]
    checks = (
        (parallel.world_size > 1 or parallel.data_parallel_size > 1, "several GPUs"),
        (getattr(parallel, "use_ubatching", False), "batches run in parts"),
        (config.lora_config is not None, "LoRA is enabled"),
        (draft not in (None, "ngram", "suffix"), f"drafts by {draft}"),
        (str(model.dtype) != "torch.bfloat16", f"activations are {model.dtype}"),
        (cache.cache_dtype not in KV_DTYPES, f"a KV cache of {cache.cache_dtype}"),
        (cache.block_size is not None and cache.user_specified_block_size and cache.block_size % PAGE != 0,
         f"KV cache blocks of {cache.block_size} tokens, not a multiple of {PAGE}"),
        (getattr(model, "enable_prompt_embeds", False), "prompts as embeddings"),
        (model.runner_type != "generate", f"the model is for {model.runner_type}"),
        (bool(cache.kv_cache_dtype_skip_layers), "layers whose KV cache has another type"),
        (layout not in (*DENSE_LAYOUTS, "NHD", "HND"), f"a KV cache laid out as {layout}"),
        # Such graphs hold a whole step of moesaic with the lengths of its sequences.
        (graphs_are_vllms() and os.environ.get("VLLM_USE_BREAKABLE_CUDAGRAPH", "0") not in ("", "0"),
         "MOESAIC_VLLM_GRAPHS=vllm with VLLM_USE_BREAKABLE_CUDAGRAPH"),
        # Connectors are called by vLLM's attention, which does not run.
        (config.kv_transfer_config is not None, "a KV connector"),
    )
    return unfit_device() or unfit_settings(config) or next((reason for unfit, reason in checks if unfit), None)


def first_expert(expert_map: Any, experts: int) -> int | None:
    """The global id of the first of a rank's experts, where they stand together. None: they do not."""
    local = [int(place) for place in expert_map.tolist()]
    here = [expert for expert, place in enumerate(local) if place >= 0]
    in_order = here == list(range(here[0], here[0] + experts)) if here else False
    return here[0] if in_order and [local[expert] for expert in here] == list(range(experts)) else None


def say_once(line: str, level: int) -> None:
    say(_logger, line, level)


def refuse(reason: str) -> None:
    say_once(f"moesaic: vLLM's own kernels run gpt-oss's experts: {reason}", logging.WARNING)


def refuse_model(reason: str) -> None:
    say_once(f"moesaic: only gpt-oss's experts run on moesaic's kernels, the other layers on vLLM's: {reason}", logging.WARNING)
