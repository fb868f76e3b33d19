"""The tokenizer of a GGUF file, through transformers' own conversion, with what that leaves out put right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftproof.files import refusing
from draftproof.models.gguf_config import Metadata

# How byte-level vocabularies cut text before merging ("tokenizer.ggml.pre"), where transformers has no entry.
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
_GPT2 = frozenset({"gpt-2", "olmo", "mpt", "phi-2", "jais", "granite-docling"})
# Vocabularies in which a whole word that is a token is taken as it is, whatever the merges say.
_WHOLE_WORDS = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
# Control tokens that end a turn or a text under these names in every model that has them.
_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
_CONTROL = 3


def load_tokenizer(path: Path, meta: Metadata) -> Any:
    """The file's tokenizer as transformers has it, chat template included. InputError where it cannot be right."""
    from transformers import AutoTokenizer

    if not meta.get("tokenizer.ggml.tokens"):
        raise meta.refuse("it has no tokenizer")
    with refusing(f"{meta.name} cannot be imported, because its tokenizer is not understood"):
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    if meta.get("tokenizer.ggml.model") == "gpt2":
        _set_splitting(tokenizer.backend_tokenizer, meta)
    _check_ids(tokenizer, meta)
    return tokenizer


def end_tokens(meta: Metadata) -> list[int]:
    """Ids that end a text: those the file names, then the control tokens that mean it by their name."""
    named = [meta.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    tokens = meta.get("tokenizer.ggml.tokens", [])
    kinds = meta.get("tokenizer.ggml.token_type", [])
    by_name = {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == _CONTROL}
    found = [int(i) for i in named if i is not None] + [by_name[name] for name in _END_NAMES if name in by_name]
    return list(dict.fromkeys(found))


def _set_splitting(backend: Any, meta: Metadata) -> None:
    from tokenizers import normalizers, pre_tokenizers

    split = meta.get("tokenizer.ggml.pre")
    if split in _SINGLE_DIGITS:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif split not in _GPT2 and "Split" not in repr(backend.pre_tokenizer):
        raise meta.refuse(f"how its tokenizer splits text (tokenizer.ggml.pre = {split}) is not known")
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    if split in _WHOLE_WORDS:
        backend.model.ignore_merges = True


def _check_ids(tokenizer: Any, meta: Metadata) -> None:
    """Every token must have kept its id; runs of spaces are spelled differently on purpose."""
    tokens = meta.get("tokenizer.ggml.tokens")
    found = tokenizer.get_vocab()
    for i, token in enumerate(tokens):
        if found.get(token) != i and token.strip() and tokens.count(token) == 1:
            raise meta.refuse(f"its token {i} ({token!r}) got another id in the conversion")
