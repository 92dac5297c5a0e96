"""The operators of _layer_ops.py as torch operators: torch.ops.moesaic.paged_attention, norm_qkv_rope, project and lm_head, each
with an _out variant, and project_add, whose residual is its result.

`prepared` is Dense.handle. Each has a fake kernel, so that torch.compile traces it, and takes its scratch memory from torch's
allocator on the current stream, so that CUDA graphs capture it.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _layer_runs as runs
from ._layer_runs import Dense, check_eps, check_layout, check_window, dense_of
from ._views import whole
from .errors import InvalidRequest

_library = torch.library.Library("moesaic", "FRAGMENT")
_ATTENTION = ("Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor lengths, Tensor starts, Tensor? sinks, int window, "
              "str layout")
_QKV = ("Tensor x, Tensor norm, int prepared, Tensor positions, Tensor cos_sin, Tensor slots, Tensor(a!) k_cache, Tensor(b!) v_cache, "
        "int heads, float eps, str layout")


def _workspace(device: torch.device, size: int) -> tuple[int, torch.Tensor]:
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    return memory.data_ptr(), memory


def _of_tokens(x: torch.Tensor, prepared: int) -> tuple[Dense, tuple[int, int], torch.Tensor]:
    """The matrix, a workspace, and what keeps that."""
    dense = runs.of_handle(prepared)
    size = dense._dense.workspace_bytes(x.shape[0]) if x.dim() == 2 else 0
    address, memory = _workspace(x.device, size)
    return dense, (address, size), memory


def _paged_attention_out(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor,
                         lengths: torch.Tensor, starts: torch.Tensor, sinks: torch.Tensor | None, window: int, layout: str,
                         out: torch.Tensor) -> None:
    runs.run_paged_attention(q, k_cache, v_cache, page_table, lengths, starts, out, sinks, window, layout,
                            lambda size: _workspace(q.device, size))


def _norm_qkv_rope_out(x: torch.Tensor, norm: torch.Tensor, prepared: int, positions: torch.Tensor, cos_sin: torch.Tensor,
                       slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, heads: int, eps: float, layout: str,
                       out: torch.Tensor) -> None:
    dense, workspace, memory = _of_tokens(x, prepared)
    runs.run_norm_qkv_rope(dense, x, norm, positions, cos_sin, slots, k_cache, v_cache, out, heads, eps, layout, workspace)
    del memory  # until here


def _project_out(x: torch.Tensor, prepared: int, residual: torch.Tensor | None, out: torch.Tensor) -> None:
    dense, workspace, memory = _of_tokens(x, prepared)
    runs.run_dense(dense, x, out, residual, workspace)
    del memory  # until here


def _project_add(x: torch.Tensor, prepared: int, residual: torch.Tensor) -> None:
    _project_out(x, prepared, residual, residual)


def _lm_head_out(x: torch.Tensor, prepared: int, out: torch.Tensor) -> None:
    if out.dtype != torch.float32:
        raise InvalidRequest(f"out is {str(out.dtype).removeprefix('torch.')}, not float32")
    _project_out(x, prepared, None, out)


# --- What the results look like ---


def _new(x: torch.Tensor, *shape: Any, dtype: torch.dtype) -> torch.Tensor:
    if x.dim() != 2:
        raise InvalidRequest(f"x is {list(x.shape)}, not [tokens, columns]")
    return x.new_empty(x.shape[0], *shape, dtype=dtype)


def _projected(x: torch.Tensor, prepared: int, residual: torch.Tensor | None) -> torch.Tensor:
    return _new(x, runs.of_handle(prepared).rows, dtype=torch.bfloat16 if residual is None else residual.dtype)


def _logits(x: torch.Tensor, prepared: int) -> torch.Tensor:
    return _new(x, runs.of_handle(prepared).rows, dtype=torch.float32)


def _queries(x: torch.Tensor, norm: Any, prepared: int, positions: Any, cos_sin: Any, slots: Any, k_cache: torch.Tensor, v_cache: Any,
             heads: int, eps: Any, layout: Any) -> torch.Tensor:
    if k_cache.dim() != 4:
        raise InvalidRequest(f"k_cache is {list(k_cache.shape)}; it has four dimensions")
    rows, head_dim = runs.of_handle(prepared).rows, k_cache.shape[3]
    if heads < 1 or heads > rows:
        raise InvalidRequest(f"heads is {heads}, and the matrix has {rows} rows")
    return _new(x, heads, head_dim, dtype=torch.bfloat16)


# --- Definitions, for _torch_ops.py, too ---


def _nothing(*_: Any) -> None:
    return None


def _define(library: torch.library.Library, name: str, schema: str, run: Any, fake: Any, devices: tuple[str, ...]) -> None:
    library.define(name + schema, tags=(torch.Tag.needs_fixed_stride_order,))
    for device in devices:
        library.impl(name, run, device)
    torch.library.register_fake("moesaic::" + name, fake, lib=library)


def define_both(library: torch.library.Library, name: str, arguments: str, run: Any, like: Any, devices: tuple[str, ...]) -> None:
    """Two operators: name_out writes to its last argument, as run() does, and name to a new tensor, as like() makes it."""

    def made(*given: Any) -> torch.Tensor:
        out = like(*given)
        run(*given, out)
        return out

    _define(library, name, f"({arguments}) -> Tensor", made, like, devices)
    _define(library, name + "_out", f"({arguments}, Tensor(c!) out) -> ()", run, _nothing, devices)


_EVERYWHERE = ("CUDA", "CPU")
define_both(_library, "paged_attention", _ATTENTION, _paged_attention_out, lambda q, *_: torch.empty_like(q), _EVERYWHERE)
define_both(_library, "norm_qkv_rope", _QKV, _norm_qkv_rope_out, _queries, _EVERYWHERE)
define_both(_library, "project", "Tensor x, int prepared, Tensor? residual", _project_out, _projected, _EVERYWHERE)
define_both(_library, "lm_head", "Tensor x, int prepared", _lm_head_out, _logits, _EVERYWHERE)
_define(_library, "project_add", "(Tensor x, int prepared, Tensor(a!) residual) -> ()", _project_add, _nothing, _EVERYWHERE)


# --- Checked calls, for _layer_ops.py ---


def call(name: str, arguments: tuple[Any, ...], out: torch.Tensor | None) -> torch.Tensor:
    """What name makes of them, or what name_out writes to out."""
    if out is None:
        return getattr(torch.ops.moesaic, name)(*arguments)
    getattr(torch.ops.moesaic, name + "_out")(*arguments, out)
    return out


def there(**given: Any) -> dict[str, Any]:
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def check_tensors(**given: Any) -> None:
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidRequest(f"{name} is a {type(tensor).__name__}; give one of torch's tensors, as the others")
        if tensor.layout != torch.strided:
            raise InvalidRequest(f"{name} is a tensor of layout {tensor.layout}; give a dense one")


def _check(where: torch.device, **given: Any) -> None:
    check_tensors(**given)
    if where.type not in ("cuda", "cpu", "meta"):
        raise InvalidRequest(f"tensors are on {where}; they must be on a CUDA device or the CPU")


def project(x: torch.Tensor, prepared: Dense, residual: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
    handle = dense_of(prepared).handle
    _check(x.device, x=x, **there(residual=residual, out=out))
    if out is None or residual is not out:
        return call("project", (x, handle, residual), out)
    torch.ops.moesaic.project_add(x, handle, out)
    return out


def lm_head(x: torch.Tensor, prepared: Dense, out: torch.Tensor | None) -> torch.Tensor:
    handle = dense_of(prepared).handle
    _check(x.device, x=x, **there(out=out))
    return call("lm_head", (x, handle), out)


def norm_qkv_rope(x: torch.Tensor, norm: torch.Tensor, prepared: Dense, positions: torch.Tensor, cos_sin: torch.Tensor,
                  slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, heads: int, eps: float, layout: str,
                  out: torch.Tensor | None) -> torch.Tensor:
    handle = dense_of(prepared).handle
    _check(x.device, x=x, norm=norm, positions=positions, cos_sin=cos_sin, slots=slots, k_cache=k_cache, v_cache=v_cache,
           **there(out=out))
    check_layout(layout)
    check_eps(eps)
    whole(heads, "heads", 1)
    return call("norm_qkv_rope", (x, norm, handle, positions, cos_sin, slots, k_cache, v_cache, heads, eps, layout), out)


def paged_attention(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
                    starts: torch.Tensor, sinks: torch.Tensor | None, window: int, layout: str,
                    out: torch.Tensor | None) -> torch.Tensor:
    _check(q.device, q=q, k_cache=k_cache, v_cache=v_cache, page_table=page_table, lengths=lengths, starts=starts,
           **there(sinks=sinks, out=out))
    check_layout(layout)
    check_window(window)
    return call("paged_attention", (q, k_cache, v_cache, page_table, lengths, starts, sinks, window, layout), out)
