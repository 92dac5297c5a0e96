"""AsyncLLM: many requests in one event loop, cancellation, several loops."""

import asyncio
import os
import random
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import moesaic
from moesaic import AsyncLLM, RequestOutputKind, SamplingParams


@pytest.fixture(scope="module")
def engine():
    engine = AsyncLLM("tiny", device="cpu", threads=1, context=4096, max_batch=8)
    yield engine
    engine.close()


async def last(outputs):
    final = None
    async for output in outputs:
        final = output
    return final


ENDLESS = SamplingParams(ignore_eos=True, max_tokens=4000)  # takes seconds


async def until_idle(engine):
    deadline = time.monotonic() + 20
    while engine.stats["running"] + engine.stats["waiting"] > 0:
        assert time.monotonic() < deadline, engine.stats
        await asyncio.sleep(0.005)


def test_requests_run_together_and_answer_as_alone(engine, llm):
    prompts = ["Once", "The", "A", "He", "She", "It", "They", "One day", "In", "Two", "Blue", "My"]
    params = SamplingParams(temperature=0, max_tokens=30)

    async def all_of_them():
        return await asyncio.gather(*(last(engine.generate(p, params)) for p in prompts))
    together = asyncio.run(all_of_them())
    assert [o.prompt for o in together] == prompts and all(o.finished for o in together)
    alone = llm.generate(prompts, params)
    assert [o.outputs[0].text for o in together] == [o.outputs[0].text for o in alone]


def test_a_chat_streams(engine, question):
    async def parts():
        params = SamplingParams(temperature=0, max_tokens=None, output_kind=RequestOutputKind.DELTA, n=2)
        return [output async for output in engine.chat(question, params)]
    outputs = asyncio.run(parts())
    for index in (0, 1):
        assert "".join(o.outputs[index].text for o in outputs) == "17 + 25 = 42"
    assert outputs[-1].finished and len(outputs) > 1  # a loop that comes late gets several tokens at once


def test_a_refused_request_takes_nobodys_answers(engine):
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    async def run():
        before = engine.stats["generated_tokens"]
        first = asyncio.create_task(last(engine.generate("Once", params)))
        while engine.stats["generated_tokens"] == before:  # it may have ended by then
            await asyncio.sleep(0)
        for n in (-1, 0, 10**9):
            with pytest.raises(moesaic.InvalidRequest, match="n: "):
                await last(engine.generate("The", SamplingParams(n=n)))
        return await asyncio.wait_for(asyncio.gather(first, last(engine.generate("A", params))), 60)
    outputs = asyncio.run(run())
    assert [o.prompt for o in outputs] == ["Once", "A"] and all(len(o.outputs[0].token_ids) == 40 for o in outputs)


def test_leaving_cancelling_and_aborting(engine):
    async def run():
        before = engine.stats["generated_tokens"]
        async for _ in (outputs := engine.generate("Once", ENDLESS)):
            break
        await outputs.aclose()
        await until_idle(engine)
        assert engine.stats["generated_tokens"] - before < 4000
        before = engine.stats["generated_tokens"]
        task = asyncio.create_task(last(engine.generate("Once", ENDLESS)))
        while engine.stats["running"] == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_idle(engine)
        assert engine.stats["generated_tokens"] - before < 4000
        final = None
        async for final in engine.generate("Once", ENDLESS, request_id="mine"):
            engine.abort("mine")
        engine.abort("nobody's")
        return final
    final = asyncio.run(run())
    assert final.finished and final.outputs[0].finish_reason == "abort" and final.request_id == "mine"


def test_aborting_as_vllms_servers_do(engine):
    unset = {name: None for name in ("trace_headers", "data_parallel_rank", "prompt_text", "reasoning_ended", "reasoning_parser_kwargs")}

    async def run():
        tasks = [asyncio.create_task(last(engine.generate("Once", ENDLESS, name, priority=0, **unset))) for name in ("a", "b", "c")]
        while engine.stats["running"] < 3:
            await asyncio.sleep(0)
        assert await engine.abort("a") is None
        assert await asyncio.create_task(engine.abort(["b", "nobody's"])) is None
        assert await asyncio.gather(engine.abort({"c"}), return_exceptions=True) == [None]
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert [output.outputs[0].finish_reason for output in asyncio.run(run())] == ["abort"] * 3


