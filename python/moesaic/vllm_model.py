"""vLLM's gpt-oss with all layers by moesaic: vllm_plugin.py registers it.

vLLM builds its own modules and loads their weights, which are then repacked layer by layer and freed. A step is one call of
moesaic's step operator, on vLLM's tokens, page tables, KV cache and stream.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Callable

import torch
from torch import nn
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.models import gpt_oss
from vllm.model_executor.models.adapters import as_embedding_model, as_seq_cls_model

from . import _engine
from . import vllm_crash, vllm_fit
from ._serving_engine import free
from .vllm_attention import MoesaicAttentionBackend, StepMetadata

_MOST_ROWS = 8192  # rows of a step at once; vLLM's larger ones run in parts


class _Attention(gpt_oss.OAIAttention):
    def _build_attention(self, config: Any, cache_config: Any, quant_config: Any, prefix: str) -> Attention:
        return Attention(self.num_local_attention_heads, self.head_dim, self.scaling, num_kv_heads=self.num_local_key_value_heads,
                         cache_config=cache_config, quant_config=quant_config,
                         per_layer_sliding_window=config.sliding_window if self.layer_idx % 2 == 0 else None,
                         prefix=f"{prefix}.attn", attn_backend=MoesaicAttentionBackend, sinks=self.sinks)


class _Block(gpt_oss.TransformerBlock):
    attention_cls = _Attention


class _Layers(gpt_oss.GptOssModel):
    block_cls = _Block


class _Repacking(QuantizeMethodBase):
    """vLLM calls it once the weights are loaded, before it counts their memory."""

    def __init__(self, repack: Callable[[], None]) -> None:
        self.repack = repack

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        pass

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
        raise NotImplementedError

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        self.repack()


class MoesaicGptOss(gpt_oss.GptOssForCausalLM):
    """Has vLLM's own modules while weights are loaded. Where it does not fit, vLLM's own class is made instead."""

    def __new__(cls, *, vllm_config: Any, prefix: str = "") -> Any:
        if reason := vllm_fit.unfit_checkpoint(vllm_config):
            vllm_fit.refuse(reason)
        elif reason := vllm_fit.unfit_model(vllm_config):
            vllm_fit.refuse_model(reason)
        else:
            return super().__new__(cls)
        # For pooling, vLLM wraps the class of a model. Its own class needs the same.
        wrap = {"embed": as_embedding_model, "classify": as_seq_cls_model}.get(vllm_config.model_config.convert_type, lambda own: own)
        return wrap(gpt_oss.GptOssForCausalLM)(vllm_config=vllm_config, prefix=prefix)

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        nn.Module.__init__(self)
        self.vllm_config, self.config = vllm_config, vllm_config.model_config.hf_config
        if not vllm_fit.graphs_are_vllms():
            vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
        vllm_config.quant_config.whole_model = True  # vllm_experts.py's: experts are loaded as they are
        self.model = _Layers(vllm_config=vllm_config, prefix=gpt_oss.maybe_prefix(prefix, "model"))
        self.lm_head = gpt_oss.ParallelLMHead(self.config.vocab_size, self.config.hidden_size,
                                              prefix=gpt_oss.maybe_prefix(prefix, "lm_head"))
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.last = nn.Module()  # the last to be processed, after all that have weights
        self.last.quant_method = _Repacking(self._prepare)
        self._step: Any = None
        self._cached: list[int] = []  # addresses of the layers' caches

    # --- Weights ---

    def load_weights(self, weights: Any) -> Any:
        if self._step is not None:
            raise NotImplementedError(vllm_fit.LOADED_ONCE)
        return super().load_weights(weights)

    def _prepare(self) -> None:
        if self._step is not None:
            raise NotImplementedError(vllm_fit.LOADED_ONCE)
        scheduler, model, device = self.vllm_config.scheduler_config, self.vllm_config.model_config, self.lm_head.weight.device
        rows = scheduler.max_num_batched_tokens
        self._loaded = {layer: self._tensors(layer) for layer in range(-1, len(self.model.layers))}
        arguments = [(name, _TYPES[t.dtype], list(t.shape), t.data_ptr())
                     for tensors in self._loaded.values() for name, t in tensors.items()]
        config = {name: value for name, value in self.config.to_dict().items() if name in _CONFIG}
        torch.cuda.synchronize()
        with torch.cuda.device(device):
            self._step = _engine.prepare_step(
                json.dumps(config), arguments, device=device.index, max_rows=min(rows, _MOST_ROWS),
                max_sequences=scheduler.max_num_seqs, max_context=model.max_model_len,
                fp8_cache=self.vllm_config.cache_config.cache_dtype in vllm_fit.FP8, dense=vllm_fit.dense_format(),
                graphs=not (vllm_fit.graphs_are_vllms() or model.enforce_eager), release=self._release)
        self._hidden = torch.zeros(rows, self.config.hidden_size, dtype=torch.bfloat16, device=device)
        attention = [layer.attn.attn for layer in self.model.layers]
        self._attention, self._longest = attention, model.max_model_len
        self._full = next((a.layer_name for a in attention if a.sliding_window is None), attention[0].layer_name)
        self._sliding = next((a.layer_name for a in attention if a.sliding_window is not None), self._full)
        vllm_fit.say_once(f"moesaic: gpt-oss runs on moesaic's kernels, all layers of it ({self._step.bytes / 1e9:.1f} GB)", logging.INFO)

    def _tensors(self, layer: int) -> dict[str, torch.Tensor]:
        """A layer's tensors by Hugging Face's names; with -1 those outside all layers. Matrices stay on the GPU."""
        if layer < 0:
            vocab = self.config.vocab_size  # vLLM may have padded it
            return {"model.embed_tokens.weight": self.model.embedding.weight.data[:vocab].cpu(),
                    "lm_head.weight": self.lm_head.weight.data[:vocab], "model.norm.weight": self.model.norm.weight.data.cpu()}
        config, block = self.config, self.model.layers[layer]
        attention, router = block.attn, block.mlp.router
        experts = {name.rsplit(".", 1)[1]: p.data for name, p in block.mlp.experts.named_parameters()}
        on_gpu, on_host = {"self_attn.o_proj.weight": attention.o_proj.weight.data}, {
            "self_attn.o_proj.bias": attention.o_proj.bias, "self_attn.sinks": attention.sinks,
            "input_layernorm.weight": block.input_layernorm.weight,
            "post_attention_layernorm.weight": block.post_attention_layernorm.weight, "mlp.router.weight": router.weight,
            "mlp.router.bias": router.bias, "mlp.experts.gate_up_proj_bias": experts["w13_bias"],
            "mlp.experts.down_proj_bias": experts["w2_bias"]}
        sizes = [config.num_attention_heads * config.head_dim] + [config.num_key_value_heads * config.head_dim] * 2
        qkv = attention.qkv_proj
        for name, weight, bias in zip("qkv", qkv.weight.data.split(sizes), qkv.bias.data.split(sizes)):
            on_gpu[f"self_attn.{name}_proj.weight"], on_host[f"self_attn.{name}_proj.bias"] = weight, bias
        for name, short in (("gate_up_proj", "w13"), ("down_proj", "w2")):
            scales = experts[short + "_weight_scale"]
            on_gpu[f"mlp.experts.{name}_blocks"] = experts[short + "_weight"].view(*scales.shape, 16)
            on_gpu[f"mlp.experts.{name}_scales"] = scales
        tensors = {**on_gpu, **{name: t.data.cpu() for name, t in on_host.items()}}
        return {f"model.layers.{layer}.{name}": t for name, t in tensors.items()}

    def _release(self, layer: int) -> None:
        """Frees the weights that are repacked, here and in vLLM's modules."""
        del self._loaded[layer]
        modules = [self.model.layers[layer]] if layer >= 0 else [self.model.embedding, self.lm_head, self.model.norm]
        free(p for module in modules for p in module.parameters())

    # --- Steps ---

    def _bind(self) -> None:
        """Tells the operator where each layer's cache is, if it has moved."""
        caches = [a.kv_cache for a in self._attention]
        addresses = [cache.data_ptr() for cache in caches]
        if addresses == self._cached:
            return
        for layer, cache in enumerate(caches):
            self._step.set_cache(layer, cache.data_ptr(), cache.shape[0], cache.stride(0) * cache.element_size())
        self._cached = addresses

    def forward(self, input_ids: torch.Tensor | None, positions: torch.Tensor, intermediate_tensors: Any = None,
                inputs_embeds: torch.Tensor | None = None) -> torch.Tensor:
        if input_ids is None or inputs_embeds is not None:
            raise NotImplementedError("moesaic: prompts are tokens, not embeddings; start vLLM with MOESAIC_VLLM=experts")
        rows = input_ids.shape[0]
        out = self._hidden[:rows]
        metadata = get_forward_context().attn_metadata
        if not metadata:  # vLLM measures memory
            return out
        full, sliding = metadata[self._full], metadata[self._sliding]
        with vllm_crash.noted():
            self._bind()
            self._step.run(rows, full.starts.shape[0] - 1, full.host_starts.data_ptr(), full.starts.data_ptr(),
                           input_ids.data_ptr(), positions.data_ptr(), _tables(full), _tables(sliding),
                           min(full.longest, self._longest), out.data_ptr(), torch.cuda.current_stream().cuda_stream)
        return out

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = hidden_states.contiguous()
        rows = hidden_states.shape[0]
        logits = torch.empty(rows, self.config.vocab_size, dtype=torch.float32, device=hidden_states.device)
        with vllm_crash.noted():
            self._step.logits(hidden_states.data_ptr(), rows, logits.data_ptr(), torch.cuda.current_stream().cuda_stream)
        return logits


# The layers depend on these keys of Hugging Face's configuration.
_CONFIG = frozenset(
    "model_type num_hidden_layers hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim num_local_experts "
    "num_experts_per_tok experts_per_token vocab_size sliding_window layer_types max_position_embeddings rms_norm_eps swiglu_alpha "
    "swiglu_limit rope_theta rope_scaling rope_parameters attention_bias".split())
_TYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.uint8: "U8"}


def _tables(metadata: StepMetadata) -> tuple[int, int, int]:
    return metadata.pages.data_ptr(), metadata.pages.stride(0), metadata.slots.data_ptr()
