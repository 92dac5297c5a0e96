"""vLLM's names of arguments: what each one means here, and what to say where it means nothing."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
from typing import Any, Callable, Mapping, TypeVar, cast

from .errors import InvalidRequest, _shown

_F = TypeVar("_F", bound=Callable[..., Any])


class Names:
    """A function's arguments that have vLLM's names and not the function's own.

    renamed: another name of one of the function's own arguments, and how a value becomes that argument's.
    ignored: whatever the value, it changes no answer.
    refused: what to use instead; a name that ends in * is the beginning of names. Values that ask for nothing are taken:
        None, False, 0, what is empty, and those of neutral: values, or functions that are true for them.
    """

    def __init__(self, *, renamed: Mapping[str, tuple[str, Callable[[str, Any], Any]]] | None = None, ignored: str = "",
                 refused: Mapping[str, str] | None = None, neutral: Mapping[str, tuple[Any, ...]] | None = None) -> None:
        self.renamed = dict(renamed or {})
        self.ignored = frozenset(ignored.split())
        self.refused = {name: advice for names, advice in (refused or {}).items() for name in names.split()}
        self.neutral = {name: values for names, values in (neutral or {}).items() for name in names.split()}

    def own(self, values: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
        """The values by the function's own names."""
        taken: dict[str, Any] = {}
        for name, value in values.items():
            if name in known:
                taken[name] = value
            elif name in self.renamed:
                self._rename(name, value, values, taken)
            elif (advice := self._advice(name)) is not None:
                self._refuse(name, value, advice)
            elif name not in self.ignored:
                raise InvalidRequest(self._unknown(name, known))
        return taken

    def _rename(self, name: str, value: Any, values: Mapping[str, Any], taken: dict[str, Any]) -> None:
        own, convert = self.renamed[name]
        if own in values:
            raise InvalidRequest(f"{name}: is {own} here, which is given, too")
        if value is not None:
            taken[own] = convert(name, value)

    def knows(self, name: str) -> bool:
        return name in self.renamed or name in self.ignored or self._advice(name) is not None

    def _advice(self, name: str) -> str | None:
        families = (self.refused[one] for one in self.refused if one.endswith("*") and name.startswith(one[:-1]))
        return self.refused.get(name) or next(families, None)

    def _refuse(self, name: str, value: Any, advice: str) -> None:
        empty = value is None or isinstance(value, (bool, numbers.Number, str, list, tuple, dict)) and not value
        neutral = self.neutral.get(name, ())
        if not empty and not any(one(value) if callable(one) else type(value) is type(one) and value == one for one in neutral):
            raise InvalidRequest(f"{name}: {advice}")

    def _unknown(self, name: str, known: frozenset[str]) -> str:
        near = difflib.get_close_matches(name, [*known, *self.renamed], n=1)
        return f"{name}: no such argument" + (f", did you mean {near[0]}?" if near else "")


def by_name(names: Names, what: str, closed: bool = False) -> Callable[[_F], _F]:
    """Makes a function take vLLM's names, too, and say in one line what is wrong with a call. what: for the line. closed: the
    function never gets further names; its ** tells type checkers of vLLM's."""

    def wrap(function: _F) -> _F:
        parameters = inspect.signature(function).parameters
        known = frozenset(p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD)
        open_ended = not closed and len(known) < len(parameters)  # the function itself looks at further names
        places = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        needed = [name for name in places[1:] if parameters[name].default is inspect.Parameter.empty]

        @functools.wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:
            if len(arguments) > len(places):
                given = f"only {', '.join(places[1:])} may stand without its name" if len(places) > 1 else "give every argument by its name"
                raise InvalidRequest(f"{what}: {given}")
            twice = [name for name in places[:len(arguments)] if name in values]
            if twice:
                raise InvalidRequest(f"{what}: {twice[0]} is given twice")
            further = {n: v for n, v in values.items() if open_ended and n not in known and not names.knows(n)}
            own = names.own({n: v for n, v in values.items() if n not in further}, known)
            missing = [name for name in needed if name not in places[:len(arguments)] and name not in own]
            if missing:
                raise InvalidRequest(f"{what}: {missing[0]} is missing")
            return function(*arguments, **own, **further)

        return cast(_F, call)

    return wrap


def _tokens(name: str, value: Any) -> Any:
    if not getattr(value, "shape", ()) and value in (-1, "auto"):
        return 0
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidRequest(f"{name}: {_shown(value)} is not a whole number")
    return int(value)


