"""vLLM with moesaic's kernels for gpt-oss: MOESAIC_VLLM=1 vllm serve openai/gpt-oss-20b

vLLM finds register() by the wheel's entry point in vllm.general_plugins. It does nothing unless MOESAIC_VLLM is set:

1        all layers, by a model class of moesaic's own (vllm_model.py); the experts alone where that does not fit
experts  the experts alone, by a quantization config for gpt-oss's MXFP4 checkpoints (vllm_experts.py)

Where neither fits, one line of the log says why, and vLLM goes on with its own; also at the start after moesaic has crashed
(vllm_crash.py). MOESAIC_VLLM_DENSE=mxfp8 quantises lm_head and
the projections, too; MOESAIC_VLLM_GRAPHS=vllm lets vLLM capture the steps, which moesaic does else.
"""

from __future__ import annotations

import importlib
import os

from . import vllm_crash, vllm_fit

_ARCHITECTURE = "GptOssForCausalLM"


def _asked() -> str:
    return os.environ.get("MOESAIC_VLLM", "")


def _register_model() -> None:
    reason = vllm_fit.unfit_options() or vllm_fit.misfit_of_model()
    if reason is not None:
        return vllm_fit.refuse_model(reason)
    from vllm.model_executor.models.registry import ModelRegistry

    try:
        importlib.import_module("moesaic.vllm_model")  # vLLM does it later, where a failure would end it
    except Exception as error:
        return vllm_fit.refuse_model(f"{type(error).__name__}: {error}".splitlines()[0])
    ModelRegistry.register_model(_ARCHITECTURE, "moesaic.vllm_model:MoesaicGptOss")


def _separate_cache() -> None:
    """Compiled graphs are kept by vLLM's configuration, which does not tell them apart: with vLLM's own kernels gpt-oss's rows
    may be padded."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vllm")
    root = os.environ.get("VLLM_CACHE_ROOT") or default
    if os.path.basename(root) != "moesaic":
        os.environ["VLLM_CACHE_ROOT"] = os.path.join(root, "moesaic")


def register() -> None:
    """vLLM calls this in each of its processes, perhaps more than once."""
    if _asked() not in ("1", "experts"):
        if _asked() not in ("", "0"):
            vllm_fit.refuse(f"MOESAIC_VLLM is {_asked()!r:.40}, not 1 or experts")
        return
    try:
        crashed = vllm_crash.earlier()
        if crashed is not None:
            return vllm_fit.refuse(crashed)
        reason = vllm_fit.misfit()
        if reason is not None:
            return vllm_fit.refuse(reason)
        from vllm.model_executor.layers.quantization import register_quantization_config

        vllm_crash.watch()
        register_quantization_config(vllm_fit.QUANTIZATION)(importlib.import_module("moesaic.vllm_experts").MoesaicMxfp4Config)
        _separate_cache()
        if _asked() == "1":
            _register_model()
    except Exception as error:  # whatever it is, vLLM goes on
        vllm_fit.refuse(f"{type(error).__name__}: {error}".splitlines()[0])
