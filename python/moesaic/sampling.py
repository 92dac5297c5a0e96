"""How tokens are chosen, with vLLM's names."""

from __future__ import annotations

import copy
import dataclasses
import enum
import numbers
import operator
from typing import Any, Mapping, Sequence

from ._vllm import PARAMS_NAMES, by_name
from .errors import InvalidRequest, _shown


class RequestOutputKind(enum.Enum):
    """A stream's outputs hold one of these: all tokens so far, only the new ones, or one output at the end."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


StructuredOutputsParams = dict  # vLLM's spelling of the mapping: StructuredOutputsParams(json=schema)


@dataclasses.dataclass(kw_only=True, slots=True)
class SamplingParams:
    """Parameters of one request. Values out of range are refused with InvalidRequest when the request is made. Changes
    count for requests that are made later; a name that is none raises AttributeError. Other names that vLLM has are refused with the one to use.

    n: answers to each prompt.
    temperature: 0 takes the likeliest token. top_p in (0, 1]. top_k: 0 or -1 for all. min_p in [0, 1].
    seed: the same seed, prompt and parameters give the same tokens; None: another one each time.
    max_tokens: of the answer; None: as many as the context allows. Like vLLM's the default is 16; a chat without
        SamplingParams has no limit.
    min_tokens: until then no stop token is sampled and stop strings do not count.
    stop: strings that end the text and are not part of it, unless include_stop_str_in_output.
    stop_token_ids: further tokens that end the text. ignore_eos: the model's own do not.
    thinking_token_budget: tokens of reasoning in a chat's answer, behind which the answer is begun; None or -1: as many as
        the model wants.
    logprobs: None; n: of each token, and of the n likeliest, at most 20; -1: of the whole vocabulary, which takes long. False is
        None, and True is 1.
    prompt_logprobs: None; n: likewise of the prompt.
    cache_prompt: False: the prefix cache is not used for this prompt.
    logit_bias: added to tokens' logits, -100 to 100. allowed_token_ids: no others. bad_words: never these.
    structured_outputs: {"json": schema}, {"json_object": True}, {"regex": ..}, {"choice": [..]} or {"grammar": ..}: the
        answer follows it. In a chat, response_format is the same in OpenAI's words.
    output_kind: of streams.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    thinking_token_budget: int | None = None
    structured_outputs: Mapping[str, Any] | None = None
    cache_prompt: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def _body(self, chat: bool) -> dict[str, Any]:
        """The fields of a request to the endpoint."""
        body: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _NOT_IN_BODY or value is None and field.default in ((), None) or _is_default(value, field.default):
                continue
            body[field.name] = list(value) if isinstance(value, (set, frozenset, range)) else value
        body["max_tokens"] = -1 if self.max_tokens is None else self.max_tokens
        if self.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in _mapping("logit_bias", self.logit_bias).items()}
        if self.structured_outputs is not None:
            body["structured_outputs"] = _form(self.structured_outputs)
        if isinstance(self.top_p, numbers.Number) and not self.top_p:  # the server takes 0 as the likeliest token
            raise InvalidRequest("top_p: must be above 0 and at most 1; temperature 0 takes the likeliest token")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidRequest("output_kind: must be a RequestOutputKind")
        if self.prompt_logprobs is not None and not 0 <= _whole("prompt_logprobs", self.prompt_logprobs) <= 20:
            raise InvalidRequest("prompt_logprobs: must be between 0 and 20; LLM.logits() gives the whole vocabulary")
        if self.logprobs is not None:
            count = 0 if self._all_logprobs() else _whole("logprobs", self.logprobs)
            body.update({"logprobs": True, "top_logprobs": count} if chat else {"logprobs": count})
        if not chat:
            body["skip_special_tokens"] = self.skip_special_tokens
        return body

    def clone(self) -> SamplingParams:
        """A copy that shares nothing with this."""
        return copy.deepcopy(self)

    def _all_logprobs(self) -> bool:
        return self.logprobs is not None and _whole("logprobs", self.logprobs) == -1

    def _stop_tokens(self) -> Sequence[int]:
        return () if self.stop_token_ids is None else self.stop_token_ids


SamplingParams.__init__ = by_name(PARAMS_NAMES, "SamplingParams")(SamplingParams.__init__)  # type: ignore[method-assign]


def _is_default(value: Any, default: Any) -> bool:
    plain = isinstance(value, (str, bytes, bool, int, float, tuple, list, dict, enum.Enum))
    return plain and (value == default or default == () and isinstance(value, list) and not value)


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidRequest(f"{name}: {_shown(value)} is not a whole number") from None


def _form(value: Any) -> dict[str, Any]:
    """vLLM's own StructuredOutputsParams has the same members as attributes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if not f.name.startswith("_")}
    form = {name: one for name, one in _mapping("structured_outputs", value).items() if one is not None and one is not False}
    if not form:
        raise InvalidRequest("structured_outputs: names no form; give json, json_object, regex, choice or grammar")
    return form


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name}: must be a mapping")
    return value


_NOT_IN_BODY = {"max_tokens", "skip_special_tokens", "logprobs", "prompt_logprobs", "logit_bias", "structured_outputs", "output_kind", "n"}
