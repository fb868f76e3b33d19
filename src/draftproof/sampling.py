"""Logits and a prefix -> the distribution of the next token. Reference form: full sorts, one stage after the other.

Order of the stages: logit bias, repetition penalty, presence and frequency penalty, no-repeat n-gram, min_tokens,
user processors, temperature, top-k, top-p, min-p, typical-p. A filter keeps every token that ties with the last one
kept, so what is kept depends on the values alone. Each node of a proposal is given its own prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from draftproof import tree
from draftproof.device import upload
from draftproof.types import Proposal, SamplingParams


class Stages(NamedTuple):
    """Two stages that have quicker forms on some devices."""

    softmax: Callable[[Tensor, float], Tensor]
    nucleus: Callable[[Tensor, float], Tensor]


class Sampler:
    """The sampling parameters of one request as a function of logits and prefix (protocol `contracts.Policy`)."""

    def __init__(self, params: SamplingParams, prompt_length: int, stop_tokens: Sequence[int] = ()) -> None:
        """stop_tokens: the model's end tokens, which `min_tokens` forbids beside the request's own."""
        self.params = params
        self.greedy = params.temperature == 0
        self._prompt_length = prompt_length
        self._stop_tokens = [*params.stop_tokens, *stop_tokens]
        self._counts: _Counts | None = None
        self._penalised = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1, 0, 0)
        forbids = params.min_tokens > 0 and bool(self._stop_tokens)
        own = params.logit_bias or params.no_repeat_ngram or params.processors
        self._untouched = not (self._penalised or forbids or own)

    def scores(self, logits: Tensor, context: Sequence[int], proposal: Proposal, nodes: Sequence[int]) -> Tensor:
        """[R, V] float32 (float64 stays): the logits behind nodes[r] with every stage before temperature applied.

        `context` only grows from call to call. Nodes share it and add the tokens of their own path.
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        params = self.params
        if self._untouched:
            return scores
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            bias = upload(values, scores.device, scores.dtype)
            scores = scores.index_add(1, upload(ids, scores.device), bias.expand(len(scores), -1))
        paths = [tree.path(proposal.parents, node) for node in nodes]
        if self._penalised:
            scores = self._penalise(scores, context, proposal, paths)
        if params.no_repeat_ngram or params.processors:
            drafted = proposal.tokens.tolist()
            prefixes = [[*context, *(drafted[node] for node in path)] for path in paths]
            scores = forbid_repeats(scores, prefixes, params.no_repeat_ngram)
            return self._process(self._forbid_end(scores, len(context), paths), prefixes, paths)
        return self._forbid_end(scores, len(context), paths)

    def probabilities(self, scores: Tensor) -> Tensor:
        """[R, V] in the dtype of the scores: temperature and filters; greedy is one-hot at the first maximum."""
        return probabilities(scores, self.params)

    def _penalise(
        self, scores: Tensor, context: Sequence[int], proposal: Proposal, paths: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """Repetition as in CTRL (1909.05858, section 4.1) over prompt and output, the two others over the output."""
        if self._counts is None:
            self._counts = _Counts(scores.shape[1], self._prompt_length, scores.device)
        seen, output = self._counts.of(context)
        seen, output = seen.expand_as(scores).clone(), output.expand_as(scores).clone()
        for row, path in enumerate(paths):
            if path:
                tokens = proposal.tokens.index_select(0, upload(path, scores.device))
                output[row].index_add_(0, tokens, torch.ones_like(tokens, dtype=output.dtype))
                seen[row][tokens] = True
        factor = self.params.repetition_penalty
        scores = torch.where(seen, torch.where(scores > 0, scores / factor, scores * factor), scores)
        return scores - self.params.frequency_penalty * output - self.params.presence_penalty * (output > 0)

    def _forbid_end(self, scores: Tensor, length: int, paths: Sequence[tuple[int, ...]]) -> Tensor:
        emitted = length - self._prompt_length
        early = [row for row, path in enumerate(paths) if emitted + len(path) < self.params.min_tokens]
        if not early or not self._stop_tokens:
            return scores
        ends = upload(self._stop_tokens, scores.device)
        return scores.index_put((upload(early, scores.device)[:, None], ends[None]), scores.new_full((), float("-inf")))

    def _process(self, scores: Tensor, prefixes: list[list[int]], paths: Sequence[tuple[int, ...]]) -> Tensor:
        """Users' processors, parents before children, on copies, as in plain decoding: once a prefix.

        They are not shown prefixes that plain decoding never forms: behind an end token, or behind a token that they
        have forbidden. Such a row is never emitted from.
        """
        rows = [scores[row : row + 1].clone() for row in range(len(scores))]
        row_of = {path: row for row, path in enumerate(paths)}
        never: set[tuple[int, ...]] = set()
        for path in sorted(row_of, key=len):
            row, prefix, above = row_of[path], prefixes[row_of[path]], path[:-1]
            forbidden = path and above in row_of and rows[row_of[above]][0, prefix[-1]] == float("-inf")
            if (
                above in never
                or forbidden
                or any(token in self._stop_tokens for token in prefix[len(prefix) - len(path) :])
            ):
                never.add(path)
                continue
            for processor in self.params.processors:
                rows[row] = processor(torch.tensor([prefix], device=scores.device), rows[row])
        return torch.cat(rows)


def proper(rows: Tensor) -> Tensor:
    """Rows without mass (all forbidden, NaN) become uniform, so that rules and drafters meet distributions alone."""
    unusable = rows[:, :1].isnan()
    if rows.device.type == "cpu" and not bool(unusable.any()):
        return rows
    return torch.where(unusable, 1 / rows.shape[-1], rows)


def log_probabilities(logits: Tensor, scores: Tensor, sampler: Sampler) -> Tensor:
    """[R, V] natural logarithms at the stage the request names: of the raw logits, or of what is drawn from."""
    if sampler.params.logprobs_stage == "processed":
        return sampler.probabilities(scores).log()
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)


