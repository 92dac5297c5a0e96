"""vLLM's names: each argument that vLLM has is understood, or refused with one line that says what to use."""

import copy
import dataclasses
import io
import pathlib
import re
import time

import pytest

import moesaic
from moesaic import AsyncLLM, InvalidRequest, LLM, NotFound, SamplingParams, StructuredOutputsParams
from moesaic import _engine, _vllm
from moesaic._progress import Progress

GREEDY = SamplingParams(temperature=0, max_tokens=8)
SMALL = {"device": "cpu", "threads": 1}


def test_arguments_that_mean_the_same():
    with LLM(model="tiny", max_model_len=300, max_num_seqs=3, max_num_batched_tokens=64, kv_cache_dtype="auto", tokenizer=None,
             enable_prefix_caching=False, tensor_parallel_size=1, dtype="bfloat16", quantization="mxfp4", trust_remote_code=True,
             enforce_eager=True, gpu_memory_utilization=0.95, seed=0, disable_log_stats=True, enable_lora=False, **SMALL) as llm:
        assert (llm.info["context"], llm.info["max_batch"], llm.info["max_rows"]) == (300, 3, 64)
        prompt = "Once upon a time there was " * 8
        assert [llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens for _ in range(2)] == [0, 0]


def test_none_is_the_default_and_paths_are_pathlibs(tmp_path):
    tiny = pathlib.Path(_engine.__file__).parent / "models" / "tiny"
    nothing = dict.fromkeys(["kv_dtype", "context", "max_batch", "kv_tokens", "dense", "lora", "speculative", "tp", "tune", "progress"])
    with LLM(tiny, **SMALL, **nothing, tokenizer=tiny / "tokenizer.json", kv_disk=tmp_path) as llm, LLM("tiny", **SMALL) as other:
        assert {**llm.info, "device": 0} == {**other.info, "device": 0}
    for lora in (tmp_path / "none", [tmp_path / "none"]):
        with pytest.raises(NotFound, match="/none: no such adapter folder"):
            LLM("tiny", lora=lora)


def names():
    tables = {"LLM": _vllm.LLM_NAMES, "SamplingParams": _vllm.PARAMS_NAMES, "generate": _vllm.GENERATE_NAMES, "chat": _vllm.CHAT_NAMES}
    return [(what, name) for what, table in tables.items() for name in map(a_member, table.refused)]


def a_member(name):
    """Of a family, such as mm_*, one name."""
    return name.replace("*", "any")


def calls(llm):
    return {"LLM": lambda **values: LLM("tiny", **SMALL, **values), "SamplingParams": SamplingParams,
            "generate": lambda **values: llm.generate("Once", GREEDY, **values),
            "chat": lambda **values: llm.chat([{"role": "user", "content": "Hi"}], GREEDY, **values)}


@pytest.mark.parametrize("what, name", names())
def test_what_cannot_be_is_refused_with_advice(llm, what, name):
    with pytest.raises(InvalidRequest, match=f"^{name}: .*[a-z]{{3}}") as raised:
        calls(llm)[what](**{name: object()})
    assert "\n" not in str(raised.value)


def test_values_that_ask_for_nothing_are_taken(llm):
    for what, table in (("SamplingParams", _vllm.PARAMS_NAMES), ("generate", _vllm.GENERATE_NAMES), ("chat", _vllm.CHAT_NAMES)):
        calls(llm)[what](**{a_member(name): None for name in table.refused}, **{name: None for name in table.ignored})
    with LLM("tiny", **SMALL, **{a_member(name): None for name in [*_vllm.LLM_NAMES.refused, *_vllm.LLM_NAMES.ignored, *_vllm.LLM_NAMES.renamed]}):
        pass


@pytest.mark.parametrize("ranks", ["auto", "numa"])
def test_the_number_of_ranks_is_chosen(ranks):
    with LLM("tiny", device="cpu", tp=ranks, context=512) as llm:
        assert re.match("one rank: |[2-8] ranks, one for each NUMA node", llm.info["ranks"])


