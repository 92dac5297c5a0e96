"""vLLM with moesaic's kernels for gpt-oss's experts: MOESAIC_VLLM=1 vllm serve openai/gpt-oss-20b

vLLM finds register() by the wheel's entry point in vllm.general_plugins. It does nothing unless MOESAIC_VLLM=1. It then
registers a quantization config for gpt-oss's MXFP4 checkpoints, by vLLM's own interface for it, whose MoE method runs
moesaic.ops. Where that does not fit, one line of the log says why, and vLLM goes on with its own.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from typing import Any

_logger = logging.getLogger("vllm.moesaic")
_QUANTIZATION = "gpt_oss_mxfp4"
# The methods that are overridden and that vLLM calls: [module, class, method, parameters] of 0.25.1.
_INTERFACE = (
    ("fused_moe.fused_moe_method_base", "FusedMoEMethodBase", "apply_monolithic", ["self", "layer", "x", "router_logits", "input_ids"]),
    ("fused_moe.fused_moe_method_base", "FusedMoEMethodBase", "maybe_roundup_sizes",
     ["self", "hidden_size", "intermediate_size_per_partition", "act_dtype", "moe_parallel_config"]),
    ("quantization.mxfp4", "GptOssMxfp4MoEMethod", "create_weights",
     ["self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype", "extra_weight_attrs"]),
    ("quantization.mxfp4", "GptOssMxfp4MoEMethod", "process_weights_after_loading", ["self", "layer"]),
    ("quantization.mxfp4", "GptOssMxfp4Config", "get_quant_method", ["self", "layer", "prefix"]),
)


def _misfit() -> str | None:
    """Why this vLLM's interface is not the one this was written for; None: it is."""
    for module, owner, method, parameters in _INTERFACE:
        try:
            cls = getattr(__import__(f"vllm.model_executor.layers.{module}", fromlist=[owner]), owner)
            found = list(inspect.signature(getattr(cls, method)).parameters)
        except (ImportError, AttributeError) as error:
            return f"{owner}.{method} is not there ({error})"
        if found != parameters:
            return f"{owner}.{method} takes {', '.join(found)}, not {', '.join(parameters)}"
    return None


def _unfit_layer(layer: Any) -> str | None:
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


@functools.cache
def _unfit_device() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if major not in (9, 12):
        return f"compute capability {major}.{minor}: 9.0, 12.0 and 12.1 have kernels"
    from . import list_devices

    if not any(device["backend"] == "cuda" and device["usable"] for device in list_devices()):
        return next((device["reason"] for device in list_devices() if device["backend"] == "cuda"), "this build of moesaic has no CUDA")
    return None


def _first_expert(expert_map: Any, experts: int) -> int | None:
    """Of a rank's experts, which stand together: the global id of the first. None: they do not."""
    local = [int(place) for place in expert_map.tolist()]
    here = [expert for expert, place in enumerate(local) if place >= 0]
    in_order = here == list(range(here[0], here[0] + experts)) if here else False
    return here[0] if in_order and [local[expert] for expert in here] == list(range(experts)) else None


def _method_class() -> type:
    import torch
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod

    from . import ops

    class MoesaicMoEMethod(GptOssMxfp4MoEMethod):
        """gpt-oss's experts by moesaic.ops. The weights are created and loaded as vLLM's own method does it, unpadded."""

        is_monolithic = True  # takes the router's logits
        skip_forward_padding = False
        has_unpadded_output = False

        def __init__(self, moe: Any) -> None:
            FusedMoEMethodBase.__init__(self, moe)  # not the parent's, which chooses among vLLM's kernels
            self.weight_dtype = _QUANTIZATION

        def maybe_roundup_sizes(self, hidden_size: int, intermediate_size_per_partition: int, act_dtype: Any,
                                moe_parallel_config: Any) -> tuple[int, int]:
            return hidden_size, intermediate_size_per_partition

        def process_weights_after_loading(self, layer: Any) -> None:
            experts, first = layer.w13_weight.shape[0], 0
            if layer.expert_map is not None:
                found = _first_expert(layer.expert_map, experts)
                if found is None:
                    raise ValueError("moesaic: the experts of a rank do not stand together; use --expert-placement-strategy linear")
                first = found
            layer.moesaic_experts = ops.prepare_mxfp4_moe(
                layer.w13_weight.data, layer.w13_weight_scale.data, getattr(layer, "w13_bias", None), layer.w2_weight.data,
                layer.w2_weight_scale.data, getattr(layer, "w2_bias", None), top_k=layer.top_k, first_expert=first,
                num_experts=layer.global_num_experts)
            for name in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"):  # repacked: free them
                parameter = getattr(layer, name)
                parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            torch.cuda.empty_cache()  # so that the next layer finds it: what is prepared is not torch's memory
            _say_once(f"moesaic: gpt-oss's experts run on moesaic's kernels ({layer.moesaic_experts.plan(1)})", logging.INFO)

        def get_fused_moe_quant_config(self, layer: Any) -> None:
            return None

        def apply_monolithic(self, layer: Any, x: Any, router_logits: Any, input_ids: Any = None) -> Any:
            return torch.ops.moesaic.mxfp4_moe_from_logits(x, router_logits, layer.moesaic_experts.handle)

    from . import _torch_ops  # noqa: F401  (defines torch.ops.moesaic)

    return MoesaicMoEMethod


def _config_class() -> type:
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config

    method = _method_class()

    class MoesaicMxfp4Config(GptOssMxfp4Config):
        """vLLM's, but for the method of the experts."""

        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            if not isinstance(layer, RoutedExperts):
                return super().get_quant_method(layer, prefix)
            reason = _unfit_device() or _unfit_layer(layer)
            if reason is None:
                return method(layer.moe_config)
            _refuse(reason)
            return super().get_quant_method(layer, prefix)

    return MoesaicMxfp4Config


@functools.cache
def _say_once(line: str, level: int) -> None:
    _logger.log(level, line)


def _refuse(reason: str) -> None:
    _say_once(f"moesaic: vLLM's own kernels run gpt-oss's experts: {reason}", logging.WARNING)


def _separate_cache() -> None:
    """Compiled graphs are kept by vLLM's configuration, which does not tell them apart: with vLLM's own kernels gpt-oss's rows
    may be padded."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vllm")
    root = os.environ.get("VLLM_CACHE_ROOT") or default
    if os.path.basename(root) != "moesaic":
        os.environ["VLLM_CACHE_ROOT"] = os.path.join(root, "moesaic")


def register() -> None:
    """vLLM calls this in each of its processes, perhaps more than once."""
    if os.environ.get("MOESAIC_VLLM") != "1":
        return
    try:
        import vllm

        reason = _misfit()
        if reason is not None:
            return _refuse(f"vLLM {vllm.__version__} has another interface than 0.25.1: {reason}")
        from vllm.model_executor.layers.quantization import register_quantization_config

        register_quantization_config(_QUANTIZATION)(_config_class())
        _separate_cache()
    except Exception as error:  # whatever it is, vLLM goes on
        _refuse(f"{type(error).__name__}: {error}".splitlines()[0])
