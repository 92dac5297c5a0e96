"""The engine for programs that wait for answers: vLLM's LLM."""

from __future__ import annotations

import bisect
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Union, cast

from . import _engine
from ._progress import Progress
from ._requests import Messages, Prompt, _Base, _chat, _completion, _is_one_prompt, _no_params, _Request
from ._values import _is_series
from ._vllm import CHAT_NAMES, GENERATE_NAMES, by_name
from .errors import InvalidRequest
from .outputs import RequestOutput
from .sampling import SamplingParams

Params = Union[SamplingParams, Sequence[SamplingParams], None]
UseTqdm = Union[bool, Callable[..., Any]]  # a function makes the bar, with tqdm's arguments
_WAIT_SECONDS = 3600.0  # for one look; waiting goes on


def _params_of(params: Params, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence):
        raise _no_params(params)
    if len(params) != count:
        raise InvalidRequest(f"{len(params)} sampling params for {count} prompts")
    return list(params)


def _chats(messages: Any) -> list[Any]:
    """One chat or several; what is neither is a chat, of which its request says what is wrong."""
    if not _is_series(messages):
        return [messages]
    given = list(messages)
    return [given] if not given or isinstance(given[0], Mapping) else given


def _bar(use_tqdm: UseTqdm, total: int) -> Any:
    if not use_tqdm:
        return None
    return (use_tqdm if callable(use_tqdm) else Progress)(total=total, desc="Processed prompts", dynamic_ncols=True)


class LLM(_Base):
    """A model and its engine. Thread-safe: requests of several threads are decoded together. Ctrl-C ends a call with
    KeyboardInterrupt and its requests; the engine stays usable. Use it as a context manager, or call close().

        from moesaic import LLM
        with LLM("tiny") as llm:
            print(llm.chat([{"role": "user", "content": "What is 17 + 25?"}])[0].outputs[0].text)
    """

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @by_name(GENERATE_NAMES, "generate")
    def generate(self, prompts: Prompt | Iterable[Any], sampling_params: Params = None, *,
                 use_tqdm: UseTqdm = True) -> list[RequestOutput]:
        """Continues text or token ids; one output for each prompt, in their order. sampling_params: one for all, or one
        for each. use_tqdm: standard error shows how many are done; a function, such as tqdm.tqdm, makes another bar."""
        given = list(prompts) if isinstance(prompts, Iterator) else prompts
        several = [given] if _is_one_prompt(given) else list(cast(Iterable[Prompt], given))
        params = _params_of(sampling_params, len(several))
        return self._run([_completion(cast(Prompt, p), s) for p, s in zip(several, params)], use_tqdm)

    @by_name(CHAT_NAMES, "chat")
    def chat(self, messages: Messages | Iterable[Messages], sampling_params: Params = None, use_tqdm: UseTqdm = True, *,
             tools: Sequence[Mapping[str, Any]] | None = None, tool_choice: Any = None, response_format: Any = None,
             reasoning_effort: str | None = None, **fields: Any) -> list[RequestOutput]:
        """Answers one chat, or each of several. Messages, tools, tool_choice, response_format and further fields are those
        of OpenAI's chat completions, as the server takes them (docs/user/server.md); unknown fields are refused."""
        several = _chats(messages)
        params = _params_of(sampling_params, len(several))
        fields.update(tools=tools, tool_choice=tool_choice, response_format=response_format, reasoning_effort=reasoning_effort)
        return self._run([_chat(cast(Messages, m), s, fields) for m, s in zip(several, params)], use_tqdm)

    @by_name(GENERATE_NAMES, "stream")
    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Continues one prompt and yields as tokens come, as SamplingParams.output_kind has it. Leaving the loop early,
        or close() on the iterator, ends the request."""
        return self._stream(_completion(prompt, sampling_params))

    @by_name(CHAT_NAMES, "stream_chat")
    def stream_chat(self, messages: Messages, sampling_params: SamplingParams | None = None, **fields: Any) -> Iterator[RequestOutput]:
        """The same for a chat; fields: as chat() has them."""
        return self._stream(_chat(messages, sampling_params, fields))

    def _run(self, requests: list[_Request], use_tqdm: UseTqdm) -> list[RequestOutput]:
        stream = _engine.Stream(only_ends=True)
        collectors, firsts, count = [], [], 0
        bar = _bar(use_tqdm, len(requests))
        try:
            for request in requests:
                self._draw_seed(request)
                collectors.append(self._submit(request, stream, count))
                firsts.append(count)
                count += request.params.n
            while stream.open > 0:
                for delta in stream.take(_WAIT_SECONDS):
                    at = bisect.bisect_right(firsts, delta.index) - 1
                    collectors[at].add(delta.index - firsts[at], delta)
                    if bar is not None and collectors[at].open == 0:
                        bar.update(1)
        finally:
            stream.cancel_all()
            if bar is not None:
                bar.close()
        return [collector.output for collector in collectors]

    def _stream(self, request: _Request) -> Iterator[RequestOutput]:
        final_only = request.params.output_kind.value == "final_only"
        stream = _engine.Stream(only_ends=final_only)
        try:
            self._draw_seed(request)
            collector = self._submit(request, stream, 0)
            while collector.open > 0:
                for delta in stream.take(_WAIT_SECONDS):
                    collector.add(delta.index, delta)
                if collector.open == 0 or not final_only:
                    yield collector.take()
        finally:
            stream.cancel_all()
