"""Do two tokenizers mean the same by their ids? Compared by content, never by size (a draft model needs to know)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from draftproof.text import Text
from draftproof.types import InputError

# Ids that a vocabulary reserves without giving them a meaning.
_PLACEHOLDER = re.compile(
    r"\[PAD\d+\]|[<\[]\|?(unused|reserved|extra|dummy|placeholder|pad)[a-z_]*?_?\d+\|?[>\]]", re.I
)
_SHOWN = 5
_ROLES = ("start", "end", "unknown")

Kind = Literal["same", "padding", "differ", "different"]


@dataclass(frozen=True)
class Difference:
    """An id with both texts; None where that tokenizer has no token of this id."""

    id: int
    target: str | None
    draft: str | None

    def __str__(self) -> str:
        return f"{self.id}: {_shown(self.target)} / {_shown(self.draft)}"


@dataclass(frozen=True)
class Pairing:
    """How the ids of a target and of a draft model relate.

    kind             "same"; "padding": the same up to ids that one of them only reserves; "differ": some ids mean
                     something else; "different": most do, so these are two tokenizers
    num_differences  ids that mean something else or have another special role (start, end, unknown)
    differences      the first five of them
    allowed          one entry a draft id: True where the target's token of that id is the same token. Only those
                     may be proposed; what else the target has stays as likely as without a draft model
    """

    kind: Kind
    num_differences: int
    differences: tuple[Difference, ...]
    allowed: tuple[bool, ...]

    def __str__(self) -> str:
        if self.kind == "same":
            return "same tokenizer: every id is the same token"
        if self.kind == "padding":
            return "same tokenizer up to padding: the ids that both use are the same tokens"
        listed = "; ".join(str(difference) for difference in self.differences)
        if self.kind == "differ":
            count = "1 id differs" if self.num_differences == 1 else f"{self.num_differences} ids differ"
            return f"{count} (id: target / draft): {listed}"
        return f"different tokenizers: only {sum(self.allowed)} of {len(self.allowed)} draft ids are the target's"

    def refuse_if_different(self) -> None:
        """InputError for two tokenizers whose ids do not correspond."""
        if self.kind == "different":
            raise InputError(f"these are {self}; choose a draft model with the target's tokenizer.")


def compare(target: Text, draft: Text, target_size: int | None = None, draft_size: int | None = None) -> Pairing:
    """The pairing of two tokenizers: which ids of the draft mean the same token in the target.

    target_size, draft_size: rows of the models' logits where they are known; rows without a token are padding.
    "different" is said when fewer than half of the smaller vocabulary's tokens agree.
    """
    same = _same_tokens(target, draft)
    roles = _roles(target), _roles(draft)
    differing, padded = [], (target_size or len(target.tokens)) != (draft_size or len(draft.tokens))
    for i in range(max(len(target.tokens), len(draft.tokens))):
        equal = i < len(same) and same[i]
        if equal and roles[0].get(i) == roles[1].get(i):
            continue
        if not equal and _reserved(target, i) and _reserved(draft, i):
            padded = True
            continue
        differing.append(i)
    allowed = tuple(bool(one) for one in same) + (False,) * (len(draft.tokens) - len(same))
    smaller = min(_used(target), _used(draft))
    if 2 * sum(allowed) < smaller:
        kind: Kind = "different"
    else:
        kind = "differ" if differing else "padding" if padded else "same"
    shown = tuple(Difference(i, _text(target, i, roles[0]), _text(draft, i, roles[1])) for i in differing[:_SHOWN])
    return Pairing(kind, len(differing), shown, allowed)


def fingerprint(text: Text) -> str:
    """What tells a tokenizer from all others: a hash of its tokens by id."""
    return hashlib.sha256(json.dumps(text.tokens, ensure_ascii=True).encode()).hexdigest()


def _same_tokens(target: Text, draft: Text) -> Sequence[bool]:
    """For the ids that both may have: is it the same token? Content decides where the spelling differs."""
    alike = target.decoder == draft.decoder
    return [
        a is not None and b is not None and ((alike and a == b) or _same_content(target, draft, i))
        for i, (a, b) in enumerate(zip(target.tokens, draft.tokens, strict=False))
    ]


def _same_content(target: Text, draft: Text, token: int) -> bool:
    # Equal bytes are not enough: the byte-fallback token of "A" and the letter itself are two tokens.
    return target.content(token) == draft.content(token) and target.is_byte(token) == draft.is_byte(token)


def _reserved(text: Text, token: int) -> bool:
    string = text.tokens[token] if token < len(text.tokens) else None
    return string is None or _PLACEHOLDER.fullmatch(string) is not None


def _used(text: Text) -> int:
    return sum(not _reserved(text, i) for i in range(len(text.tokens)))


def _roles(text: Text) -> dict[int, tuple[str, ...]]:
    """Special ids with their roles. Padding is left out: it is neither read nor written here."""
    tokenizer = text.tokenizer
    roles: dict[int, tuple[str, ...]] = {}
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    for role, token in zip(_ROLES, ids, strict=True):
        if token is not None:
            roles[int(token)] = (*roles.get(int(token), ()), role)
    return roles


def _text(text: Text, token: int, roles: dict[int, tuple[str, ...]]) -> str | None:
    if token >= len(text.tokens) or text.tokens[token] is None:
        return None
    return " ".join([repr(text.label(token)), *(f"[{role}]" for role in roles.get(token, ()))])


def _shown(text: str | None) -> str:
    return "no token" if text is None else text
