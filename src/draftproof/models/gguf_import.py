"""`draftproof import`: a GGUF file becomes a normal Hugging Face folder, once, so that later loads are quick."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from draftproof.files import refusing
from draftproof.models import gguf_weights
from draftproof.models.gguf_config import Metadata, model_config
from draftproof.models.gguf_file import open_gguf
from draftproof.models.gguf_tokenizer import end_tokens, load_tokenizer
from draftproof.models.native.grid import FILES
from draftproof.types import InputError

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of the whole that is done, 0 to 1."""

_SHARD_BYTES = 4 << 30
_LEAVES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LEAVES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Rotation tables: their content is in the configuration.
_TABLES = re.compile(r"rope_freqs\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)(\.weight)?")


def import_gguf(
    path: str | Path,
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
    keep_quantized: bool = False,
) -> Path:
    """Convert a Llama-, Qwen2-, Qwen3- or Gemma-3-family GGUF file; returns the folder.

    out_dir   where to; beside the file, under its name without ending, where None. It must not exist
    weights   bfloat16; float32 or float16 where the file's matrices are all stored so, which keeps them exact.
              With keep_quantized all are exact: Q4_0, Q4_1 and Q8_0 stay on their grid (`native/grid.py`), for
              `native:`, and the others have the smallest type that holds them
    A conversion that stops half-way leaves nothing behind. InputError for a file that cannot be used.
    """
    report = progress or (lambda what, share: None)
    source = Path(path)
    folder = source.with_suffix("") if out_dir is None else Path(out_dir)
    if folder.exists():
        raise InputError(f"{folder} exists already; remove it or name another folder.")
    report("reading the file", 0.0)
    meta = Metadata(open_gguf(source), source.name)
    with refusing(f"{source.name} cannot be imported"):
        settings = model_config(meta)
    with _finished_or_absent(folder) as work:
        dtype = None if keep_quantized else _dtype(meta)
        with refusing(f"{source.name} cannot be imported"):
            plan = _plan(meta, settings, dtype or torch.float32, work)
            if keep_quantized and not any(gguf_weights.on_grid(tensor) for _, tensor in plan):
                raise meta.refuse("none of its matrices is Q4_0, Q4_1 or Q8_0; import it without --keep-quantized")
            report("converting the tokenizer", 0.02)
            _write_texts(source, meta, work)
        _write_weights(meta, plan, dtype, work, report)
    report("done", 1.0)
    return folder


@contextmanager
def _finished_or_absent(folder: Path) -> Iterator[Path]:
    """A work folder that takes its final name only when everything in it is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        yield work
        # Temporary folders and safetensors files are made private; the result is as readable as any other file.
        mask = _umask()
        work.chmod(0o777 & ~mask)
        for file in work.iterdir():
            file.chmod(0o666 & ~mask)
        os.rename(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _dtype(meta: Metadata) -> torch.dtype:
    """What holds the file's matrices: exactly where they are all F32 or F16, else bfloat16."""
    kinds = {tensor.tensor_type.name for tensor in meta.tensors.values() if len(tensor.shape) > 1}
    if kinds == {"F32"}:
        return torch.float32
    return torch.float16 if kinds <= {"F16", "F32"} else torch.bfloat16


def _plan(meta: Metadata, settings: dict[str, Any], dtype: torch.dtype, work: Path) -> list[tuple[str, Any]]:
    """(name in transformers, GGUF tensor) of every weight; writes config.json.

    InputError unless the file has exactly the weights of the model that the configuration describes.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        wanted.pop("lm_head.weight", None)
    names = {_hf_name(meta, name): name for name in meta.tensors if not _TABLES.fullmatch(name)}
    if missing := [name for name in wanted if name not in names]:
        raise meta.refuse(f"{len(missing)} of its weights are missing, the first is {missing[0]}")
    if extra := [gguf for name, gguf in names.items() if name not in wanted]:
        raise meta.refuse(f"its tensor {extra[0]} has no place in a {meta.architecture} model")
    plan = [(name, meta.tensors[names[name]]) for name in wanted]
    for name, tensor in plan:
        if (shape := tuple(int(n) for n in reversed(tensor.shape))) != wanted[name]:
            raise meta.refuse(f"its tensor {tensor.name} has shape {list(shape)}, not {list(wanted[name])}")
    config.architectures = [type(model).__name__]
    config.dtype = dtype
    config.save_pretrained(work)
    return plan


def _hf_name(meta: Metadata, name: str) -> str:
    """The transformers name of a GGUF tensor; an unknown one keeps its own, which no model has."""
    leaves = _LEAVES | (_GEMMA_LEAVES if meta.architecture == "gemma3" else {})
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        leaf = leaves.get(match[2])
        return name if leaf is None else f"model.layers.{match[1]}.{leaf}.{match[3]}"
    stem, _, suffix = name.rpartition(".")
    return f"{_TOP[stem]}.{suffix}" if stem in _TOP else name


def _write_texts(source: Path, meta: Metadata, work: Path) -> None:
    """Tokenizer files and generation_config.json."""
    from transformers import GenerationConfig

    tokenizer = load_tokenizer(source, meta)
    tokenizer.model_max_length = int(meta.need("context_length"))
    for key in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.save_pretrained(work)
    ends = end_tokens(meta)
    GenerationConfig(
        bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
        pad_token_id=meta.get("tokenizer.ggml.padding_token_id"),
        eos_token_id=ends or None,
    ).save_pretrained(work)


def _write_weights(
    meta: Metadata, plan: list[tuple[str, Any]], dtype: torch.dtype | None, work: Path, report: Progress
) -> None:
    """Safetensors, in shards of at most 4 GiB with an index where there are several; dtype None keeps the grids."""
    from safetensors.torch import save_file

    shards, stem = _shards(meta, plan, dtype), FILES if dtype is None else "model"
    total, done = sum(int(t.n_elements) for _, t in plan), 0
    where: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        name = f"{stem}.safetensors" if len(shards) == 1 else f"{stem}-{i:05d}-of-{len(shards):05d}.safetensors"
        weights: dict[str, torch.Tensor] = {}
        for weight, tensor in shard:
            weights |= gguf_weights.parts(meta, weight, tensor, dtype)
            done += int(tensor.n_elements)
            report("converting the weights", 0.05 + 0.95 * done / total)
        with refusing(f"{name} cannot be written"):
            save_file(weights, work / name, metadata={"format": "pt"})
        where |= dict.fromkeys(weights, name)
    if len(shards) > 1:
        size = sum(gguf_weights.size(meta, tensor, dtype) for _, tensor in plan)
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (work / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def _shards(meta: Metadata, plan: list[tuple[str, Any]], dtype: torch.dtype | None) -> list[list[tuple[str, Any]]]:
    shards: list[list[tuple[str, Any]]] = [[]]
    size = 0
    for weight, tensor in plan:
        more = gguf_weights.size(meta, tensor, dtype)
        if shards[-1] and size + more > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((weight, tensor))
        size += more
    return shards
