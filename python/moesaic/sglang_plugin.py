"""SGLang with moesaic's kernels for gpt-oss's experts: MOESAIC_SGLANG=1 python -m sglang.launch_server --model openai/gpt-oss-20b

SGLang finds register() by the wheel's entry point in sglang.srt.plugins. It does nothing unless MOESAIC_SGLANG is set. Where moesaic
does not fit, one line of the log says why, and SGLang goes on with its own kernels. The experts: sglang_experts.py.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from ._serving_engine import misfit, say, unfit_device

_logger = logging.getLogger("sglang.moesaic")
_METHODS = "srt.layers.quantization.mxfp4"
# SGLang calls these, which sglang_experts.py overrides: [module, class, method, parameters] of 0.5.23.
_INTERFACE = (
    (_METHODS, "Mxfp4Config", "get_quant_method", ["self", "layer", "prefix"]),
    (_METHODS, "Mxfp4MoEMethod", "create_weights", ["self", "layer", "num_experts", "hidden_size", "intermediate_size_per_partition",
                                                    "params_dtype", "with_bias", "extra_weight_attrs"]),
    (_METHODS, "Mxfp4MoEMethod", "process_weights_after_loading", ["self", "layer"]),
    (_METHODS, "Mxfp4MoEMethod", "create_moe_runner", ["self", "layer", "moe_runner_config"]),
    (_METHODS, "Mxfp4MoEMethod", "get_moe_runner_backend", ["self", "layer"]),
    (_METHODS, "Mxfp4MoEMethod", "apply", ["self", "layer", "dispatch_output"]),
)


def refuse(reason: str) -> None:
    say(_logger, f"moesaic: SGLang's own kernels run gpt-oss's experts: {reason}", logging.WARNING)


def unfit_layer(layer: Any, execution: Any, a2a: Any, lora: Any, parallel: Any) -> str | None:
    """Why this layer is not for the operator; None: it is. layer: SGLang's FusedMoE while it is made; the others: its settings of
    execution, of the experts' exchange, of LoRA and of ranks."""
    config, exec_moe, features = layer.moe_runner_config, execution.moe, execution.features
    checks = (
        # Few and many rows are added up in different orders.
        (execution.deterministic.enable_deterministic_inference or bool(execution.deterministic.rl_on_policy_target),
         "results must not depend on the batch"),
        # The experts are in memory that SGLang's allocator does not know.
        (features.enable_memory_saver or features.enable_weights_cpu_backup, "the weights' memory may be released"),
        (execution.offload.cpu_offload_gb > 0 or execution.offload.offload_group_size > 0, "weights are offloaded to the CPU"),
        (layer.moe_tp_size > 1, f"tensor parallelism of {layer.moe_tp_size} cuts experts; use --ep-size {layer.moe_tp_size}"),
        (lora.enable_lora or bool(lora.lora_paths), "LoRA is enabled"),
        (not a2a.is_none(), f"experts exchange rows by {getattr(a2a, 'value', a2a)}"),
        (exec_moe.ep_num_redundant_experts > 0, "redundant experts"),
        (exec_moe.enable_eplb, "expert load balancing"),  # it moves SGLang's own weights, which are freed
        (parallel.dwdp_size > 1, f"ranks lend each other experts (--dwdp-size {parallel.dwdp_size})"),
        (exec_moe.enable_paged_experts, "paged experts"),
        (layer.num_fused_shared_experts > 0, "shared experts"),
        (config.gemm1_alpha is None or config.gemm1_clamp_limit is None or not layer.with_bias or not config.is_gated
         or not config.gate_up_interleaved or config.activation != "silu", "the activation is not gpt-oss's"),
        (config.apply_router_weight_on_input, "router weights on the input"),
        (config.no_combine, "experts whose results are not added up"),
        (config.routed_scaling_factor not in (None, 1.0), f"results scaled by {config.routed_scaling_factor}"),
        (str(config.params_dtype) != "torch.bfloat16", f"activations are {config.params_dtype}"),
    )
    return next((reason for unfit, reason in checks if unfit), None)


def choose(method: Any, config: Any, layer: Any, prefix: str) -> Any:
    """SGLang calls this behind Mxfp4Config.get_quant_method. Returns the method to take instead; None: SGLang's own."""
    experts = importlib.import_module("moesaic.sglang_experts")
    if type(method) is not experts.Mxfp4MoEMethod:
        return None
    reason = unfit_device() or unfit_layer(layer, *experts.settings())
    if reason is not None:
        return refuse(reason)
    return experts.MoesaicMoEMethod(layer, prefix)


def register() -> None:
    """SGLang calls this in each of its processes."""
    asked = os.environ.get("MOESAIC_SGLANG", "")
    if asked != "1":
        if asked not in ("", "0"):
            refuse(f"MOESAIC_SGLANG is {asked!r:.40}, not 1")
        return
    try:
        import sglang

        reason = misfit("sglang", _INTERFACE)
        if reason is not None:
            return refuse(f"SGLang {sglang.__version__} has another interface than 0.5.23: {reason}")
        importlib.import_module("moesaic.sglang_experts")  # SGLang does it later, where a failure would end it
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(f"sglang.{_METHODS}.Mxfp4Config.get_quant_method", choose, HookType.AFTER)
    except Exception as error:  # whatever it is, SGLang goes on
        refuse(f"{type(error).__name__}: {error}".splitlines()[0])