def test_shutdown_closes():
    engine = AsyncLLM("tiny", device="cpu", threads=1, context=256, max_batch=1)
    engine.shutdown(timeout=1)
    with pytest.raises(moesaic.MoesaicError, match="has been closed"):
        engine.tokenize("a")


def test_ended_before_the_engine_has_it(engine, monkeypatch):
    begun, go_on, submit = threading.Event(), threading.Event(), engine._submit

    def late(*request):
        begun.set()
        go_on.wait(20)
        return submit(*request)
    monkeypatch.setattr(engine, "_submit", late)

    async def run():
        task = asyncio.create_task(last(engine.generate("Once", ENDLESS, request_id="left")))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        begun.clear()
        task = asyncio.create_task(last(engine.generate("Once", ENDLESS, request_id="mine")))
        await asyncio.to_thread(begun.wait, 20)
        engine.abort("mine")
        go_on.set()
        return await task
    before = engine.stats["generated_tokens"]
    final = asyncio.run(run())
    asyncio.run(until_idle(engine))
    assert final.finished and final.outputs[0].finish_reason == "abort"
    assert engine.stats["generated_tokens"] - before < 4000


def test_seeds_follow_the_order_of_requests(monkeypatch):
    with_seed = AsyncLLM("tiny", device="cpu", threads=1, context=256, max_batch=2, seed=5)
    seeds, second, submit = {}, threading.Event(), with_seed._submit

    def late(request, *more):
        if request.prompt == "first":
            second.wait(20)
        made = submit(request, *more)
        seeds[request.prompt] = request.body["seed"]
        second.set()
        return made
    monkeypatch.setattr(with_seed, "_submit", late)

    async def run():
        await asyncio.gather(*(last(with_seed.generate(prompt, SamplingParams(max_tokens=1))) for prompt in ("first", "second")))
    asyncio.run(run())
    with_seed.close()
    numbers = random.Random(5)
    assert seeds == {prompt: numbers.getrandbits(31) for prompt in ("first", "second")}


def test_threads_of_the_loop_may_wait_for_answers(engine):
    async def run():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(last(engine.generate("Once")), loop).result(20))
    assert asyncio.run(run()).finished


def test_a_loop_keeps_nothing_of_engines_that_were_closed():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    async def run():
        counts = []
        for _ in range(3):
            async with AsyncLLM("tiny", device="cpu", threads=1, context=256, max_batch=1) as one:
                await last(one.generate("Once", SamplingParams(max_tokens=2)))
            del one
            await asyncio.sleep(0)
            counts.append(descriptors())
        return counts
    counts = asyncio.run(run())
    assert counts[0] == counts[-1]


def test_without_descriptors_and_with_odd_ids(engine):
    async def run():
        for wrong in (5, None, [5], [["a"]]):
            with pytest.raises(moesaic.InvalidRequest, match="request_id: "):
                engine.abort(wrong)
        with pytest.raises(moesaic.InvalidRequest, match="request_id: "):
            await last(engine.generate("Hi", request_id=["a"]))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(moesaic.MoesaicError, match="Too many open files"):
                await last(engine.generate("Hi"))
            with pytest.raises(moesaic.MoesaicError, match="Too many open files") as raised:
                AsyncLLM("tiny", device="cpu")
            assert not isinstance(raised.value, FileNotFoundError)  # by which programs know that they have to fetch it
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return await last(engine.generate("Hi"))
    assert asyncio.run(run()).finished


def test_errors(engine):
    async def run():
        with pytest.raises(moesaic.InvalidRequest, match="temperature"):
            await last(engine.generate("Hi", SamplingParams(temperature=9)))
        async with AsyncLLM("tiny", device="cpu", threads=1, context=4096) as other:
            outputs = other.generate("Once", SamplingParams(ignore_eos=True, max_tokens=4000))
            await anext(outputs)
        with pytest.raises(moesaic.MoesaicError, match="has been closed"):
            await last(outputs)
    asyncio.run(run())
