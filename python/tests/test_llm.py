"""LLM: answers, what is in them, and how calls end. The expected answers are those of models/tiny."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import moesaic
from moesaic import LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams, _engine

GREEDY = SamplingParams(temperature=0, max_tokens=None)


def test_chat_answers_with_reasoning_and_counts(llm, question):
    [output] = llm.chat(question, GREEDY)
    [answer] = output.outputs
    assert answer.text == "17 + 25 = 42"
    assert answer.finish_reason == "stop" and answer.stop_reason is None and output.finished
    assert "42" in answer.reasoning and answer.reasoning not in answer.text
    assert llm.detokenize(output.prompt_token_ids).endswith("<|start|>assistant")
    assert "17 + 25 = 42" in llm.detokenize(answer.token_ids)


def test_low_effort_thinks_less(llm, question):
    low, high = (llm.chat(question, GREEDY, reasoning_effort=e)[0].outputs[0] for e in ("low", "high"))
    assert len(low.token_ids) < len(high.token_ids)


def test_thinking_token_budget(llm, question):
    free = llm.chat(question, GREEDY)[0].outputs[0]
    for budget in (0, 3):
        params = SamplingParams(temperature=0, max_tokens=None, thinking_token_budget=budget)
        [answer] = llm.chat(question, params)[0].outputs
        assert len(llm.tokenize(answer.reasoning)) <= budget and free.reasoning.startswith(answer.reasoning)
        assert answer.text
    assert llm.chat(question, SamplingParams(temperature=0, max_tokens=None, thinking_token_budget=-1))[0].outputs[0].text == free.text
    with pytest.raises(moesaic.InvalidRequest, match="thinking_token_budget"):
        llm.chat(question, SamplingParams(thinking_token_budget=-2))


def test_prompts_in_one_call_give_what_each_gives_alone(llm):
    prompts = ["Once upon a time", "The", {"prompt": "Seven"}, llm.tokenize("A long"), {"prompt_token_ids": llm.tokenize("She")}]
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (3, 5, 7, 9, 11)]
    together = llm.generate(prompts, params)
    assert [len(o.outputs[0].token_ids) for o in together] == [3, 5, 7, 9, 11]
    assert [o.prompt for o in together] == ["Once upon a time", "The", "Seven", None, None]
    assert {o.outputs[0].finish_reason for o in together} == {"length"}
    for prompt, param, output in zip(prompts, params, together):
        assert llm.generate(prompt, param)[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_default_is_sixteen_tokens(llm):
    assert len(llm.generate("Once upon a time")[0].outputs[0].token_ids) <= 16


def test_seeds(llm):
    def sample(seed, n=1):
        return llm.generate("Once", SamplingParams(seed=seed, n=n, temperature=1.5, max_tokens=24))[0].outputs
    assert sample(7)[0].token_ids == sample(7)[0].token_ids != sample(8)[0].token_ids
    several = sample(7, n=3)
    assert [a.index for a in several] == [0, 1, 2]
    assert len({tuple(a.token_ids) for a in several}) == 3 and several[0].token_ids == sample(7)[0].token_ids


def test_logits_are_what_log_probabilities_come_from(llm):
    numpy = pytest.importorskip("numpy")
    tokens = llm.tokenize("Once upon a time there was")
    logits = llm.logits(tokens)
    assert logits.shape == (len(tokens), 4096) and logits.dtype == numpy.float32
    # Chunks of other sizes sum in another order.
    assert numpy.allclose(llm.logits(tokens, all=False), logits[-1:], atol=1e-2)
    exact = logits.astype(numpy.float64)
    logprobs = exact - numpy.log(numpy.exp(exact - exact.max(1, keepdims=True)).sum(1, keepdims=True)) - exact.max(1, keepdims=True)
    [output] = llm.generate(tokens, SamplingParams(temperature=0, max_tokens=2, logprobs=3, prompt_logprobs=0))
    answer, prompt = output.outputs[0], output.prompt_logprobs
    assert prompt[0] is None and len(prompt) == len(tokens)
    for i in range(1, len(tokens)):
        assert prompt[i][tokens[i]].logprob == pytest.approx(logprobs[i - 1, tokens[i]], abs=1e-2)
    first = answer.logprobs[0]
    assert sorted(first, key=lambda t: first[t].rank) == list(numpy.argsort(-logprobs[-1])[:3])
    assert answer.token_ids[0] == int(logits[-1].argmax()) and first[answer.token_ids[0]].rank == 1
    for token, value in first.items():
        assert value.logprob == pytest.approx(logprobs[-1, token], abs=1e-2)
        assert value.decoded_token == llm.detokenize([token])
    chosen = [answer.logprobs[i][t].logprob for i, t in enumerate(answer.token_ids)]
    assert answer.cumulative_logprob == pytest.approx(math.fsum(chosen))


def test_stop_strings_and_stop_tokens(llm):
    text = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40))[0].outputs[0]
    stop = text.text[10:14]
    cut = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40, stop=["no such text", stop]))[0].outputs[0]
    assert cut.text == text.text[:text.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    token = text.token_ids[5]
    cut = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40, stop_token_ids=[token]))[0].outputs[0]
    assert cut.token_ids == text.token_ids[:text.token_ids.index(token) + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", token)
    unset = SamplingParams(temperature=0, stop=None, stop_token_ids=None, bad_words=None, max_tokens=None)
    assert llm.chat([{"role": "user", "content": "What is 17 + 25?"}], unset)[0].outputs[0].stop_reason is None


def test_of_two_stop_strings_the_one_that_begins_first_is_named(llm):
    numpy = pytest.importorskip("numpy")
    text = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40))[0].outputs[0].text
    at = next(i for i in range(len(text) - 4) if text.find(text[i + 2:i + 4]) == i + 2)
    stops = numpy.array([text[at + 2:at + 4], text[at:at + 4]])  # both end at the same place
    cut = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40, stop=stops))[0].outputs[0]
    assert (cut.text, cut.stop_reason) == (text[:at], text[at:at + 4])


def test_tool_calls_go_round(llm, weather):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = llm.chat(messages, GREEDY, tools=[weather], tool_choice="required")[0].outputs[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.tool_calls
    assert call.name == "get_weather" and isinstance(json.loads(call.arguments)["city"], str)
    messages += [answer.message(), {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}]
    answer = llm.chat(messages, GREEDY, tools=[weather])[0].outputs[0]
    assert answer.finish_reason == "stop" and answer.text


@pytest.mark.parametrize("seed", range(3))
def test_answers_follow_a_schema(llm, seed):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}}, "required": ["n"],
              "additionalProperties": False}
    hot = SamplingParams(temperature=2, seed=seed, max_tokens=200, structured_outputs={"json": schema})
    value = json.loads(llm.generate("Give a number:", hot)[0].outputs[0].text)
    assert set(value) == {"n"} and 3 <= value["n"] <= 5
    answer = llm.chat([{"role": "user", "content": "A number, please."}], SamplingParams(temperature=0, max_tokens=300),
                      response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})[0].outputs[0]
    assert 3 <= json.loads(answer.text)["n"] <= 5


def test_streams_add_up(llm, question):
    whole = llm.chat(question, GREEDY)[0].outputs[0]
    delta = SamplingParams(temperature=0, max_tokens=None, output_kind=RequestOutputKind.DELTA, logprobs=0)
    parts = [o.outputs[0] for o in llm.stream_chat(question, delta)]
    assert "".join(p.text for p in parts) == whole.text and "".join(p.reasoning for p in parts) == whole.reasoning
    assert [t for p in parts for t in p.token_ids] == whole.token_ids
    assert all(len(p.logprobs) == len(p.token_ids) for p in parts)
    assert [p.finish_reason for p in parts[:-1]] == [None] * (len(parts) - 1) and parts[-1].finish_reason == "stop"
    assert len(parts) > 1
    growing = [o.outputs[0].text for o in llm.stream_chat(question, GREEDY)]
    assert all(b.startswith(a) for a, b in zip(growing, growing[1:])) and growing[-1] == whole.text
    final = SamplingParams(temperature=0, max_tokens=None, output_kind=RequestOutputKind.FINAL_ONLY)
    [last] = llm.stream_chat(question, final)
    assert last.finished and last.outputs[0].token_ids == whole.token_ids


def idle(llm):
    deadline = time.monotonic() + 20
    while llm.stats["running"] + llm.stats["waiting"] > 0:
        assert time.monotonic() < deadline, llm.stats
        time.sleep(0.005)
    return True


ENDLESS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=200)


def test_leaving_a_stream_ends_its_request():
    with LLM("tiny", device="cpu", threads=1, context=4096) as llm:
        for output in llm.stream("Once upon a time", SamplingParams(ignore_eos=True, max_tokens=4000)):
            assert not output.finished
            break
        assert idle(llm) and llm.stats["generated_tokens"] < 4000


def test_threads_share_the_engine_and_python_goes_on(llm):
    """While answers are made another Python thread counts, which it could not if the lock were held."""
    expected = [llm.generate(p, ENDLESS)[0].outputs[0].token_ids for p in ("Once", "The", "He")]
    results = {}
    threads = [threading.Thread(target=lambda p=p: results.update({p: llm.generate(p, ENDLESS)[0].outputs[0].token_ids}))
               for p in ("Once", "The", "He")]
    for thread in threads:
        thread.start()
    count = 0
    while any(thread.is_alive() for thread in threads):
        count += 1
        time.sleep(0)
    assert [results[p] for p in ("Once", "The", "He")] == expected
    assert count > 100


def test_two_engines_in_one_process(llm, question):
    with LLM("tiny", device="cpu", threads=1, context=256, dense="q8_0") as other:
        assert other.info["context"] == 256 != llm.info["context"]
        parts = [other.info[key] for key in ("weights_bytes", "kv_cache_bytes", "workspace_bytes")]
        assert other.info["memory_used"] == sum(parts) > other.info["stored_bytes"] > 11e6
        texts = [engine.chat(question, GREEDY)[0].outputs[0].text for engine in (llm, other)]
    assert texts == ["17 + 25 = 42"] * 2
    with pytest.raises(moesaic.InvalidRequest, match="has been closed"):
        other.generate("Hi")
    assert llm.generate("Hi")[0].finished


def test_closing_ends_what_is_in_flight():
    other = LLM("tiny", device="cpu", threads=1, context=4096)
    stream = other.stream("Once", SamplingParams(ignore_eos=True, max_tokens=4000))
    next(stream)
    other.close()
    with pytest.raises(moesaic.MoesaicError, match="has been closed"):
        list(stream)


@pytest.mark.parametrize("call, error, message", [
    (lambda llm: llm.generate("Hi", SamplingParams(temperature=-1)), moesaic.InvalidRequest, "temperature: "),
    (lambda llm: llm.generate("Hi", SamplingParams(n=0)), ValueError, "n: "),
    (lambda llm: llm.generate("Hi", SamplingParams(n=10**30)), moesaic.InvalidRequest, "n: .* is not from 1 to 4096"),
    (lambda llm: llm.generate(""), moesaic.InvalidRequest, "prompt: is empty"),
    (lambda llm: llm.generate({"text": "Hi"}), moesaic.InvalidRequest, "a prompt has no 'text'"),
    (lambda llm: llm.generate({"prompt": "Hi", "multi_modal_data": {"image": 1}}), moesaic.InvalidRequest, "no 'multi_modal_data'"),
    (lambda llm: llm.generate({}), moesaic.InvalidRequest, "a prompt is text"),
    (lambda llm: llm.generate([1, "a"]), moesaic.InvalidRequest, "no token id"),
    (lambda llm: llm.generate([1.5]), moesaic.InvalidRequest, "a prompt is text"),
    (lambda llm: llm.generate([True]), moesaic.InvalidRequest, "no token id"),
    (lambda llm: llm.generate([4096]), moesaic.InvalidRequest, "ids below 4096"),
    (lambda llm: llm.generate("word " * 4000), moesaic.InvalidRequest, "maximum context length is 512 tokens.*or open the model with a larger context"),
    (lambda llm: llm.generate("Hi", SamplingParams(n=None)), moesaic.InvalidRequest, "n: None"),
    (lambda llm: llm.generate("Hi", SamplingParams(temperature=float("nan"))), moesaic.InvalidRequest, "temperature: .*not JSON"),
    (lambda llm: llm.generate("Hi", SamplingParams(stop_token_ids=5)), moesaic.InvalidRequest, "^stop_token_ids: "),
    (lambda llm: llm.generate("Hi", SamplingParams(logprobs=-2)), moesaic.InvalidRequest, "^logprobs: "),
    (lambda llm: llm.generate("Hi", SamplingParams(logprobs="all")), moesaic.InvalidRequest, "^logprobs: 'all' is not"),
    (lambda llm: llm.generate("Hi", SamplingParams(prompt_logprobs=-1)), moesaic.InvalidRequest, r"LLM.logits\(\)"),
    (lambda llm: llm.generate("Hi", SamplingParams(structured_outputs={})), moesaic.InvalidRequest, "structured_outputs: names no form"),
    (lambda llm: llm.generate("Hi", SamplingParams(structured_outputs={"json": None})), moesaic.InvalidRequest, "names no form"),
    (lambda llm: llm.generate("Hi", SamplingParams(structured_outputs={"jason": {}})), moesaic.InvalidRequest, "jason"),
    (lambda llm: llm.chat([{"role": "user", "content": "Hi"}], n=2), moesaic.InvalidRequest, "n: give it in SamplingParams"),
    (lambda llm: llm.chat([{"role": "user", "content": "Hi"}], logprobs=True), moesaic.InvalidRequest, "logprobs: give it in"),
    (lambda llm: llm.chat([{"role": "user", "content": "Hi"}], stream=True), moesaic.InvalidRequest, "stream: .*stream_chat"),
    (lambda llm: llm.generate("Hi", SamplingParams(logit_bias=[1])), moesaic.InvalidRequest, "logit_bias: must be a mapping"),
    (lambda llm: llm.generate("Hi", SamplingParams(prompt_logprobs=99)), moesaic.InvalidRequest, "prompt_logprobs"),
    (lambda llm: llm.generate("Hi", SamplingParams(output_kind="delta")), moesaic.InvalidRequest, "output_kind"),
    (lambda llm: llm.generate("Hi", type("SamplingParams", (), {})()), moesaic.InvalidRequest, r"\w+\.SamplingParams is not moesaic.SamplingParams"),
    (lambda llm: llm.generate("Hi", {"n": 1}), moesaic.InvalidRequest, "dict is not moesaic.SamplingParams"),
    (lambda llm: llm.generate(None), moesaic.InvalidRequest, "a prompt is text"),
    (lambda llm: llm.generate(["a", None]), moesaic.InvalidRequest, "a prompt is text"),
    (lambda llm: llm.generate(b"Hi"), moesaic.InvalidRequest, "a prompt is text"),
    (lambda llm: llm.chat(None), moesaic.InvalidRequest, "messages: must be a list"),
    (lambda llm: llm.chat({"role": "user"}), moesaic.InvalidRequest, "messages: must be a list"),
    (lambda llm: llm.tokenize(b"Hi"), moesaic.InvalidRequest, "bytes is not text"),
    (lambda llm: llm.detokenize([1 << 80]), moesaic.InvalidRequest, "no token id"),
    (lambda llm: LLM("tiny", lora="/no/such"), FileNotFoundError, "/no/such: "),
    (lambda llm: LLM("tiny", threads=10**9), moesaic.InvalidRequest, "expected 0 to 1024"),
    (lambda llm: llm.generate(["a", "b"], [GREEDY]), moesaic.InvalidRequest, "1 sampling params for 2 prompts"),
    (lambda llm: llm.chat([{"role": "robot", "content": "Hi"}]), moesaic.InvalidRequest, "messages"),
    (lambda llm: llm.chat([]), moesaic.InvalidRequest, "messages"),
    (lambda llm: llm.chat([{"role": "user", "content": "Hi"}], tempurature=1), moesaic.InvalidRequest, "tempurature"),
    (lambda llm: llm.chat([{"role": "user", "content": "Hi"}], **{"x\ny": object()}), moesaic.InvalidRequest, "x y: .*not JSON"),
    (lambda llm: llm.chat([{"role": "user", "content": object()}]), moesaic.InvalidRequest, "messages: .*not JSON"),
    (lambda llm: llm.chat([{"role": "user", "content": "Hi"}], response_format={"type": "xml"}), moesaic.InvalidRequest, "response_format"),
    (lambda llm: llm.logits([]), moesaic.InvalidRequest, "prompt"),
    (lambda llm: llm.logits([4096]), moesaic.InvalidRequest, "4096"),
    (lambda llm: llm.logits([-1]), moesaic.InvalidRequest, "-1"),
    (lambda llm: LLM("/no/such/model"), FileNotFoundError, "/no/such/model"),
    (lambda llm: LLM("tiny", device="tpu"), moesaic.InvalidRequest, "tpu"),
    (lambda llm: LLM("tiny", kv_dtype="int3"), moesaic.InvalidRequest, "int3"),
    (lambda llm: LLM("tiny", context="many"), moesaic.InvalidRequest, "context"),
    (lambda llm: LLM("tiny", kontext=3), moesaic.InvalidRequest, "kontext: no such argument, did you mean context"),
])
def test_errors_are_exceptions_of_one_line(llm, call, error, message):
    with pytest.raises(error, match=message) as raised:
        call(llm)
    assert "\n" not in str(raised.value)
    assert idle(llm)


@pytest.mark.parametrize("call, message", [
    (lambda llm: llm.detokenize([4096]), "token 4096 is outside the vocabulary of 4096"),
    (lambda llm: llm.get_tokenizer().decode(-1), "token -1 is outside"),
    (lambda llm: llm.get_tokenizer().decode([[1]], skip_special_tokens=True), "no token id"),
    (lambda llm: llm.get_tokenizer()(5), "text: int is not text"),
    (lambda llm: llm.get_tokenizer()(b"a"), "text: bytes is not text"),
    (lambda llm: llm.get_tokenizer().convert_ids_to_tokens(None), "no token id"),
    (lambda llm: llm.get_tokenizer().apply_chat_template(None), "messages: must be a list"),
    (lambda llm: LLM("tiny", lora=5), "lora: "),
    (lambda llm: llm.generate("a", SamplingParams(stop=[threading.Lock()])), "sampling params: .*lock"),
    (lambda llm: llm.generate("a", SamplingParams(top_p=0)), "top_p: must be above 0"),
    (lambda llm: llm.generate(memoryview(b"abc")), "a prompt is text"),
    (lambda llm: llm.generate([memoryview(b"abc")]), "a prompt is text"),
    (lambda llm: llm.detokenize(memoryview(b"abc")), "memoryview is no list of token ids"),
])
def test_what_is_of_no_use_is_an_invalid_request(llm, call, message):
    with pytest.raises(moesaic.InvalidRequest, match=message):
        call(llm)


def test_log_probabilities_by_bool(llm):
    [none], [one] = (llm.generate("a b", SamplingParams(max_tokens=1, logprobs=is_on, prompt_logprobs=is_on)) for is_on in (False, True))
    assert none.prompt_logprobs is None and none.outputs[0].logprobs is None
    assert len(one.prompt_logprobs) == 2 and 1 <= len(one.outputs[0].logprobs[0]) <= 2


def test_logits_import_numpy_first(tmp_path):
    program = """if True:
        import moesaic
        llm = moesaic.LLM("tiny", device="cpu")
        for _ in range(2):
            try:
                llm.logits("a")
            except (KeyboardInterrupt, moesaic.Unsupported) as error:
                print(type(error).__name__, llm.stats["steps"])"""
    (tmp_path / "numpy.py").write_text("import sys\nsys.t = getattr(sys, 't', 0) + 1\nraise KeyboardInterrupt if sys.t == 1 else ImportError('a\\nb')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment).stdout
    assert said == "KeyboardInterrupt 0\nUnsupported 0\n"


def test_dropping_an_engine_lets_other_threads_go_on():
    """A prompt's step takes a while, and the engine's end waits for it."""
    llm = LLM("tiny", device="cpu", threads=1, context=32768, max_batch=1, max_rows=4096)
    stream, ticks, done = _engine.Stream(), [], threading.Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(time.monotonic())
    thread = threading.Thread(target=tick)
    thread.start()
    llm._engine.submit("completions", json.dumps({"prompt": [1] * 32000, "max_tokens": 1}), stream)
    while llm.stats["steps"] == 0:
        pass
    begun = time.monotonic()
    del llm
    ended = time.monotonic()
    done.set()
    thread.join()
    assert sum(begun < one < ended for one in ticks) > 3


def test_progress_may_end_loading():
    seen = []
    with LLM("tiny", device="cpu", progress=lambda done, total: seen.append((done, total))):
        assert seen[0][0] == 0 and seen[-1][0] <= seen[-1][1] and len(seen) > 2
    with pytest.raises(moesaic.Cancelled):
        LLM("tiny", device="cpu", progress=lambda done, total: False)
    with pytest.raises(ZeroDivisionError):
        LLM("tiny", device="cpu", progress=lambda done, total: 1 // 0)


def test_names_that_are_no_utf_8(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff")
    models = json.loads(subprocess.run([sys.executable, "-m", "moesaic", "list", "-o", "json"], capture_output=True, check=True).stdout)
    shutil.copytree(next(m["path"] for m in models if m["model"] == "tiny"), folder)
    with LLM(folder, device="cpu", threads=1, context=256) as llm:
        assert len(llm.generate("Once", SamplingParams(max_tokens=2))) == 1
        assert llm.info["name"]
    with pytest.raises(moesaic.NotFound, match="absent"):
        LLM(folder + "/absent", device="cpu")
    for name in ("a\0b", "\ud800"):
        with pytest.raises(moesaic.InvalidRequest, match="no file can have"):
            LLM(name)
        for option in ("tokenizer", "kv_disk", "lora", "device"):
            with pytest.raises(moesaic.InvalidRequest, match=option):
                LLM("tiny", **{"device": "cpu", option: name})
    assert not os.path.exists("a")


def test_errors_are_one_line(llm):
    numpy = pytest.importorskip("numpy")
    deep = {}
    for _ in range(10000):
        deep = {"properties": {"a": deep}}
    for call in (lambda: llm.generate("a", SamplingParams(n=numpy.zeros((2, 2)))), lambda: SamplingParams(logprobs=numpy.zeros((2, 2))),
                 lambda: SamplingParams(structured_outputs=StructuredOutputsParams(json=deep)), lambda: llm.logits([1 << 40]),
                 lambda: llm.detokenize([-(1 << 40)]), lambda: llm.generate({"prompt": "a", "x\ny": 1}),
                 lambda: LLM("tiny", device="c\npu"), lambda: llm.chat([{"role": "a\0\nb", "content": "a"}])):
        with pytest.raises(moesaic.InvalidRequest) as raised:
            call()
            llm.generate("a", call())
        assert "\n" not in str(raised.value)


def test_control_c_ends_the_call_and_not_the_engine():
    program = textwrap.dedent("""
        import moesaic
        llm = moesaic.LLM("tiny", device="cpu", threads=1, context=100000)
        try:
            for output in llm.stream("Once", moesaic.SamplingParams(ignore_eos=True, max_tokens=90000)):
                print("token", flush=True)
                llm.generate("Once", moesaic.SamplingParams(ignore_eos=True, max_tokens=90000))
        except KeyboardInterrupt:
            print(llm.chat([{"role": "user", "content": "What is 17 + 25?"}], moesaic.SamplingParams(temperature=0, max_tokens=None))[0].outputs[0].text)
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "token\n", process.stderr.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "17 + 25 = 42\n", "")


def test_import_loads_neither_torch_nor_numpy():
    program = """if True:
        import sys, moesaic
        llm = moesaic.LLM("tiny", device="cpu")
        llm.generate("Hi")
        print({"numpy", "torch"} & set(sys.modules))"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_devices():
    names = {device["name"]: device for device in moesaic.list_devices()}
    assert names["cpu"]["usable"] and names["cpu"]["memory_total"] > 0
