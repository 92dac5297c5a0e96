"""moesaic: OpenAI's gpt-oss models on CPUs and NVIDIA GPUs. docs/user/python.md has examples.

LLM and AsyncLLM are the engine in this process; `python -m moesaic serve` is the server; ops has a layer's operators,
for your own tensors. Importing this loads neither torch nor numpy; LLM.logits() imports numpy, ops torch if it is given its tensors.
"""

from typing import Any

from . import ops
from ._engine import list_devices as _list_devices
from ._engine import version as __version__
from .async_llm import AsyncLLM
from .errors import Cancelled, InvalidRequest, MoesaicError, NotFound, OutOfMemory, Unsupported
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput, RequestStateStats, ToolCall
from .sampling import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = ["LLM", "AsyncLLM", "Cancelled", "CompletionOutput", "InvalidRequest", "Logprob", "MoesaicError", "NotFound",
           "OutOfMemory", "RequestOutput", "RequestOutputKind", "RequestStateStats", "SamplingParams", "StructuredOutputsParams", "ToolCall",
           "Unsupported", "__version__", "list_devices", "ops"]


def list_devices() -> list[dict[str, Any]]:
    """The devices of this machine, in the order in which device="auto" looks for one: name, backend, description,
    memory_total and memory_free in bytes (-1: unknown), usable, and the reason why not."""
    return _list_devices()
