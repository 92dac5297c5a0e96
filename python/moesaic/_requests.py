"""LLM and AsyncLLM share this: opening a model, and requests as the engine takes them."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import os
import random
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence, Union

from . import _engine
from ._progress import Loading
from ._tokenizer import Tokenizer
from ._values import _as_json, _ids, _is_id, _is_series, _message_list, _text, _token_ids
from ._vllm import ATTRIBUTES, LLM_NAMES, by_name
from .errors import InvalidRequest, Unsupported, _line, _shown
from .outputs import RequestStateStats, _Collector
from .sampling import SamplingParams, _whole

if TYPE_CHECKING:
    import numpy
    import numpy.typing

# Text, token ids, or vLLM's {"prompt": ..} and {"prompt_token_ids": ..}, which may have a "cache_salt".
Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Messages = Sequence[Mapping[str, Any]]


@dataclasses.dataclass
class _Request:
    """One prompt's request, before it is submitted."""

    endpoint: str
    body: dict[str, Any]
    prompt: str | None
    params: SamplingParams


def _is_one_prompt(prompts: Any) -> bool:
    """True also for what is no prompt at all: the request that is made of it says what is wrong."""
    if not (_is_series(prompts) and hasattr(prompts, "__len__")):
        return True
    return len(prompts) > 0 and _is_id(next(iter(prompts)))


def _path(model: Any) -> bytes:
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidRequest(f"model: {type(model).__name__} is no path or name")
    try:
        path = os.fsencode(model)
    except UnicodeEncodeError:
        path = b"\0"
    if b"\0" in path:
        raise InvalidRequest(f"model: {_shown(model)} is a name that no file can have")
    return path


