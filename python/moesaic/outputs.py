"""Results: vLLM's RequestOutput and CompletionOutput, with a chat's parts beside the text."""

from __future__ import annotations

import dataclasses
import time
import types
import uuid
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Mapping

from .errors import MoesaicError
from .sampling import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from . import _engine


@dataclasses.dataclass
class Logprob:
    """logprob: natural logarithm of the probability, before temperature and filters. rank: 1 is the likeliest; None:
    not among those asked for. decoded_token: its text, bytes that are no UTF-8 replaced."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclasses.dataclass
class ToolCall:
    """A function that a chat's answer calls. arguments: JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclasses.dataclass
class CompletionOutput:
    """One answer. token_ids has the token that ended the text; text has not. finish_reason: stop, length, tool_calls,
    abort, or None while it is made. stop_reason: the stop string or the token of stop_token_ids that ended it, else
    None. logprobs: one dict for each token, by token id, of the token itself and the likeliest.

    Of a chat, text is the final answer, reasoning what was thought before it."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)
    # vLLM's, for deployments of other kinds.
    lora_request: ClassVar[None] = None
    routed_experts: ClassVar[None] = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def message(self) -> dict[str, Any]:
        """The answer as an OpenAI message, to be appended to a chat's messages for the next turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                                     for c in self.tool_calls]
        return message


@dataclasses.dataclass
class RequestStateStats:
    """When things happened to a request; of several answers the first that began, and the last that ended.

    arrival_time: when it was made, in seconds of time.time(). The others are of time.monotonic(), 0.0 until they are
    known: queued_ts: the engine had it; scheduled_ts: its prompt's work began; first_token_ts and last_token_ts: its
    tokens came. first_token_latency: seconds from its making to its first token. num_generation_tokens: so far."""

    num_generation_tokens: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0

    @staticmethod
    def _now() -> RequestStateStats:
        return RequestStateStats(arrival_time=time.time(), queued_ts=time.monotonic())

    def _add(self, delta: _engine.Delta) -> None:
        self.num_generation_tokens += len(delta.tokens)
        self.scheduled_ts = _earlier(self.scheduled_ts, delta.begun)
        self.first_token_ts = _earlier(self.first_token_ts, delta.first_token)
        self.last_token_ts = max(self.last_token_ts, delta.latest_token)
        if self.first_token_ts:
            self.first_token_latency = self.first_token_ts - self.queued_ts


def _earlier(one: float, other: float) -> float:
    return min(one or other, other or one)


@dataclasses.dataclass
class RequestOutput:
    """The answers to one prompt. prompt: None for a chat and for token ids. prompt_logprobs: one entry for each token
    of the prompt, None for the first. num_cached_tokens: of the prompt, those that had been computed before. metrics:
    when things happened."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None
    metrics: RequestStateStats | None = None
    # vLLM's, for models and deployments of other kinds.
    lora_request: ClassVar[None] = None
    encoder_prompt: ClassVar[None] = None
    encoder_prompt_token_ids: ClassVar[None] = None
    multi_modal_placeholders: ClassVar[Mapping[str, Any]] = types.MappingProxyType({})
    kv_transfer_params: ClassVar[None] = None


def _new_output(index: int, params: SamplingParams) -> CompletionOutput:
    wanted = params.logprobs is not None
    return CompletionOutput(index, logprobs=[] if wanted else None, cumulative_logprob=0.0 if wanted else None)


@dataclasses.dataclass
class _Mark:
    """How much of an answer the caller has."""

    text: int = 0
    reasoning: int = 0
    tokens: int = 0
    calls: int = 0

    @staticmethod
    def of(answer: CompletionOutput) -> _Mark:
        return _Mark(len(answer.text), len(answer.reasoning), len(answer.token_ids), len(answer.tool_calls))


def _since(answer: CompletionOutput, mark: _Mark) -> CompletionOutput:
    return dataclasses.replace(answer, text=answer.text[mark.text:], reasoning=answer.reasoning[mark.reasoning:],
                               token_ids=answer.token_ids[mark.tokens:], tool_calls=answer.tool_calls[mark.calls:],
                               logprobs=None if answer.logprobs is None else answer.logprobs[mark.tokens:])


def _apart(text: str, piece: _engine.Piece) -> str:
    """The text between a text and the next message's."""
    return "\n\n" if text and piece.begins and piece.text else ""


