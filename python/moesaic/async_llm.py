"""The engine for asyncio: vLLM's AsyncLLM. No threads of Python's wait for tokens: the event loop watches a descriptor."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Iterable, NoReturn

from . import _engine
from ._requests import Messages, Prompt, _Base, _chat, _completion, _Request
from ._values import _is_series, _text
from ._vllm import CHAT_NAMES, GENERATE_NAMES, by_name
from .errors import InvalidRequest
from .outputs import RequestOutput, _Collector
from .sampling import SamplingParams


class _Channel:
    """The results of the requests of one event loop, which watches it for as long as this lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stream = _engine.Stream()
        self.queues: dict[int, asyncio.Queue[_engine.Delta]] = {}
        self.next = 0
        self.threads = ThreadPoolExecutor(thread_name_prefix="moesaic")  # the loop's own may all be waiting for answers
        loop.add_reader(self.stream.fileno(), _dispatch, weakref.ref(self))
        weakref.finalize(self, _unwatch, loop, self.stream).atexit = False


def _dispatch(channel: weakref.ref[_Channel]) -> None:
    if (alive := channel()) is None:
        return
    for delta in alive.stream.take():
        if delta.index in alive.queues:
            alive.queues[delta.index].put_nowait(delta)


def _unwatch(loop: asyncio.AbstractEventLoop, stream: _engine.Stream) -> None:
    """From any thread. The loop has the stream until then: a descriptor that is watched must not be closed."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: loop.remove_reader(stream.fileno()))


class _Flight:
    """A request's generations, from before the engine has them: whatever cancels them then does so once it has."""

    def __init__(self, channel: _Channel, count: int) -> None:
        self.channel, self.first, self.count = channel, channel.next, count
        self.queue = asyncio.Queue[_engine.Delta]()
        self.cancelled = False
        channel.next += count
        channel.queues.update((index, self.queue) for index in self._indices())

    def _indices(self) -> range:
        return range(self.first, self.first + self.count)

    def submit(self, llm: AsyncLLM, request: _Request, request_id: str) -> _Collector:
        collector = llm._submit(request, self.channel.stream, self.first, request_id)
        if self.cancelled:
            self.cancel()
        return collector

    def cancel(self) -> None:
        self.cancelled = True
        for index in self._indices():
            self.channel.stream.cancel(index)

    def drop(self) -> None:
        self.cancel()
        for index in self._indices():
            del self.channel.queues[index]


class _Done(Coroutine[Any, Any, None]):
    """For calls that vLLM awaits, or makes tasks of: nothing is left to be done, and nobody need await it."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()

    def send(self, value: Any) -> NoReturn:
        raise StopIteration

    def throw(self, *exception: Any) -> Any:
        return super().throw(*exception)

    def close(self) -> None:
        pass


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

    def abort(self, request_id: str | Iterable[str]) -> Coroutine[Any, Any, None]:
        """The outputs of a request, or of several, end with finish_reason abort. Nothing where one is not in flight. It is done
        at once; like vLLM's it may be awaited."""
        for one in request_id if _is_series(request_id) else [request_id]:
            if (flight := self._in_flight.get(_text(one, "request_id"))) is not None:
                flight.cancel()
        return _Done()

    def close(self) -> None:
        super().close()
        self._channels.clear()

    close.__doc__ = _Base.close.__doc__

    def shutdown(self, timeout: float | None = None) -> None:
        """close() by vLLM's name. timeout: not looked at."""
        self.close()

    def __init__(self, *model: str, **options: Any) -> None:
        super().__init__(*model, **options)
        self._channels: dict[asyncio.AbstractEventLoop, _Channel] = {}
        self._in_flight: dict[str, _Flight] = {}

    __init__.__doc__ = _Base.__init__.__doc__

    def _channel(self) -> _Channel:
        loop = asyncio.get_running_loop()
        for other in [one for one in list(self._channels) if one.is_closed()]:
            self._channels.pop(other, None)  # another loop's thread may have done so
        channel = self._channels.get(loop) or _Channel(loop)
        self._channels[loop] = channel
        return channel

    async def _stream(self, request: _Request, request_id: str | None) -> AsyncIterator[RequestOutput]:
        request_id = _text("" if request_id is None else request_id, "request_id") or f"async-{next(self._ids)}"
        if request_id in self._in_flight:
            raise InvalidRequest(f"another request in flight has the id {request_id!r}")
        flight = self._in_flight[request_id] = _Flight(self._channel(), request.params.n)
        queue = flight.queue
        self._draw_seed(request)  # before the threads, which may run in any order
        try:
            # Making tokens of a long prompt takes its time, and so does compiling a schema.
            loop = asyncio.get_running_loop()
            collector = await loop.run_in_executor(flight.channel.threads, flight.submit, self, request, request_id)
            while collector.open > 0:
                delta = await queue.get()
                collector.add(delta.index - flight.first, delta)
                while not queue.empty():
                    delta = queue.get_nowait()
                    collector.add(delta.index - flight.first, delta)
                if collector.open == 0 or request.params.output_kind.value != "final_only":
                    yield collector.take()
        finally:
            del self._in_flight[request_id]
            flight.drop()
