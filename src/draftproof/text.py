"""Text exists only at the two ends: chat template and encoding before the engine, streaming text behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from draftproof.files import folder_at, read_object, refusing
from draftproof.streaming import StopStrings, Stream, cut
from draftproof.types import InputError

__all__ = ["StopStrings", "Stream", "Text", "cut", "letters"]

# Larger ids are damage; a table of all ids must fit into memory.
_MOST_TOKENS = 2**24
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Decoders whose text for a token depends only on "is it the first" and "is it one byte of several".
_DECODERS = frozenset({"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"})


class Text:
    """A transformers tokenizer with the few things generation needs. Token ids are plain integers.

    tokenizer  any tokenizer with a `tokenizers` backend (a "fast" one); InputError for one that has none or whose
               decoder cannot be streamed exactly
    eos_ids    ids that end a text; the tokenizer's own end token is added
    """

    def __init__(self, tokenizer: Any, eos_ids: Iterable[int] = (), name: str = "the model") -> None:
        self.tokenizer = tokenizer
        self.name = name
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([*eos_ids, *own]))
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise InputError(f"the tokenizer of {name} has no tokenizer.json; convert it to a fast tokenizer first.")
        self._backend = tokenizer.backend_tokenizer
        self.decoder: tuple[dict[str, Any], ...] = _decoders(self._backend)
        if reason := _not_streamable(self.decoder):
            raise InputError(f"the tokenizer of {name} cannot be streamed exactly: {reason}.")
        kinds = {part["type"] for part in self.decoder}
        self.byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._tails: dict[int, str] = {}

    @classmethod
    def load(cls, folder: str | Path) -> Text:
        """The tokenizer and the end tokens of a Hugging Face folder. InputError if there is none."""
        import transformers

        path = folder_at(folder)
        if not (path / "tokenizer.json").exists() and not (path / "tokenizer_config.json").exists():
            raise InputError(f"{path} has no tokenizer files (tokenizer.json, tokenizer_config.json).")
        settings = _settings(path / "tokenizer_config.json")
        # A generic fast tokenizer is what AutoTokenizer would choose in the end, half a second sooner.
        generic = settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
        loader: Any = transformers.PreTrainedTokenizerFast if generic else transformers.AutoTokenizer
        ends = _configured_eos(path)
        with refusing(f"the tokenizer of {path} (tokenizer.json, tokenizer_config.json) cannot be loaded"):
            return cls(loader.from_pretrained(str(path), local_files_only=True), ends, path.name)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of a raw text; `special` adds the tokens the model expects around it, such as a start token."""
        with refusing(f"the tokenizer of {self.name} cannot encode the text"):
            return [int(i) for i in self._backend.encode(text, add_special_tokens=special).ids]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of all ids at once; what the deltas of a `Stream` add up to."""
        return str(self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special))

    def chat(self, messages: str | Sequence[dict[str, Any]]) -> list[int]:
        """Ids of a conversation ({"role", "content"} each; a string is one user message), the reply to follow.

        InputError if the model has no chat template or the template refuses the messages.
        """
        if not self.tokenizer.chat_template:
            raise InputError(f"{self.name} has no chat template; use --raw to send the prompt as it is.")
        conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        # A template is a program of the folder's author, which may do anything.
        with refusing(f"the chat template of {self.name} refuses the messages"):
            text = self.tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        return self.encode(text, special=False)

    def watch(self, stop_strings: Sequence[str]) -> Callable[[int], bool]:
        """A function to call with every new token: does the text now hold a stop string?"""
        stream = Stream(self, stop_strings)
        return lambda token: stream.push(token)[1]

    def vocab(self) -> dict[str, int]:
        """Token string -> id, added tokens included; the strings are spelled as in tokenizer.json."""
        return {str(token): int(i) for token, i in self._backend.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def tokens(self) -> tuple[str | None, ...]:
        """The token string of every id from 0 to the largest, None for an id without a token."""
        by_id = {i: token for token, i in self.vocab().items()}
        largest = max(by_id, default=-1)
        if largest >= _MOST_TOKENS:
            raise InputError(f"the tokenizer of {self.name} is damaged: it has a token with the id {largest}.")
        return tuple(by_id.get(i) for i in range(largest + 1))

    def content(self, token: int) -> bytes:
        """The bytes a token stands for inside a text, however its tokenizer spells them; no token, no bytes."""
        if not 0 <= token < len(self.tokens) or (string := self.tokens[token]) is None:
            return b""
        if self.byte_level:
            return _spelled_bytes(string)
        if self.is_byte(token) and (match := _BYTE_TOKEN.fullmatch(string)):
            return bytes([int(match[1], 16)])
        return self.tail([token]).encode()

    def label(self, token: int) -> str:
        """A token for a reader: its text, or its bytes where they are no text."""
        try:
            return self.content(token).decode()
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in self.content(token))

    def is_byte(self, token: int) -> bool:
        """True for a byte-fallback token, whose text depends on the bytes around it."""
        string = self.tokens[token] if self._byte_fallback and 0 <= token < len(self.tokens) else None
        return string is not None and _BYTE_TOKEN.fullmatch(string) is not None

    def tail(self, ids: Sequence[int]) -> str:
        """The text of ids that follow other text; whole tokens only, so a character is never cut."""
        if len(ids) == 1 and ids[0] in self._tails:
            return self._tails[ids[0]]
        anchor, length = self._anchor
        text = self.decode([*anchor, *ids], skip_special=False)[length:]
        if len(ids) == 1:
            self._tails[ids[0]] = text
        return text

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens, which `skip_special` leaves out."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(int(i) for i, token in added.items() if token.special)

    @cached_property
    def _anchor(self) -> tuple[list[int], int]:
        """A printable token and the length of its text: behind it no rule for the beginning of a text applies."""
        for token, string in enumerate(self.tokens):
            if string is not None and token not in self.special_ids and not self.is_byte(token):
                text = self.decode([token])
                if text.isascii() and text.isprintable() and text == text.strip() != "":
                    return [token], len(text)
        raise InputError(f"the tokenizer of {self.name} has no printable token.")


def letters(vocab_size: int, eos_id: int | None = None) -> Text:
    """A tokenizer for toy models: token i is a short string, and every id below `vocab_size` has one.

    The first are a, b, c, a space, "ab", the two bytes of é one by one, "bc"; then the other letters, digits and
    marks, then strings of two, three and four letters. `eos_id` makes that id "<end>". Characters that it lacks
    become its first token. InputError for a size below 2 or above 400,000.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if not 2 <= vocab_size <= 400_000:
        raise InputError(f"a toy vocabulary has between 2 and 400000 tokens, not {vocab_size}.")
    strings = list(islice(_toy_strings(), vocab_size))
    if eos_id is not None and 0 <= eos_id < vocab_size:
        strings = [*strings[:eos_id], "<end>", *strings[eos_id : vocab_size - 1]]
    known = set(strings)
    merges = [(t[:-1], t[-1]) for t in strings if len(t) > 1 and t != "<end>" and {t[:-1], t[-1]} <= known]
    first = next(t for t in strings if t != "<end>")
    model = models.BPE({t: i for i, t in enumerate(strings)}, merges, unk_token=first)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    end = {"eos_token": "<end>"} if "<end>" in known else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **end)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return Text(tokenizer, name="the toy model")