class _Counts:
    """How often each token stands in the context; follows it as it grows."""

    def __init__(self, size: int, prompt_length: int, device: torch.device) -> None:
        self._seen = torch.zeros(size, dtype=torch.bool, device=device)
        self._output = torch.zeros(size, dtype=torch.float32, device=device)
        self._prompt_length = prompt_length
        self._length = 0

    def of(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """([V] seen at all, [V] occurrences behind the prompt)."""
        new = upload(context[self._length :], self._seen.device)
        self._seen[new] = True
        generated = new[max(0, self._prompt_length - self._length) :]
        self._output.index_add_(0, generated, torch.ones_like(generated, dtype=torch.float32))
        self._length = len(context)
        return self._seen, self._output


def forbid_repeats(scores: Tensor, prefixes: Sequence[Sequence[int]], size: int) -> Tensor:
    """Every token that would repeat an n-gram of this size of its prefix gets -inf; size 0 forbids nothing."""
    if size == 0:
        return scores
    scores = scores.clone()
    for row, prefix in enumerate(prefixes):
        start = len(prefix) - size + 1
        if start < 0:
            continue
        tail = list(prefix[start:])
        banned = [prefix[i + size - 1] for i in range(start) if list(prefix[i : i + size - 1]) == tail]
        scores[row, banned] = float("-inf")
    return scores


def softmax(scores: Tensor, temperature: float) -> Tensor:
    """[R, V] softmax of scores / temperature."""
    return torch.softmax(scores if temperature == 1 else scores / temperature, -1)


def probabilities(scores: Tensor, params: SamplingParams, stages: Stages | None = None) -> Tensor:
    """[R, V]: softmax of scores / temperature, filtered. Without `stages` the reference forms."""
    if params.temperature == 0:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)
    stages = stages or Stages(softmax, nucleus_by_sort)
    if 0 < params.top_k < scores.shape[-1]:
        last = scores.topk(params.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < last, float("-inf"))
    probs = stages.softmax(scores, params.temperature)
    if params.top_p < 1:
        probs = _keep(probs, probs >= stages.nucleus(probs, params.top_p))
    if params.min_p > 0:
        probs = _keep(probs, probs >= params.min_p * probs.amax(-1, keepdim=True))
    if params.typical_p < 1:
        probs = _keep(probs, _typical(probs, params.typical_p))
    return probs


def _keep(probs: Tensor, kept: Tensor) -> Tensor:
    probs = torch.where(kept, probs, 0)
    return probs / probs.sum(-1, keepdim=True)


def nucleus_by_sort(probs: Tensor, top_p: float) -> Tensor:
    """[R, 1]: the smallest probability in the smallest set of likeliest tokens that holds the mass top_p."""
    ordered = probs.sort(dim=-1, descending=True).values
    return nucleus_threshold(ordered, top_p)


def nucleus_threshold(ordered: Tensor, top_p: float) -> Tensor:
    """[R, 1] of the likeliest probabilities in descending order (nucleus sampling, Holtzman et al. 1904.09751)."""
    mass = ordered.cumsum(-1, dtype=torch.float64)
    last = (mass < top_p).sum(-1, keepdim=True).clamp(max=ordered.shape[-1] - 1)
    return ordered.gather(-1, last)


def _typical(probs: Tensor, typical_p: float) -> Tensor:
    """[R, V] bool: tokens whose surprise is nearest the entropy, up to that mass (Meister et al. 2202.00666)."""
    surprise = -probs.log()
    entropy = torch.where(probs > 0, probs * surprise, 0).sum(-1, keepdim=True)
    distance = torch.where(probs > 0, (surprise - entropy).abs(), float("inf"))
    ordered, order = distance.sort(dim=-1)
    mass = probs.gather(-1, order).cumsum(-1, dtype=torch.float64)
    last = (mass < typical_p).sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)
    return (distance <= ordered.gather(-1, last)) & (probs > 0)