def _kv_dtype(name: str, value: Any) -> Any:
    same = {"auto": "auto", "bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8"}
    if not isinstance(value, str) or value not in same:
        raise InvalidRequest(f"{name}: {_shown(value)} is not one of auto, bfloat16 and fp8 (kv_dtype: auto, bf16, fp8)")
    return same[value]


def _most_of_it(value: Any) -> bool:
    """True for a share of a GPU's memory that is kept to without being asked."""
    return isinstance(value, (int, float)) and 0.9 <= value <= 1


def _is_bfloat16(value: Any) -> bool:
    return str(value) in ("bfloat16", "torch.bfloat16")


def _as_it_is(name: str, value: Any) -> Any:
    return value


def _not(name: str, value: Any) -> bool:
    return not value


_DEVICES = "use tp, the GPUs that compute a model together, or a server for each GPU (docs/user/fleet.md)"
_SPECULATIVE = "use speculative, such as speculative='ngram', and draft_tokens"
_LORA = "use lora=FOLDER, or a list of folders, for the whole engine"
_TEXT = "gpt-oss reads text only"
_LOADING = "give model a folder, a .gguf file or owner/name; models are not downloaded here (hf download does it)"
_MEMORY = "use gpu_memory, in GiB, or kv_tokens, the size of the KV cache in tokens"
_WEIGHTS = "weights stay as they are stored; dense= (bf16, q8_0, mxfp8, mxfp4) changes those of attention"
_PARTS = "is about a part of vLLM that is not here"
_OFFLOAD = "use gpu_memory or experts, by which experts stay in host memory"
_KV_OFFLOAD = "use kv_host or kv_disk, which keep blocks of the prefix cache"
_CHAT = "the model's own format, harmony, is built in"

