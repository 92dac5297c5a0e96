"""moesaic's KV cache and step metadata as vLLM's attention interface has them.

The model of vllm_model.py runs whole layers, and with them attention. What is here tells vLLM how large a block of the cache is,
and keeps what vLLM says of a step.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder

from .vllm_fit import KV_DTYPES, MOST_CAPTURED_ROWS, PAGE, dense_layouts, graphs_are_vllms


@dataclasses.dataclass
class StepMetadata(AttentionMetadata):
    """A step as vLLM describes it to the layers that share page tables."""

    starts: torch.Tensor  # [sequences + 1] int32
    host_starts: torch.Tensor  # the same on the host
    pages: torch.Tensor  # [sequences, stride] int32
    slots: torch.Tensor  # [rows] int64
    longest: int  # context; more than there is is allowed


class StepMetadataBuilder(AttentionMetadataBuilder[StepMetadata]):
    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """vLLM captures no step with more rows of a sequence than moesaic takes in a captured one."""
        if not graphs_are_vllms():
            return AttentionCGSupport.NEVER
        drafted = getattr(vllm_config.speculative_config, "num_speculative_tokens", None) or 0
        return AttentionCGSupport.UNIFORM_BATCH if drafted < MOST_CAPTURED_ROWS else AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> StepMetadata:
        m = common_attn_metadata
        return StepMetadata(starts=m.query_start_loc, host_starts=m.query_start_loc_cpu, pages=m.block_table_tensor,
                            slots=m.slot_mapping, longest=m.max_seq_len)


class _WholeLayers(AttentionImpl[StepMetadata]):
    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None, *_: Any,
                 kv_cache_dtype: str = "auto", **__: Any) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, kv_cache_dtype

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        raise NotImplementedError("moesaic's attention runs with the whole layer")


class MoesaicAttentionBackend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(KV_DTYPES)

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [PAGE]

    @staticmethod
    def get_impl_cls() -> type[_WholeLayers]:
        return _WholeLayers

    @staticmethod
    def get_builder_cls() -> type[StepMetadataBuilder]:
        return StepMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> tuple[int, ...]:
        """K, then V of a block, in an order of moesaic's own."""
        return (num_blocks, 2, num_kv_heads, block_size, head_size)

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """vLLM's shape is [blocks, heads, tokens, K and V]. What is in a block is moesaic's own here, too."""
        return dense_layouts()

    @classmethod
    def supports_sink(cls) -> bool:
        return True