def _text_of(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _prompt_value(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, Mapping):
        _check_prompt(prompt)
        given = prompt.get("prompt_token_ids")
        value = prompt.get("prompt") if given is None else given
    else:
        value = prompt
    if isinstance(value, str):
        return value
    if not _is_series(value):
        raise InvalidRequest("a prompt is text, token ids, {'prompt': ..} or {'prompt_token_ids': ..}")
    return _ids(value, "prompt_token_ids" if isinstance(prompt, Mapping) else "prompt")


def _check_prompt(prompt: Mapping[str, Any]) -> None:
    for name, value in prompt.items():
        if name not in ("prompt", "prompt_token_ids", "cache_salt") and not (value is None or isinstance(value, Mapping) and not value):
            raise InvalidRequest(f"a prompt has no {_shown(name)}; a prompt is text, token ids, {{'prompt': ..}} or {{'prompt_token_ids': ..}}, "
                                 "and may have a cache_salt")


def _no_params(given: Any) -> InvalidRequest:
    kind = type(given)
    name = f"{kind.__module__}.{kind.__name__}" if kind.__name__ == SamplingParams.__name__ else kind.__name__  # vLLM's has the name, too
    return InvalidRequest(f"sampling params: {name} is not moesaic.SamplingParams")


def _checked(params: SamplingParams) -> SamplingParams:
    """A copy, so that later changes are for later requests."""
    if not isinstance(params, SamplingParams):
        raise _no_params(params)
    try:
        params = params.clone()
    except RecursionError:
        raise InvalidRequest("sampling params: one holds itself, or is nested too deeply") from None
    except Exception as error:  # a value cannot be copied
        raise InvalidRequest(f"sampling params: {_line(error)}") from None
    params.logprobs, params.prompt_logprobs = (None if one is False else one for one in (params.logprobs, params.prompt_logprobs))
    params.n = _whole("n", params.n)
    if not 1 <= params.n <= _engine.most_choices:  # AsyncLLM numbers a request's answers before the engine has it
        raise InvalidRequest(f"n: {_shown(params.n)} is not from 1 to {_engine.most_choices}")
    return params


def _completion(prompt: Prompt, params: SamplingParams | None) -> _Request:
    params = _checked(SamplingParams() if params is None else params)
    value = _prompt_value(prompt)
    body = {**params._body(chat=False), "n": params.n, "prompt": value}
    text: Any = value if isinstance(value, str) else None
    if isinstance(prompt, Mapping):
        text = prompt.get("prompt", text)
        if prompt.get("cache_salt") is not None:
            body["cache_salt"] = prompt["cache_salt"]
    return _Request("completions", body, text, params)


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidRequest(f"seed: {_shown(value)} is not a whole number")
    return operator.index(value)


def _chat(messages: Messages, params: SamplingParams | None, fields: Mapping[str, Any]) -> _Request:
    params = _checked(SamplingParams(max_tokens=None) if params is None else params)
    body = {**params._body(chat=True), "n": params.n, "messages": _message_list(messages)}
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given:
        if name in _OF_PARAMS:
            raise InvalidRequest(f"{name}: give it in SamplingParams")
    body.update(given)
    return _Request("chat", body, None, params)


_OF_PARAMS = {field.name for field in dataclasses.fields(SamplingParams)} | {"top_logprobs", "max_completion_tokens"}


_NOT_OPTIONS = ("self", "model", "progress", "seed", "use_tqdm_on_load", "vllm")


class _Base:
    @by_name(LLM_NAMES, "LLM", closed=True)
    def __init__(self, model: str, *, device: str = "auto", kv_dtype: str = "auto", context: int = 0, max_batch: int = 0,
                 kv_tokens: int = 0, max_rows: int = 0, threads: int = 0, cpu_pin: str = "auto", prefix_cache: bool = True,
                 dense: str = "keep", tokenizer: str = "", moe_path: str = "auto", cpu_prefetch: str = "auto",
                 batch_invariant: bool = False, tune: bool = True, lora: str | Sequence[str] = (), speculative: str = "none", draft_tokens: int = 0,
                 kv_host: float = 0, kv_disk: str = "", tp: int | str = 1, experts: str = "", gpu_memory: float = 0, seed: int | None = None, use_tqdm_on_load: bool = True,
                 progress: Callable[[int, int], bool | None] | None = None, **vllm: Any) -> None:
        """Opens a model. Other names that vLLM has are taken, too, or refused with the one to use (docs/user/python.md). None is the
        default of every option, and a path may be one of pathlib's.

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
        moe_path: auto, w4a8, w4a8x2 or fp8 (Ada, Hopper). cpu_prefetch: auto, none or t0:1024. batch_invariant: cuda, the same bits in any batch.
        tune: cuda: kernels are measured at the first load on a device, and the choice is kept.
        lora: adapters as peft saves them, FOLDER or FOLDER:SCALE; or one of them.
        speculative: none, ngram, suffix, suffix:own, eagle3 (the model's own head, such as tiny's), eagle3:FOLDER or draft:MODEL.
            draft_tokens: of a guess; 0: as many as pay.
        kv_host: GiB of host memory for blocks of the prefix cache whose pages others needed. kv_disk: DIR or DIR:GiB,
            a folder for the same, found again by the next process.
        tp: ranks that compute the model together, each with its part of the weights: on cuda a GPU each, on cpu a
            part of the threads; auto: the GPUs that the model needs, or more where they answer sooner; numa: on cpu one for
            each NUMA node. vLLM: tensor_parallel_size.
        experts: cuda: gpu; host:N, the experts of N layers in host memory, which the CPU computes; host, of all layers;
            auto, of as many as do not fit. gpu_memory: cuda: GiB that the model may take of the GPU; experts are then auto.
        seed: requests without a seed of their own get theirs from this one, in the order in which they are made; None:
            another each time.
        use_tqdm_on_load: standard error shows how much is loaded. progress: called instead with the bytes loaded and the
            bytes in all; False ends it with Cancelled.

        Raises NotFound, InvalidRequest, OutOfMemory or Unsupported, with one line.
        """
        options = {name: _text_of(value) for name, value in locals().items() if name not in _NOT_OPTIONS and value is not None}
        if _is_series(lora):
            options["lora"] = [_text_of(one) for one in lora]
        elif isinstance(options.get("lora"), str):
            options["lora"] = [options["lora"]]
        path = _path(model)
        if progress is not None and not callable(progress):
            raise InvalidRequest("progress: must be a function of the bytes loaded and the bytes in all")
        self._seeds = None if seed is None else random.Random(_seed(seed))
        self._ids = itertools.count()
        bar = Loading(str(model)) if progress is None and use_tqdm_on_load else None
        try:
            self._engine = _engine.open_engine(path, bar or progress, **options)
        finally:
            if bar is not None:
                bar.close()

    if not TYPE_CHECKING:  # so that type checkers see what is not there

        def __getattr__(self, name):
            advice = ATTRIBUTES.get(name)
            raise AttributeError(f"{type(self).__name__} has no {name!r}{': ' + advice if advice else ''}")

    def __reduce__(self) -> Any:
        raise InvalidRequest(f"{type(self).__name__} cannot be copied or sent to another process: it has threads and memory of this one; open "
                             "the model there")

    def get_tokenizer(self) -> Tokenizer:
        """Texts to token ids and back, and the prompts of chats."""
        return Tokenizer(self)

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of generate() where none are given. gpt-oss's generation_config.json changes none of them."""
        return SamplingParams()

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids. special: names such as <|start|> become special tokens instead of text."""
        return self._engine.tokenize(_text(text, "text").encode("utf-8", "replace").decode(), bool(special))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Bytes that are no UTF-8, such as half a character, become U+FFFD."""
        return self._engine.detokenize(_token_ids(tokens, "tokens")).decode("utf-8", "replace")

    def logits(self, prompt: Prompt, all: bool = True) -> numpy.typing.NDArray[numpy.float32]:
        """The model's raw logits, [tokens, vocabulary] float32: row i is what follows token i. all=False: the last row.
        Blocks; an array takes 4 bytes for each value, 0.8 MB a token for gpt-oss. Needs numpy."""
        try:
            import numpy  # noqa: F401 before the prompt is computed: the array needs it
        except Exception as error:
            raise Unsupported(f"logits: numpy cannot be imported ({_line(error)}): pip install numpy") from None
        value = _prompt_value(prompt)
        tokens = self.tokenize(value, True) if isinstance(value, str) else _token_ids(value, "prompt")
        return self._engine.logits(tokens, bool(all))

    @property
    def info(self) -> dict[str, Any]:
        """Says what was opened and why: name, device, memory_used (bytes; of them weights_bytes, kv_cache_bytes and
        workspace_bytes), stored_bytes (of the weights in their files), context, kv_tokens (tokens), max_batch, .."""
        return self._engine.info()

    @property
    def stats(self) -> dict[str, Any]:
        """Requests running and waiting, pages of the KV cache, and counts of tokens, as of the last step."""
        return self._engine.stats()

    def close(self) -> None:
        """Ends every request with an error and frees the model's memory. Nothing where that has been done."""
        self._engine.close()

    def _draw_seed(self, request: _Request) -> None:
        if self._seeds is not None and request.params.seed is None:
            request.body["seed"] = self._seeds.getrandbits(31)

    def _submit(self, request: _Request, stream: _engine.Stream, first: int, request_id: str | None = None) -> _Collector:
        """Queues a request's generations as first, first + 1, .. of the stream."""
        wanted = request.params.prompt_logprobs
        made = RequestStateStats._now()
        prompts = self._engine.submit(request.endpoint, _as_json(request.body), stream, first, -1 if wanted is None else operator.index(wanted),
                                      request.params._all_logprobs())
        collector = _Collector(request_id or str(next(self._ids)), request.prompt, request.params, self._engine.detokenize, made)
        collector.output.prompt_token_ids = prompts[0]
        return collector
