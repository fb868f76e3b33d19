"""A small model for `model.generate(custom_generate=…)`, and what its tests share."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor

V = 96


def build() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    made = LlamaForCausalLM(config).eval()
    made.generation_config = GenerationConfig(pad_token_id=0)
    return made


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


PROMPT = ids([5, 6, 7, 5, 6])


def forbid_behind(length: int) -> Any:
    class Forbid(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores - float("inf") if input_ids.shape[1] > length else scores

    return Forbid()