LLM_NAMES = Names(
    renamed={"max_model_len": ("context", _tokens), "max_num_seqs": ("max_batch", _tokens), "max_num_batched_tokens": ("max_rows", _tokens),
             "kv_cache_dtype": ("kv_dtype", _kv_dtype), "enable_prefix_caching": ("prefix_cache", _as_it_is),
             "tensor_parallel_size": ("tp", _as_it_is)},
    ignored="""trust_remote_code enforce_eager disable_log_stats disable_log_requests enable_log_requests log_stats
        disable_custom_all_reduce disable_async_output_proc async_scheduling swap_space max_seq_len_to_capture block_size
        enable_chunked_prefill compilation_config cudagraph_capture_sizes max_cudagraph_capture_size optimization_level
        performance_mode attention_backend attention_config moe_backend linear_backend enable_flashinfer_autotune kernel_config
        stream_interval max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold download_dir
        safetensors_load_strategy disable_cascade_attn served_model_name shutdown_timeout
        aggregate_engine_logging enable_logging_iteration_details log_level log_config_file show_hidden_metrics_for_version
        kv_cache_metrics kv_cache_metrics_sample cudagraph_metrics enable_mfu_metrics per_request_spec_decode_metrics
        enable_layerwise_nvtx_tracing jit_monitor_mode jit_monitor_verbose fail_on_environ_validation enable_shm_tensor_arena
        enable_cumem_allocator long_prefill_token_threshold_adaptive safetensors_prefetch_num_threads safetensors_prefetch_block_size
        numa_bind numa_bind_nodes numa_bind_cpus""",
    refused={
        """pipeline_parallel_size data_parallel_* prefill_context_parallel_size
        decode_context_parallel_size dcp_* cp_* enable_expert_parallel enable_elastic_ep elastic_ep_* enable_ep_weight_filter
        expert_placement_strategy distributed_* cpu_distributed_* device_ids nnodes node_rank master_addr master_port enable_eplb
        eplb_config enable_dbo dbo_* dp_* ubatch_size all2all_backend disable_nccl_* enable_nccl_* enable_hc_sp enable_batch_sharded_sampling
        max_parallel_loading_workers worker_use_ray ray_workers_use_nsight""": _DEVICES,
        "gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override": _MEMORY,
        """cpu_offload_gb offload_backend cpu_offload_params offload_group_size offload_num_in_group offload_prefetch_step
        offload_params""": _OFFLOAD,
        "kv_offloading_size kv_offloading_backend kv_transfer_config": _KV_OFFLOAD,
        "speculative_config speculative_model num_speculative_tokens spec_method spec_model spec_tokens": _SPECULATIVE,
        """enable_lora max_loras max_lora_rank max_cpu_loras lora_dtype lora_target_modules fully_sharded_loras default_mm_loras
        lora_modules long_lora_scaling_factors max_lora_cls_labels specialize_active_lora enable_mixed_moe_lora_format
        enable_moe_shared_loras enable_tower_connector_lora""": _LORA,
        "dtype quantization quantization_config quantization_param_path allow_deprecated_quantization kv_cache_dtype_skip_layers": _WEIGHTS,
        """revision code_revision tokenizer_revision hf_token hf_config_path load_format config_format model_weights
        model_loader_extra_config ignore_patterns""": _LOADING,
        "hf_overrides model_class_overrides": "the model's config.json says what it is; edit it there",
        """limit_mm_per_prompt mm_* media_io_kwargs enable_mm_* allowed_local_media_path allowed_media_domains language_model_only
        skip_mm_profiling interleave_mm_strings disable_chunked_mm_input video_*""": _TEXT,
        "task runner convert pooler_config override_pooler_config": "this engine generates text, and does nothing else",
        "tokenizer_mode skip_tokenizer_init": "the tokenizer is built in; tokenizer= names a file",
        "chat_template chat_template_content_format trust_request_chat_template": _CHAT,
        "reasoning_parser reasoning_parser_plugin reasoning_config tool_call_parser": f"{_CHAT}: an output has text, reasoning and tool_calls",
        "generation_config override_generation_config": "give SamplingParams with each request",
        "max_logprobs": "logprobs takes up to 20, or -1 for all",
        "logprobs_mode": "log-probabilities are the model's own, before temperature and filters",
        "logits_processors": "use logit_bias, allowed_token_ids, bad_words or structured_outputs of SamplingParams",
        "structured_outputs_config guided_decoding_backend": "the grammar engine is built in; SamplingParams has structured_outputs",
        "scheduling_policy": "requests begin in the order in which they come",
        "disable_sliding_window swa_bounded_replay": "the model's layers have their windows",
        "max_num_active_seqs max_num_queued_* max_num_scheduled_tokens": "use max_batch and max_rows; all that is submitted waits",
        "watermark*": "answers carry no watermark",
        "enable_prompt_embeds": "a prompt is text or token ids",
        "additional_config kv_events_config worker_cls worker_extension_cls scheduler_cls profiler_config otlp_traces_endpoint "
        "collect_detailed_traces enable_sleep_mode model_impl disable_hybrid_kv_cache_manager enable_return_routed_experts "
        "weight_transfer_config calculate_kv_scales io_processor_plugin logging_config ec_* return_sampling_mask "
        "prefix_caching_hash_algo aux_output_config diffusion_config engram_config mamba_* enable_mamba_* gdn_* kda_* replayssm_* "
        "use_replayssm sparse_indexer_* ir_op_priority monokernel tokens_only enable_trace_replay renderer_num_workers sleep_* "
        "kv_sharing_fast_prefill prefix_cache_retention_interval prefix_match_unit prefill_schedule_interval "
        "fault_tolerance_config enable_fault_tolerance watchdog_config scheduler_reserve_full_isl use_fp64_gumbel pt_load_map_location "
        "custom_histogram_buckets": _PARTS,
    },
    neutral={
        """pipeline_parallel_size data_parallel_size data_parallel_size_local nnodes
        prefill_context_parallel_size decode_context_parallel_size""": (1,),
        "distributed_executor_backend": ("uni",), "gpu_memory_utilization": (_most_of_it,), "dtype": ("auto", _is_bfloat16), "quantization": ("mxfp4", "gpt_oss_mxfp4"),
        "revision tokenizer_revision code_revision": ("main",), "load_format config_format tokenizer_mode": ("auto", "safetensors", "hf"),
        "task runner convert": ("auto", "generate", "none"), "chat_template_content_format": ("auto", "string", "openai"),
        "reasoning_parser": ("openai_gptoss", "gpt_oss"), "tool_call_parser": ("openai",),
        "generation_config": ("auto", "vllm"), "max_logprobs": (20, -1), "logprobs_mode": ("raw_logprobs",), "guided_decoding_backend": ("auto",),
        "scheduling_policy": ("fcfs",), "model_impl": ("auto",),
        "language_model_only": (True,), "prefix_caching_hash_algo": ("sha256", "builtin"),
    })

