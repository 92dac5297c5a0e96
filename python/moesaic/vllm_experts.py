"""gpt-oss's experts in vLLM by moesaic.ops: vllm_plugin.py registers the config. Classes are this module's own, so that vLLM can
send its configuration to its processes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, GptOssMxfp4MoEMethod

from . import _torch_ops  # noqa: F401  (defines torch.ops.moesaic)
from . import ops, vllm_fit
from ._serving_engine import free


class MoesaicMoEMethod(GptOssMxfp4MoEMethod):
    """gpt-oss's experts by moesaic.ops. The weights are created and loaded as vLLM's own method does it, unpadded."""

    is_monolithic = True  # takes the router's logits
    skip_forward_padding = False
    has_unpadded_output = False

    def __init__(self, moe: Any, prepares: bool) -> None:
        FusedMoEMethodBase.__init__(self, moe)  # not the parent's, which chooses among vLLM's kernels
        self.weight_dtype = vllm_fit.QUANTIZATION
        self.prepares = prepares

    def maybe_roundup_sizes(self, hidden_size: int, intermediate_size_per_partition: int, act_dtype: Any,
                            moe_parallel_config: Any) -> tuple[int, int]:
        return hidden_size, intermediate_size_per_partition

    def process_weights_after_loading(self, layer: Any) -> None:
        if not self.prepares:
            return
        experts, first = layer.w13_weight.shape[0], 0
        if layer.expert_map is not None:
            found = vllm_fit.first_expert(layer.expert_map, experts)
            if found is None:
                raise ValueError("moesaic: the experts of a rank do not stand together; use --expert-placement-strategy linear")
            first = found
        # Captured graphs read the experts that there are.
        if hasattr(layer, "moesaic_experts"):
            raise NotImplementedError(vllm_fit.LOADED_ONCE)
        layer.moesaic_experts = ops.prepare_mxfp4_moe(
            layer.w13_weight.data, layer.w13_weight_scale.data, getattr(layer, "w13_bias", None), layer.w2_weight.data,
            layer.w2_weight_scale.data, getattr(layer, "w2_bias", None), top_k=layer.top_k, first_expert=first,
            num_experts=layer.global_num_experts)
        free([layer.w13_weight, layer.w13_weight_scale, layer.w2_weight, layer.w2_weight_scale])
        vllm_fit.say_once(f"moesaic: gpt-oss's experts run on moesaic's kernels ({layer.moesaic_experts.plan(1)})", logging.INFO)

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def apply_monolithic(self, layer: Any, x: Any, router_logits: Any, input_ids: Any = None) -> Any:
        return torch.ops.moesaic.mxfp4_moe_from_logits(x, router_logits, layer.moesaic_experts.handle)


class MoesaicMxfp4Config(GptOssMxfp4Config):
    """vLLM's, but for the method of the experts."""

    is_moesaics = True
    whole_model = False  # vllm_model.py takes the experts as they were loaded

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        if not isinstance(layer, RoutedExperts):
            return super().get_quant_method(layer, prefix)
        reason = vllm_fit.unfit_device() or vllm_fit.unfit_settings(get_current_vllm_config_or_none()) or vllm_fit.unfit_layer(layer)
        if reason is None:
            return MoesaicMoEMethod(layer.moe_config, prepares=not self.whole_model)
        vllm_fit.refuse(reason)
        return super().get_quant_method(layer, prefix)
