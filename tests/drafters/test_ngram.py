from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.drafters import ngram
from draftproof.drafters.ngram import NgramDrafter, continuation, matches
from draftproof.types import InputError


def plain_matches(text: list[int], shortest: int, longest: int) -> list[int]:
    """The definition: for every earlier end, how long a suffix it repeats; longest first, then the latest."""
    found = []
    for end in range(len(text) - 1):
        size = 0
        while size < min(longest, end + 1) and text[end - size] == text[len(text) - 1 - size]:
            size += 1
        if size >= shortest:
            found.append((size, end + 1))
    return [start for _, start in sorted(found, reverse=True)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 3), st.integers(0, 6))
def test_the_longest_then_latest_match_wins(text: list[int], shortest: int, more: int) -> None:
    expected = plain_matches(text, shortest, shortest + more)
    assert [match.start for match in matches(np.array(text), shortest, shortest + more, 1)] == expected[:1]


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60))
def test_several_continuations_differ_in_their_first_token(text: list[int]) -> None:
    firsts = [text[match.start] for match in matches(np.array(text), 1, 8, 3)]
    assert len(firsts) == len(set(firsts)) <= 3
    assert set(firsts) == {text[s] for s in plain_matches(text, 1, 8)} or len(firsts) == 3


def test_a_continuation_past_the_end_goes_round() -> None:
    assert continuation(np.array([9, 1, 2, 1, 2]), 3, 5) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("bad", [{"min": 0}, {"min": 4, "max": 3}, {"gamma": 0}, {"width": 0}])
def test_senseless_options_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InputError, match="n-gram drafter needs"):
        NgramDrafter(**bad)


@pytest.mark.parametrize("period", [1, 2, 7])
def test_a_repetitive_text_is_not_searched_to_its_beginning(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step must stay cheap at 32k tokens of history (times: scripts/engine_overhead.py)."""
    compared: list[int] = []
    lengths = ngram.suffix_lengths
    monkeypatch.setattr(
        ngram, "suffix_lengths", lambda t, ends, most: compared.append(len(ends)) or lengths(t, ends, most)
    )
    text = np.arange(32_768) % period
    assert [match.start for match in ngram.matches(text, 2, 32, 1)] == [32_768 - period]
    assert sum(compared) <= 1024