def _toy_strings() -> Iterable[str]:
    """Byte-level spellings without repeats; every longer one is an earlier one plus a letter."""
    spell = {byte: char for char, byte in _alphabet().items()}
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    first = ["a", "b", "c", spell[0x20], "ab", spell[0xC3], spell[0xA9], "bc"]
    yield from first
    yield from (spell[ord(c)] for c in alphabet[3:] + "\n.,0123456789?!'-:;")
    longer = list(alphabet)
    while True:
        longer = [head + c for head in longer for c in alphabet]
        yield from (string for string in longer if string not in first)


@cache
def _alphabet() -> dict[str, int]:
    """The characters that spell bytes in byte-level BPE (GPT-2): printable bytes are themselves, others U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


def _spelled_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; an added token that uses other characters stands for itself."""
    alphabet = _alphabet()
    return bytes(alphabet[c] for c in token) if all(c in alphabet for c in token) else token.encode()


def _decoders(backend: Any) -> tuple[dict[str, Any], ...]:
    """The steps that turn tokens into text, as in tokenizer.json; none means "join with spaces"."""
    state = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    return () if state is None else tuple(state.get("decoders", [state]))


def _not_streamable(parts: Sequence[dict[str, Any]]) -> str | None:
    """Why the text of a token may depend on more than the text's beginning and the bytes around it, or None."""
    kinds = [str(part["type"]) for part in parts]
    if unknown := set(kinds) - _DECODERS:
        return f"unknown decoder {min(unknown)}"
    if "ByteLevel" in kinds and len(kinds) > 1:
        return f"decoder ByteLevel mixed with {', '.join(kinds)}"
    for i, part in enumerate(parts):
        pattern = next(iter(part.get("pattern", {"": ""}).values()))
        if part["type"] == "Replace" and "Fuse" in kinds[:i] and len(pattern) > 1:
            return f"decoder Replace of {pattern!r} behind Fuse"
        if part["type"] == "Strip" and part["stop"]:
            return "decoder Strip at the end"
    return None


def _configured_eos(folder: Path) -> list[int]:
    """End tokens of generation_config.json and config.json, in that order."""
    files = folder / "generation_config.json", folder / "config.json"
    generation, config = (_settings(file) for file in files)
    inner = config.get("text_config")
    found = _ends(generation, files[0]) + _ends(config, files[1])
    return found + (_ends(inner, files[1]) if isinstance(inner, dict) else [])


def _ends(settings: dict[str, Any], file: Path) -> list[int]:
    value = settings.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise InputError(f"{file} cannot be used: eos_token_id must be a token id or a list of them.")
    return ids


def _settings(file: Path) -> dict[str, Any]:
    """A JSON object that may be missing."""
    return read_object(file) if file.exists() else {}
