"""How tokens are chosen, with vLLM's names."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Mapping, Sequence

from .errors import InvalidRequest


class RequestOutputKind(enum.Enum):
    """What a stream's outputs hold: all tokens so far, only the new ones, or one output at the end."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of one request. Values out of range are refused with InvalidRequest when the request is made.

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
    logprobs: None; n: of each token, and of the n likeliest, at most 20. prompt_logprobs: likewise of the prompt.
    logit_bias: added to tokens' logits, -100 to 100. allowed_token_ids: no others. bad_words: never these.
    structured_outputs: {"json": schema} or {"json_object": True}: the answer parses. In a chat, response_format is the
        same in OpenAI's words.
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
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def _body(self, chat: bool) -> dict[str, Any]:
        """The fields of a request to the endpoint."""
        body: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _NOT_IN_BODY or value is None and field.default in ((), None) or value == field.default:
                continue
            body[field.name] = value if isinstance(value, (str, bool, int, float, dict)) else _list(field.name, value)
        body["max_tokens"] = -1 if self.max_tokens is None else self.max_tokens
        if self.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in _mapping("logit_bias", self.logit_bias).items()}
        if self.structured_outputs is not None:
            body["structured_outputs"] = dict(_mapping("structured_outputs", self.structured_outputs))
        if not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidRequest("output_kind: must be a RequestOutputKind")
        if self.prompt_logprobs is not None and not (isinstance(self.prompt_logprobs, int) and 0 <= self.prompt_logprobs <= 20):
            raise InvalidRequest("prompt_logprobs: must be between 0 and 20")
        if self.logprobs is not None:
            body.update({"logprobs": True, "top_logprobs": self.logprobs} if chat else {"logprobs": self.logprobs})
        if not chat:
            body["skip_special_tokens"] = self.skip_special_tokens
        return body

    def _stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


def _list(name: str, value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise InvalidRequest(f"{name}: {value!r:.60} is not a value that it can have") from None


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name}: must be a mapping")
    return value


_NOT_IN_BODY = {"max_tokens", "skip_special_tokens", "logprobs", "prompt_logprobs", "logit_bias", "structured_outputs", "output_kind"}