# vLLM's LLM and AsyncLLM have these, too: each name with the advice that stands in its place here.
ATTRIBUTES = {name: advice for names, advice in {
    "encode embed classify score reward beam_search": "this engine generates text, and does nothing else",
    "get_metrics": "stats and each output's metrics have the numbers",
    "llm_engine engine engine_core": "LLM is the engine; AsyncLLM is that for asyncio",
    "model_config vllm_config get_model_config": "info says what was opened",
    "get_vocab set_tokenizer": "get_tokenizer() has what there is; tokenizer= names another file",
    "reset_prefix_cache reset_mm_cache reset_encoder_cache": "use cache_prompt=False of SamplingParams, or prefix_cache=False",
    "sleep wake_up is_sleeping": "close() gives the memory back; open the model again later",
    "start_profile stop_profile": "use moesaic profile",
    "collective_rpc apply_model init_weight_transfer_engine update_weights": _PARTS,
    "add_request step has_unfinished_requests": "AsyncLLM takes requests one by one",
    "add_lora remove_lora list_loras pin_lora": _LORA,
    "from_engine_args from_vllm_config from_pretrained": "call the class itself with the model and its options",
}.items() for name in names.split()}

TOKENIZER_NAMES = Names(
    ignored="add_special_tokens clean_up_tokenization_spaces spaces_between_special_tokens padding_side verbose return_attention_mask return_token_type_ids",
    refused={"return_dict return_tensors return_offsets_mapping return_special_tokens_mask return_overflowing_tokens return_length "
             "return_assistant_tokens_mask tokenizer_kwargs": "token ids are plain lists; calling the tokenizer gives input_ids and attention_mask",
             "truncation max_length padding stride pad_to_multiple_of": "ids are not cut or filled up; slice the list",
             "text_pair text_target is_split_into_words": "one text at a time, or a list of texts",
             "chat_template documents": _CHAT, "continue_final_message": "chat() takes it"})

PARAMS_NAMES = Names(
    renamed={"skip_reading_prefix_cache": ("cache_prompt", _not)},
    ignored="spaces_between_special_tokens stream_interval skip_clone output_text_buffer_length",
    refused={
        "guided_decoding guided_json guided_regex guided_choice guided_grammar guided_options_request": "use structured_outputs",
        "response_format": "use structured_outputs, or response_format of chat()",
        "best_of": "use n", "use_beam_search length_penalty early_stopping beam_width": "there is no beam search",
        "logits_processors extra_args": "use logit_bias, allowed_token_ids, bad_words or structured_outputs",
        "prompt_logprob_token_ids prompt_logprob_start logprob_token_ids": "use logprobs or prompt_logprobs, or LLM.logits()",
        "flat_logprobs": "log-probabilities are a dict for each token",
        "detokenize": "an answer always has its text beside token_ids",
        "truncate_prompt_tokens": "shorten the prompt before; get_tokenizer() counts tokens",
        "repetition_detection": "use repetition_penalty, frequency_penalty or max_tokens",
        "routed_experts_prompt_start trace_decode_token_ids watermarking": _PARTS,
        "max_completion_tokens max_new_tokens": "use max_tokens", "top_logprobs": "use logprobs", "reasoning_effort": "give it to chat()",
        "prompt_adapter_request lora_request": _LORA,
    },
    neutral={"best_of length_penalty": (1, 1.0), "detokenize": (True,)})

_CALL_REFUSED = {
    "lora_request prompt_adapter_request": _LORA, "mm_processor_kwargs": _TEXT,
    "tokenization_kwargs": "tokenize the prompt with get_tokenizer() and give its ids",
    "guided_options_request": "use structured_outputs of SamplingParams",
}
GENERATE_NAMES = Names(ignored="priority trace_headers", refused={
    **_CALL_REFUSED, "prompt_token_ids": "give {'prompt_token_ids': ..} as the prompt", "stream": "use LLM.stream()",
    "prompt_text": "give {'prompt': .., 'prompt_token_ids': ..} as the prompt", "data_parallel_rank": "this is the only engine",
    "reasoning_ended reasoning_parser_kwargs": "chat() takes an answer's reasoning apart"})
CHAT_NAMES = Names(
    ignored="priority",
    refused={**_CALL_REFUSED, "chat_template chat_template_content_format": _CHAT,
             "stream stream_options": "chat() gives whole answers; LLM.stream_chat() and AsyncLLM.chat() stream", "return_token_ids return_progress echo": "an output has the tokens"},
    neutral={"chat_template_content_format": ("auto", "string", "openai")})