@pytest.mark.parametrize("call, message", [
    (lambda llm: LLM(), "LLM: model is missing"),
    (lambda llm: LLM("tiny", "cpu"), "LLM: only model may stand without its name"),
    (lambda llm: LLM("tiny", model="tiny"), "model is given twice"),
    (lambda llm: LLM(None), "model: NoneType"),
    (lambda llm: LLM("tiny", pipeline_parallel_size=2), "pipeline_parallel_size: use tp"),
    (lambda llm: LLM("tiny", cpu_offload_gb=4), "cpu_offload_gb: use gpu_memory or experts"),
    (lambda llm: LLM("tiny", kv_offloading_size=4), "kv_offloading_size: use kv_host or kv_disk"),
    (lambda llm: LLM("tiny", device="cpu", tensor_parallel_size=3), "tp 3: the model has 2 KV heads"),
    (lambda llm: LLM("tiny", tp=9), "tp: 9 ranks; expected 1 to 8"),
    (lambda llm: LLM("tiny", tp="most"), "tp: 'most' is not a number, auto or numa"),
    (lambda llm: LLM("tiny", gpu_memory_utilization=0.5), "gpu_memory_utilization: use gpu_memory, in GiB, or kv_tokens"),
    (lambda llm: LLM("tiny", gpu_memory_utilization=1.5), "gpu_memory_utilization: use gpu_memory"),
    (lambda llm: LLM("tiny", dtype="float16"), "dtype: weights stay as they are stored"),
    (lambda llm: LLM("tiny", max_model_len=100, context=100), "max_model_len: is context here"),
    (lambda llm: LLM("tiny", max_model_len="8k"), "max_model_len: '8k' is not a whole number"),
    (lambda llm: LLM("tiny", kv_cache_dtype="fp8_e5m2"), "kv_cache_dtype: 'fp8_e5m2' is not one of"),
    (lambda llm: LLM("tiny", seed="x"), "seed: 'x' is not"),
    (lambda llm: LLM("tiny", progress=3), "progress: must be a function"),
    (lambda llm: AsyncLLM(), "LLM: model is missing"),
    (lambda llm: AsyncLLM("tiny", "cpu"), "LLM: only model may stand"),
    (lambda llm: AsyncLLM("tiny", max_num_seq=3), "max_num_seq: no such argument, did you mean max_num_seqs"),
    (lambda llm: SamplingParams(3), "SamplingParams: give every argument by its name"),
    (lambda llm: SamplingParams(temprature=1), "temprature: no such argument, did you mean temperature"),
    (lambda llm: SamplingParams(best_of=2), "best_of: use n"),
    (lambda llm: llm.generate(), "generate: prompts is missing"),
    (lambda llm: llm.generate("Hi", GREEDY, True), "generate: only prompts, sampling_params may stand"),
    (lambda llm: llm.generate("Hi", sampling_param=GREEDY), "sampling_param: no such argument, did you mean sampling_params"),
    (lambda llm: llm.chat(), "chat: messages is missing"),
    (lambda llm: llm.stream_chat([{"role": "user", "content": "Hi"}], stream=True), "stream: "),
])
def test_calls_that_are_wrong(llm, call, message):
    with pytest.raises(InvalidRequest, match=message) as raised:
        call(llm)
    assert "\n" not in str(raised.value)


def test_params_can_be_changed_and_cloned(llm):
    params = SamplingParams(temperature=0, max_tokens=3, stop=["never"], logit_bias={5: -100})
    other = params.clone()
    assert other == params == copy.deepcopy(params) and other.stop is not params.stop and other.logit_bias is not params.logit_bias
    other.max_tokens = 5
    assert [len(llm.generate("Once", p)[0].outputs[0].token_ids) for p in (params, other)] == [3, 5]
    stream = llm.stream("Once", params)
    params.n, params.output_kind = 7, None  # for later requests alone
    assert {len(output.outputs) for output in stream} == {1}


