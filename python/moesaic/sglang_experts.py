"""gpt-oss's experts in SGLang by moesaic.ops: sglang_plugin.py chooses this method for a layer."""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.moe.utils import get_moe_a2a_backend
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase
from sglang.srt.layers.quantization.mxfp4 import Mxfp4MoEMethod
from sglang.srt.runtime_context import get_exec, get_lora, get_parallel

from . import _torch_ops  # noqa: F401  (defines torch.ops.moesaic)
from . import ops
from ._serving_engine import free, say

_logger = logging.getLogger("sglang.moesaic")


def settings() -> tuple[Any, Any, Any, Any]:
    """SGLang's settings of execution, of the experts' exchange, of LoRA and of ranks."""
    return get_exec(), get_moe_a2a_backend(), get_lora(), get_parallel()


class MoesaicMoEMethod(Mxfp4MoEMethod):
    """The weights are created and loaded as SGLang's own method does it, unpadded. A step gets the chosen experts, by their places
    on this rank, and their weights; -1 is an expert of another rank."""

    def __init__(self, layer: Any, prefix: str) -> None:
        FusedMoEMethodBase.__init__(self)  # not the parent's, which chooses among SGLang's kernels
        self.prefix = prefix
        # The checkpoint's sizes: SGLang may pad both for its own kernels.
        self.hidden, self.intermediate = layer.hidden_size_unpadded, layer.intermediate_size_per_partition
        # The parent's create_weights() pads nothing with these values.
        self.use_deep_gemm, self.use_mega_moe, self.use_marlin, self.use_flashinfer, self._fi_kernel = True, False, False, False, None

    def create_weights(self, layer: Any, num_experts: int, hidden_size: int, intermediate_size_per_partition: int,
                       params_dtype: torch.dtype, with_bias: bool = False, **extra_weight_attrs: Any) -> None:
        super().create_weights(layer, num_experts, self.hidden, self.intermediate, params_dtype, with_bias, **extra_weight_attrs)

    def create_moe_runner(self, layer: Any, moe_runner_config: Any) -> None:
        self.moe_runner_config = moe_runner_config

    def get_moe_runner_backend(self, layer: Any) -> None:
        """None: SGLang then hands over its standard choice of experts, by their places on this rank."""
        return None

    def process_weights_after_loading(self, layer: Any) -> None:
        if hasattr(layer, "moesaic_experts"):  # SGLang ends an update whose weights it has refused
            return
        # SGLang refuses requests for other weights with this text, before it changes anything.
        layer._derived_weight_cache_error = "moesaic: weights cannot be loaded a second time; start SGLang without MOESAIC_SGLANG"
        config = self.moe_runner_config
        layer.moesaic_experts = ops.prepare_mxfp4_moe(
            layer.w13_weight.data, layer.w13_weight_scale.data, layer.w13_weight_bias.data, layer.w2_weight.data,
            layer.w2_weight_scale.data, layer.w2_weight_bias.data, top_k=layer.top_k, alpha=config.gemm1_alpha,
            limit=config.gemm1_clamp_limit)
        free([layer.w13_weight, layer.w13_weight_scale, layer.w2_weight, layer.w2_weight_scale])
        say(_logger, f"moesaic: gpt-oss's experts run on moesaic's kernels ({layer.moesaic_experts.plan(1)})", logging.INFO)

    def apply(self, layer: Any, dispatch_output: Any) -> Any:
        choice = dispatch_output.topk_output
        return StandardCombineInput(hidden_states=torch.ops.moesaic.mxfp4_moe(
            dispatch_output.hidden_states, choice.topk_ids, choice.topk_weights, layer.moesaic_experts.handle))
