"""A model's tokenizer, with the names that programs for Hugging Face's tokenizers use most."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Mapping, Protocol, Sequence, cast

from ._values import _as_json, _is_series, _message_list, _token_ids
from ._vllm import TOKENIZER_NAMES, by_name
from .errors import InvalidRequest

if TYPE_CHECKING:
    from . import _engine


class _Model(Protocol):
    """The part of LLM and AsyncLLM that the tokenizer needs."""

    _engine: _engine.Engine

    def tokenize(self, text: str, special: bool = False) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int]) -> str: ...


class Encoding(dict[str, Any]):
    """The lists that Tokenizer() gives, by name or as attributes."""

    @property
    def input_ids(self) -> Any:
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        return self["attention_mask"]


class Tokenizer:
    """LLM.get_tokenizer() gives it. Names of special tokens, such as <|start|>, are read as these tokens, and decoded as them."""

    def __init__(self, llm: _Model) -> None:
        self._llm = llm
        self._special: dict[int, bool] = {}

    @by_name(TOKENIZER_NAMES, "encode")
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """add_special_tokens: gpt-oss has none to add."""
        return self._llm.tokenize(text, special=True)

    @by_name(TOKENIZER_NAMES, "decode")
    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = _token_ids(token_ids if _is_series(token_ids) else [token_ids], "token_ids")
        return self._llm.detokenize([one for one in ids if not (skip_special_tokens and self._is_special(one))])

    @by_name(TOKENIZER_NAMES, "tokenizer")
    def __call__(self, text: str | Sequence[str]) -> Encoding:
        """input_ids and attention_mask, as lists."""
        several = _is_series(text)
        ids: Any = [self.encode(one) for one in text] if several else self.encode(cast(str, text))
        mask = [[1] * len(one) for one in ids] if several else [1] * len(ids)
        return Encoding(input_ids=ids, attention_mask=mask)

    @by_name(TOKENIZER_NAMES, "apply_chat_template")
    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None,
                            tokenize: bool = True, add_generation_prompt: bool = True, reasoning_effort: str | None = None) -> str | list[int]:
        """The prompt that chat() makes of these messages."""
        if not add_generation_prompt:
            raise InvalidRequest("add_generation_prompt: a prompt ends where the answer begins")
        fields = {"messages": _message_list(conversation), "tools": tools, "reasoning_effort": reasoning_effort,
                  "current_date": datetime.date.today().isoformat()}
        text = _as_json({name: value for name, value in fields.items() if value is not None})
        ids = self._llm._engine.chat_prompt(text)
        return ids if tokenize else self.decode(ids)

    @property
    def eos_token_id(self) -> int:
        return self._llm._engine.stop_tokens[0]

    @property
    def eos_token(self) -> str:
        return self.decode(self.eos_token_id)

    @property
    def vocab_size(self) -> int:
        return self._llm._engine.vocab

    def __len__(self) -> int:
        return self.vocab_size

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        return [self.decode(one) for one in _token_ids(ids, "ids")] if _is_series(ids) else self.decode(ids)

    def _is_special(self, token: int) -> bool:
        if token not in self._special:
            name = self._llm.detokenize([token])
            self._special[token] = self._llm.tokenize(name, True) == [token] != self._llm.tokenize(name, False)
        return self._special[token]

    if not TYPE_CHECKING:  # so that type checkers see what is not there

        def __getattr__(self, name):
            raise AttributeError(f"moesaic's tokenizer has no {name!r}; transformers.AutoTokenizer reads the model's own tokenizer.json")
