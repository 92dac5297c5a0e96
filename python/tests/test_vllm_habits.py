"""What programs for vLLM do besides: read its attributes, copy and pickle, pass on what they have, run in event loops of their own."""

import asyncio
import copy
import pickle
import threading

import pytest

from moesaic import AsyncLLM, InvalidRequest, LLM, SamplingParams
from moesaic import _vllm

GREEDY = SamplingParams(temperature=0, max_tokens=8)
CHAT = [{"role": "user", "content": "What is 17 + 25?"}]
# These are the public attributes of vLLM 0.33's classes.
REQUEST_OUTPUT = """request_id prompt prompt_token_ids prompt_logprobs outputs finished metrics lora_request encoder_prompt
    encoder_prompt_token_ids num_cached_tokens multi_modal_placeholders kv_transfer_params"""
COMPLETION_OUTPUT = "index text token_ids cumulative_logprob logprobs routed_experts finish_reason stop_reason lora_request"


def test_outputs_have_all_of_vllms_members(llm):
    [output] = llm.generate(["Once"], GREEDY)
    assert [name for name in REQUEST_OUTPUT.split() if not hasattr(output, name)] == []
    assert [name for name in COMPLETION_OUTPUT.split() if not hasattr(output.outputs[0], name)] == []
    assert output.lora_request is None and len(output.multi_modal_placeholders) == 0
    assert pickle.loads(pickle.dumps(output)) == output == copy.deepcopy(output)


@pytest.mark.parametrize("name", sorted(_vllm.ATTRIBUTES))
def test_what_an_engine_lacks_names_what_is_there(llm, name):
    with pytest.raises(AttributeError, match=f"^LLM has no '{name}': .*[a-z]{{3}}") as raised:
        getattr(llm, name)
    assert "\n" not in str(raised.value) and not hasattr(llm, name)
    with pytest.raises(AttributeError, match="^LLM has no 'else'$"):
        getattr(llm, "else")


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_is_not_copied(llm, make):
    with pytest.raises(InvalidRequest, match="cannot be copied or sent to another process"):
        make(llm)
    assert llm.generate("Once", GREEDY)[0].outputs[0].text


def test_params_are_copied_and_have_no_other_names():
    params = SamplingParams(temperature=0, stop=["x"], logit_bias={5: 1.0})
    assert params == copy.copy(params) == copy.deepcopy(params) == pickle.loads(pickle.dumps(params))
    with pytest.raises(AttributeError, match="temprature"):
        params.temprature = 1
    params.temperature = 1
    assert params.temperature == 1


class Column:
    """A table's column, as datasets and pandas have it: iterable, with a length, and no Sequence."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.values)


@pytest.mark.parametrize("form", [list, tuple, iter, Column, lambda values: (value for value in values), lambda values: dict.fromkeys(map(str, values)).keys()])
def test_prompts_of_every_kind(llm, form):
    texts = ["Once", "The sun"]
    expected = [o.outputs[0].token_ids for o in llm.generate(texts, GREEDY)]
    assert [o.outputs[0].token_ids for o in llm.generate(form(texts), GREEDY)] == expected
    assert llm.generate(form([]), GREEDY) == []


@pytest.mark.parametrize("form", [list, tuple, iter, Column])
def test_chats_of_every_kind(llm, form):
    expected = llm.chat(CHAT, GREEDY)[0].outputs[0].token_ids
    assert [o.outputs[0].token_ids for o in llm.chat(form(CHAT), GREEDY)] == [expected]
    assert [o.outputs[0].token_ids for o in llm.chat(form([CHAT, CHAT]), GREEDY, False)] == [expected] * 2
    for wrong in (None, 5, "text", b"bytes", [5]):
        with pytest.raises(InvalidRequest):
            llm.chat(wrong, GREEDY)


def test_ids_of_an_iterator_are_one_prompt(llm):
    ids = llm.tokenize("Once upon a time")
    assert [o.prompt_token_ids for o in llm.generate(iter(ids), GREEDY)] == [ids]


def test_the_tokenizer_takes_what_others_take(llm):
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Once", add_special_tokens=False)
    assert tokenizer("Once", add_special_tokens=True, padding=False, truncation=None).input_ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == "Once"
    calls = {"return_tensors": lambda v: tokenizer("Once", return_tensors=v), "max_length": lambda v: tokenizer.encode("Once", max_length=v),
             "return_dict": lambda v: tokenizer.apply_chat_template(CHAT, return_dict=v),
             "continue_final_message": lambda v: tokenizer.apply_chat_template(CHAT, continue_final_message=v)}
    for name, call in calls.items():
        assert call(None) and call(False)
        with pytest.raises(InvalidRequest, match=f"^{name}: "):
            call("pt")
    for wrong in (lambda: tokenizer.encode("a", retrun=1), lambda: tokenizer.encode(), lambda: tokenizer(), lambda: tokenizer.decode(None)):
        with pytest.raises(InvalidRequest):
            wrong()


def test_threads_share_an_engine(llm):
    texts = [f"Number {i}" for i in range(12)]
    alone, found = [llm.generate(text, GREEDY)[0].outputs[0].token_ids for text in texts], [None] * len(texts)

    def work(i):
        found[i] = llm.generate(texts[i], GREEDY, use_tqdm=False)[0].outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == alone


def loops():
    yield asyncio.new_event_loop
    try:
        import uvloop
        yield uvloop.new_event_loop
    except ImportError:
        pass


@pytest.mark.parametrize("new_loop", list(loops()))
def test_event_loops(new_loop):
    """Requests of one loop beside each other, one that is cancelled, and LLM's waiting calls within a loop."""
    async def last(engine, text):
        return [output async for output in engine.generate(text, GREEDY)][-1].outputs[0].token_ids

    async def work(engine, llm):
        endless = asyncio.create_task(last_of(engine.generate("Once", SamplingParams(max_tokens=None, ignore_eos=True))))
        found = await asyncio.gather(*(last(engine, text) for text in ("Once", "The sun")))
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        return found, [output.outputs[0].token_ids for output in llm.generate(["Once", "The sun"], GREEDY)]

    async def last_of(outputs):
        return [output async for output in outputs][-1]

    with LLM("tiny", device="cpu", threads=1, context=512) as llm:
        engine = AsyncLLM("tiny", device="cpu", threads=1, context=4096)
        loop = new_loop()
        try:
            found, waited = loop.run_until_complete(asyncio.wait_for(work(engine, llm), 60))
        finally:
            engine.close()
            loop.close()
        assert found == waited
