"""moesaic.ops as torch operators: torch.ops.moesaic.mxfp4_moe, mxfp4_moe_from_logits, and both with _out.

`prepared` is Prepared.handle. Each has a fake kernel, so that torch.compile traces it, and takes its scratch memory from
torch's allocator on the current stream, so that CUDA graphs capture it.
"""

from __future__ import annotations

import torch

from . import _experts
from ._experts import Prepared
from ._handles import of_kind
from ._torch_layer_ops import call, check_tensors, define_both, there
from .errors import InvalidRequest

_library = torch.library.Library("moesaic", "DEF")


def _run(prepared: int, x: torch.Tensor, out: torch.Tensor, **inputs: torch.Tensor) -> None:
    experts = _experts.of_handle(prepared)
    size = experts._moe.workspace_bytes(x.shape[0]) if x.dim() == 2 else 0
    workspace = torch.empty(size, dtype=torch.uint8, device=x.device)
    _experts.run(experts, x, out, **inputs, workspace=(workspace.data_ptr(), size))


def _moe_out(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, prepared: int, out: torch.Tensor) -> None:
    _run(prepared, x, out, ids=topk_ids, weights=topk_weights)


def _moe_from_logits_out(x: torch.Tensor, router_logits: torch.Tensor, prepared: int, out: torch.Tensor) -> None:
    _run(prepared, x, out, logits=router_logits)


for _name, _arguments, _out in (("mxfp4_moe", "Tensor x, Tensor topk_ids, Tensor topk_weights, int prepared", _moe_out),
                                ("mxfp4_moe_from_logits", "Tensor x, Tensor router_logits, int prepared", _moe_from_logits_out)):
    define_both(_library, _name, _arguments, _out, lambda x, *_: torch.empty_like(x), ("CUDA",))


def _checked(x: torch.Tensor, prepared: Prepared) -> int:
    of_kind(prepared, Prepared, "prepare_mxfp4_moe")
    if x.device.type not in ("cuda", "meta"):
        raise InvalidRequest(f"x is on {x.device}; it must be on a CUDA device")
    return prepared.handle


def moe(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, prepared: Prepared,
        out: torch.Tensor | None) -> torch.Tensor:
    check_tensors(x=x, topk_ids=topk_ids, topk_weights=topk_weights, **there(out=out))
    return call("mxfp4_moe", (x, topk_ids, topk_weights, _checked(x, prepared)), out)


def moe_from_logits(x: torch.Tensor, router_logits: torch.Tensor, prepared: Prepared, out: torch.Tensor | None) -> torch.Tensor:
    check_tensors(x=x, router_logits=router_logits, **there(out=out))
    return call("mxfp4_moe_from_logits", (x, router_logits, _checked(x, prepared)), out)
