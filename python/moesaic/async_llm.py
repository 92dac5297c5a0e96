"""The engine for asyncio: vLLM's AsyncLLM. No threads of Python's wait for tokens: the event loop watches a descriptor."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator

from . import _engine
from ._requests import Messages, Prompt, _Base, _chat, _completion, _Request
from ._vllm import CHAT_NAMES, GENERATE_NAMES, by_name
from .errors import InvalidRequest
from .outputs import RequestOutput
from .sampling import SamplingParams


class _Channel:
    """The results of the requests of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stream = _engine.Stream()
        self.queues: dict[int, asyncio.Queue[_engine.Delta]] = {}
        self.next = 0
        loop.add_reader(self.stream.fileno(), self.dispatch)

    def dispatch(self) -> None:
        for delta in self.stream.take():
            if delta.index in self.queues:
                self.queues[delta.index].put_nowait(delta)

    def open(self, count: int) -> tuple[int, asyncio.Queue[_engine.Delta]]:
        first, queue = self.next, asyncio.Queue[_engine.Delta]()
        self.next += count
        self.queues.update((index, queue) for index in range(first, self.next))
        return first, queue

    def drop(self, first: int, count: int) -> None:
        for index in range(first, first + count):
            self.stream.cancel(index)
            del self.queues[index]


class AsyncLLM(_Base):
    """A model and its engine. Its methods are called from an event loop; several loops may share it. Cancelling a task,
    or leaving its loop over the outputs, ends its request.

        llm = AsyncLLM("tiny")
        async for output in llm.chat([{"role": "user", "content": "Hi"}]):
            ...
    """

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    @by_name(GENERATE_NAMES, "generate")
    def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None,
                 request_id: str | None = None) -> AsyncIterator[RequestOutput]:
        """Continues text or token ids, and yields as tokens come, as SamplingParams.output_kind has it. request_id: for
        abort(); none that another request in flight has."""
        return self._stream(_completion(prompt, sampling_params), request_id)

    @by_name(CHAT_NAMES, "chat")
    def chat(self, messages: Messages, sampling_params: SamplingParams | None = None, request_id: str | None = None,
             **fields: Any) -> AsyncIterator[RequestOutput]:
        """The same for a chat; fields: as LLM.chat has them."""
        return self._stream(_chat(messages, sampling_params, fields), request_id)

    def abort(self, request_id: str) -> None:
        """The request's outputs end with finish_reason abort. Nothing where it is not in flight."""
        for index, channel in self._in_flight.get(request_id, ()):
            channel.stream.cancel(index)

    def __init__(self, *model: str, **options: Any) -> None:
        super().__init__(*model, **options)
        self._channels: dict[asyncio.AbstractEventLoop, _Channel] = {}
        self._in_flight: dict[str, list[tuple[int, _Channel]]] = {}

    __init__.__doc__ = _Base.__init__.__doc__

    def _channel(self) -> _Channel:
        loop = asyncio.get_running_loop()
        for other in [one for one in self._channels if one.is_closed()]:
            del self._channels[other]
        if loop not in self._channels:
            self._channels[loop] = _Channel(loop)
        return self._channels[loop]

    async def _stream(self, request: _Request, request_id: str | None) -> AsyncIterator[RequestOutput]:
        channel, count = self._channel(), request.params.n
        request_id = request_id or f"async-{next(self._ids)}"
        if request_id in self._in_flight:
            raise InvalidRequest(f"another request in flight has the id {request_id!r}")
        first, queue = channel.open(count)
        self._in_flight[request_id] = [(first + i, channel) for i in range(count)]
        try:
            # Making tokens of a long prompt takes its time, and so does compiling a schema.
            collector = await asyncio.to_thread(self._submit, request, channel.stream, first, request_id)
            while collector.open > 0:
                delta = await queue.get()
                collector.add(delta.index - first, delta)
                while not queue.empty():
                    delta = queue.get_nowait()
                    collector.add(delta.index - first, delta)
                if collector.open == 0 or request.params.output_kind.value != "final_only":
                    yield collector.take()
        finally:
            del self._in_flight[request_id]
            channel.drop(first, count)