class _Collector:
    """Grows the answers to one prompt from the engine's deltas."""

    def __init__(self, request_id: str, prompt: str | None, params: SamplingParams,
                 detokenize: Callable[[list[int]], bytes], made: RequestStateStats) -> None:
        self.metrics = made
        self.params = params
        self.detokenize = detokenize
        self.output = RequestOutput(request_id, prompt, [], [_new_output(i, params) for i in range(params.n)], metrics=made)
        if params.prompt_logprobs is not None:
            self.output.prompt_logprobs = []
        self.names: dict[int, str] = {}  # token names
        self.marks = [_Mark() for _ in range(params.n)]
        self.stops: list[int | None] = [None] * params.n  # the token that ended each answer, which comes before its end
        self.open = params.n

    def add(self, choice: int, delta: _engine.Delta) -> None:
        """Raises what ended the request before its time."""
        answer = self.output.outputs[choice]
        self.metrics._add(delta)
        self._add_prompt(choice, delta)
        for token in delta.tokens:
            answer.token_ids.append(token.token)
            if token.is_stop:
                self.stops[choice] = token.token
            if answer.logprobs is not None:
                answer.logprobs.append(self._logprobs(token))
                answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + token.logprob
        for piece in delta.pieces:
            self._add_piece(answer, piece)
        if delta.end is not None:
            self._end(choice, delta.end)

    def take(self) -> RequestOutput:
        """A copy for the caller, as RequestOutputKind has it."""
        if self.params.output_kind is not RequestOutputKind.DELTA:
            return self._copy([_Mark() for _ in self.marks])
        marks, self.marks = self.marks, [_Mark.of(answer) for answer in self.output.outputs]
        return self._copy(marks)

    def _copy(self, marks: list[_Mark]) -> RequestOutput:
        return dataclasses.replace(self.output, metrics=dataclasses.replace(self.metrics), outputs=[_since(a, m) for a, m in zip(self.output.outputs, marks)])

    def _add_prompt(self, choice: int, delta: _engine.Delta) -> None:
        logprobs = self.output.prompt_logprobs
        if logprobs is None or choice != 0:
            return
        for token in delta.prompt_tokens:
            logprobs.append(self._logprobs(token) if logprobs else None)

    def _add_piece(self, answer: CompletionOutput, piece: _engine.Piece) -> None:
        if piece.recipient.startswith("functions."):
            arguments = piece.text if piece.text.strip() else "{}"
            answer.tool_calls.append(ToolCall(f"call_{uuid.uuid4().hex[:24]}", piece.recipient[len("functions."):], arguments))
        elif piece.channel == "analysis":
            answer.reasoning += _apart(answer.reasoning, piece) + piece.text
        else:
            answer.text += _apart(answer.text, piece) + piece.text

    def _end(self, choice: int, end: _engine.Outcome) -> None:
        answer = self.output.outputs[choice]
        if end.finish == "error":
            raise MoesaicError(end.error)
        answer.finish_reason = "tool_calls" if end.finish == "stop" and answer.tool_calls else end.finish
        if end.finish == "stop":
            answer.stop_reason = end.stop_string or self._stop_token(choice)
        self.output.num_cached_tokens = end.cached_tokens
        self.open -= 1
        self.output.finished = self.open == 0

    def _stop_token(self, choice: int) -> int | None:
        """The token of stop_token_ids that ended it."""
        token = self.stops[choice]
        return token if token is not None and token in self.params._stop_tokens() else None

    def _logprobs(self, token: _engine.Token) -> dict[int, Logprob]:
        top = {one: Logprob(logprob, rank + 1, self._name(one)) for rank, (one, logprob) in enumerate(token.top)}
        top.setdefault(token.token, Logprob(token.logprob, None, self._name(token.token)))
        return top

    def _name(self, token: int) -> str:
        if token not in self.names:
            self.names[token] = self.detokenize([token]).decode("utf-8", "replace")
        return self.names[token]