def test_default_params_are_generates_own(llm):
    params = llm.get_default_sampling_params()
    assert params == SamplingParams()
    params.temperature = 0
    assert llm.generate("Once", params)[0].outputs[0].text


def test_structured_outputs_of_vllms_classes(llm):
    @dataclasses.dataclass
    class Theirs:
        choice: list
        json: object = None
        disable_any_whitespace: bool = False
        _backend: object = None

    for form in (StructuredOutputsParams(choice=["blue", "red"]), Theirs(["blue", "red"])):
        answer = llm.generate("The sky is", SamplingParams(max_tokens=20, structured_outputs=form))[0].outputs[0]
        assert answer.text in ("blue", "red")


def test_seed_of_the_engine_makes_runs_the_same():
    def texts(**options):
        with LLM("tiny", **SMALL, **options) as llm:
            hot = SamplingParams(temperature=1.5, max_tokens=12)
            first = [output.outputs[0].token_ids for output in llm.generate(["Once", "Once"], hot)]
            return [*first, llm.generate("Once", dataclasses.replace(hot, seed=7))[0].outputs[0].token_ids]
    one, same, other = texts(seed=3), texts(seed=3), texts(seed=4)
    assert one == same and one[:2] != other[:2] and one[2] == other[2] and one[0] != one[1]


def test_tokenizer(llm, question):
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Once upon a time")
    assert ids == llm.tokenize("Once upon a time") == tokenizer("Once upon a time").input_ids
    assert tokenizer.decode(ids) == "Once upon a time" and len(tokenizer) == tokenizer.vocab_size == 4096
    assert tokenizer(["a", "b c"])["input_ids"] == [tokenizer.encode("a"), tokenizer.encode("b c")]
    assert len(tokenizer.encode(tokenizer.eos_token)) == 1
    prompt = tokenizer.apply_chat_template(question)
    assert prompt == llm.chat(question, GREEDY)[0].prompt_token_ids
    text = tokenizer.apply_chat_template(question, tokenize=False)
    assert text.endswith("<|start|>assistant") and tokenizer.encode(text) == prompt
    assert "<|" not in tokenizer.decode(prompt, skip_special_tokens=True)
    with pytest.raises(AttributeError, match="has no 'pad'"):
        tokenizer.pad


def test_numpy_is_taken_where_numbers_are(llm):
    numpy = pytest.importorskip("numpy")
    ids = llm.tokenize("Once upon a time")
    plain = SamplingParams(temperature=0, max_tokens=6, stop_token_ids=[5], logit_bias={7: -5.0}, seed=3, logprobs=2)
    theirs = SamplingParams(temperature=numpy.float32(0), max_tokens=numpy.int64(6), stop_token_ids=numpy.array([5]), n=numpy.int64(1),
                            logit_bias={numpy.int64(7): numpy.float32(-5)}, seed=numpy.int64(3), logprobs=numpy.int32(2))
    expected = llm.generate(ids, plain)[0].outputs[0].token_ids
    array = numpy.array(ids)
    for prompts in (array, list(array), {"prompt_token_ids": array}, [array], [list(array)], numpy.array([ids])):
        for params in (plain, theirs):
            [output] = llm.generate(prompts, params)
            assert output.prompt_token_ids == ids and output.outputs[0].token_ids == expected
    assert len(llm.generate(numpy.array([ids, ids]), plain)) == 2
    assert llm.detokenize(array) == llm.detokenize(ids)
    assert numpy.array_equal(llm.logits(array), llm.logits(ids))
    for wrong in (numpy.array([1.5]), numpy.array([[1.5]]), numpy.array(5), {"prompt_token_ids": numpy.array(5)}):
        with pytest.raises(InvalidRequest):
            llm.generate(wrong, plain)
    for call in (llm.logits, llm.detokenize, llm.chat, lambda two: LLM("tiny", max_model_len=numpy.array([5, 5]))):
        with pytest.raises(InvalidRequest):
            call(numpy.array(5))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer", "maximum": maximum}}}}}
             for maximum in (7, numpy.int64(7))]
    messages = [{"role": "user", "content": "Hi"}]
    ours, given = (llm.get_tokenizer().apply_chat_template(messages, tools=[tool]) for tool in tools)
    assert ours == given
    assert llm.get_tokenizer().decode(numpy.array(ids[0])) == llm.detokenize(ids[:1])


