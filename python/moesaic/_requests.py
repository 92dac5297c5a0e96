"""What LLM and AsyncLLM share: opening a model, and requests as the engine takes them."""

from __future__ import annotations

import itertools
import json
import operator
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence, Union

from . import _engine
from .errors import InvalidRequest
from .outputs import _Collector
from .sampling import SamplingParams

if TYPE_CHECKING:
    import numpy
    import numpy.typing

# Text, token ids, or vLLM's {"prompt": ..} and {"prompt_token_ids": ..}, which may have a "cache_salt".
Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Messages = Sequence[Mapping[str, Any]]


class _Request:
    """One prompt's request, before it is submitted."""

    def __init__(self, endpoint: str, body: dict[str, Any], prompt: str | None, params: SamplingParams) -> None:
        self.endpoint = endpoint
        self.body = body
        self.prompt = prompt
        self.params = params


def _prompt_value(prompt: Prompt) -> str | list[int]:
    value = prompt.get("prompt_token_ids", prompt.get("prompt")) if isinstance(prompt, Mapping) else prompt
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise InvalidRequest("a prompt is text, token ids, {'prompt': ..} or {'prompt_token_ids': ..}")
    return list(value)


def _checked(params: SamplingParams) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"sampling params: {type(params).__name__} is not SamplingParams")
    return params


def _completion(prompt: Prompt, params: SamplingParams | None) -> _Request:
    params = _checked(SamplingParams() if params is None else params)
    value = _prompt_value(prompt)
    body = {**params._body(chat=False), "n": params.n, "prompt": value}
    if isinstance(prompt, Mapping) and prompt.get("cache_salt") is not None:
        body["cache_salt"] = prompt["cache_salt"]
    return _Request("completions", body, value if isinstance(value, str) else None, params)


def _chat(messages: Messages, params: SamplingParams | None, fields: Mapping[str, Any]) -> _Request:
    params = _checked(SamplingParams(max_tokens=None) if params is None else params)
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise InvalidRequest("messages: must be a list of messages")
    body = {**params._body(chat=True), "n": params.n, "messages": list(messages)}
    body.update({name: value for name, value in fields.items() if value is not None})
    return _Request("chat", body, None, params)


class _Base:
    def __init__(self, model: str, *, device: str = "auto", kv_dtype: str = "auto", context: int = 0, max_batch: int = 0,
                 kv_tokens: int = 0, max_rows: int = 0, threads: int = 0, cpu_pin: str = "auto", prefix_cache: bool = True,
                 dense: str = "keep", tokenizer: str = "", moe_path: str = "auto", cpu_prefetch: str = "auto",
                 batch_invariant: bool = False, tune: bool = True, lora: str | Sequence[str] = (), speculative: str = "none", draft_tokens: int = 0,
                 kv_host: float = 0, kv_disk: str = "",
                 progress: Callable[[int, int], bool | None] | None = None) -> None:
        """Opens a model.

        model: a folder with config.json, .safetensors and tokenizer.json, a .gguf file, owner/name in the Hugging Face
            cache, or "tiny", which comes with the package.
        device: auto (the first usable GPU, else the CPU), cpu, cuda, cuda:1 .. or reference.
        kv_dtype: of K and V: auto, bf16 or fp8 (cuda and reference).
        context: tokens that one request may reach; 0: the model's maximum, or what fits. vLLM: max_model_len.
        max_batch: requests decoded together; 0: as many as pay on the device and fit. vLLM: max_num_seqs.
        kv_tokens: size of the KV cache in tokens, of all requests; 0: a context for each of max_batch, at most what
            half of a host's free memory holds, or nine tenths of a GPU's.
        max_rows: most tokens of a step; 0: what prompts need for full speed. vLLM: max_num_batched_tokens.
        threads: of the CPU; 0: one for each physical core. cpu_pin: auto or off.
        prefix_cache: the beginning that a prompt shares with earlier ones is not computed again.
        dense: attention's matrices and lm_head in memory: keep, bf16, q8_0, mxfp8 or mxfp4.
        tokenizer: a tokenizer.json or .tiktoken file instead of the model's own.
        moe_path: auto or w4a8. cpu_prefetch: auto, none or t0:1024. batch_invariant: cuda, the same bits in any batch.
        tune: cuda: kernels are measured at the first load on a device, and the choice is kept.
        lora: adapters as peft saves them, FOLDER or FOLDER:SCALE; or one of them.
        speculative: none, ngram, suffix or suffix:own. draft_tokens: of a guess; 0: as many as pay.
        kv_host: GiB of host memory for blocks of the prefix cache whose pages others needed. kv_disk: DIR or DIR:GiB,
            a folder for the same, found again by the next process.
        progress: called with the bytes loaded and the bytes in all; False ends it with Cancelled.

        Raises NotFound, InvalidRequest, OutOfMemory or Unsupported, with one line.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "model", "progress")}
        options["lora"] = [lora] if isinstance(lora, str) else list(lora)
        self._engine = _engine.open_engine(str(model), progress, **options)
        self._ids = itertools.count()

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids. special: names such as <|start|> become special tokens instead of text."""
        if not isinstance(text, str):
            raise InvalidRequest(f"text: {type(text).__name__} is not text")
        return self._engine.tokenize(text.encode("utf-8", "replace").decode(), special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Bytes that are no UTF-8, such as half a character, become U+FFFD."""
        if not isinstance(tokens, Iterable) or isinstance(tokens, (str, bytes)):
            raise InvalidRequest(f"tokens: {type(tokens).__name__} is no list of token ids")
        ids = [operator.index(token) for token in tokens]
        if any(abs(token) >= 1 << 31 for token in ids):
            raise InvalidRequest("tokens: one is no token id")
        return self._engine.detokenize(ids).decode("utf-8", "replace")

    def logits(self, prompt: Prompt, all: bool = True) -> numpy.typing.NDArray[numpy.float32]:
        """The model's raw logits, [tokens, vocabulary] float32: row i is what follows token i. all=False: the last row.
        Blocks; an array takes 4 bytes for each value, 0.8 MB a token for gpt-oss. Needs numpy."""
        value = _prompt_value(prompt)
        return self._engine.logits(self.tokenize(value, True) if isinstance(value, str) else value, all)

    @property
    def info(self) -> dict[str, Any]:
        """What was opened and why: name, device, memory_used (bytes; of them weights_bytes, kv_cache_bytes and
        workspace_bytes), stored_bytes (of the weights in their files), context, kv_tokens (tokens), max_batch, .."""
        return self._engine.info()

    @property
    def stats(self) -> dict[str, Any]:
        """Requests running and waiting, pages of the KV cache, and counts of tokens, as of the last step."""
        return self._engine.stats()

    def close(self) -> None:
        """Ends every request with an error and frees the model's memory. Nothing where that has been done."""
        self._engine.close()

    def _submit(self, request: _Request, stream: _engine.Stream, first: int, request_id: str | None = None) -> _Collector:
        """Queues a request's generations as first, first + 1, .. of the stream."""
        wanted = request.params.prompt_logprobs
        try:
            body = json.dumps(request.body, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"a request holds something that is not JSON: {error}") from None
        prompts = self._engine.submit(request.endpoint, body, stream, first, -1 if wanted is None else wanted)
        collector = _Collector(request_id or str(next(self._ids)), request.prompt, request.params, self._engine.detokenize)
        collector.output.prompt_token_ids = prompts[0]
        return collector