def test_log_probabilities_of_the_whole_vocabulary(llm):
    few, every = (llm.generate("Once", SamplingParams(temperature=0, max_tokens=3, logprobs=n))[0].outputs[0] for n in (5, -1))
    assert few.token_ids == every.token_ids
    for some, whole in zip(few.logprobs, every.logprobs):
        assert len(whole) == 4096 and sorted(entry.rank for entry in whole.values()) == list(range(1, 4097))
        for token, entry in some.items():
            assert whole[token].rank == entry.rank and whole[token].logprob == pytest.approx(entry.logprob, abs=1e-3)
    [answer] = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=2, logprobs=-1))[0].outputs
    assert [len(entry) for entry in answer.logprobs] == [4096] * 2


def test_metrics(llm):
    before = time.time(), time.monotonic()
    [output] = llm.generate("Once", SamplingParams(max_tokens=9, ignore_eos=True, n=2))
    m, after = output.metrics, (time.time(), time.monotonic())
    assert before[0] <= m.arrival_time <= after[0]
    assert before[1] <= m.queued_ts <= m.scheduled_ts <= m.first_token_ts <= m.last_token_ts <= after[1]
    assert m.num_generation_tokens == 18 and m.first_token_latency == m.first_token_ts - m.queued_ts
    with LLM("tiny", device="cpu", threads=1, context=4096) as one:
        counts = [o.metrics.num_generation_tokens for o in one.stream("Once", SamplingParams(max_tokens=3000, ignore_eos=True))]
    assert counts == sorted(counts) and counts[-1] == 3000 and counts[0] < 3000


def test_bars(llm, monkeypatch):
    made = []

    class Bar:
        def __init__(self, **options):
            self.options, self.done, self.closed = options, 0, False
            made.append(self)

        def update(self, n):
            self.done += n

        def close(self):
            self.closed = True

    llm.generate(["a", "b", "c"], SamplingParams(max_tokens=2, n=2), use_tqdm=Bar)
    llm.chat([{"role": "user", "content": "Hi"}], GREEDY, use_tqdm=Bar)
    with pytest.raises(InvalidRequest):
        llm.generate(["a", ""], GREEDY, use_tqdm=Bar)
    assert [(bar.options["total"], bar.done, bar.closed) for bar in made] == [(3, 3, True), (1, 1, True), (2, 0, True)]


@pytest.mark.parametrize("stream", [None, object(), io.StringIO()])
def test_progress_without_standard_error(monkeypatch, stream):
    if isinstance(stream, io.StringIO):
        stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    bar = Progress(1, "x")
    bar.last -= 10
    bar.update(1)
    bar.close()
    assert not bar.terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream, lines", [(io.StringIO, 10), (Terminal, 20)])
def test_progress(monkeypatch, stream, lines):
    """Twenty steps of one second each."""
    now, out = [0.0], stream()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr", out)
    bar = Progress(20, "loading x")
    for _ in range(20):
        now[0] += 1
        bar.update(1)
    bar.close()
    said = out.getvalue()
    assert len(re.findall("loading x: ", said)) == lines and "100% (20/20)" in said
    assert said.endswith("\r\033[K" if stream is Terminal else "\n")
