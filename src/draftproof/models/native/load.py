"""Hugging Face folders to native models."""

from __future__ import annotations

import os
from pathlib import Path

from draftproof import _kernels
from draftproof.files import folder_at, refusing
from draftproof.models.native.build import PANEL, Builder
from draftproof.models.native.checkpoint import Checkpoint
from draftproof.models.native.config import DecoderSpec, read_config
from draftproof.models.native.grid import GROUP
from draftproof.models.native.lowbit import make_twin
from draftproof.models.native.model import NativeModel, Source
from draftproof.models.native.pack import ActivationFormat, WeightFormat, check_formats
from draftproof.types import InputError


def load_native(
    path: str | Path,
    weights: WeightFormat = "bf16",
    activations: ActivationFormat = "f32",
    threads: int | None = None,
    isa: str = "auto",
) -> NativeModel:
    """The model in a Hugging Face folder, its weights packed for the CPU kernels.

    weights      bf16 (exact for a bf16 checkpoint), f32, int8 (a scale an output) or int4 (scale and minimum a group
                 of 32; embedding and head int8). Each is a target of its own. In a folder on a grid (`grid.py`) int4
                 holds every weight exactly, what is on no grid as bf16 or f32; int8 holds grids of eight bits so
    activations  int8 quantises the inputs of every matrix by row and group of 32; needs int8 or int4 weights
    threads      default: the physical cores
    isa          kernels to use, of `draftproof._kernels.isas()`; `auto` is the best this machine has

    Raises InputError for anything in the folder that cannot be used.
    """
    folder = folder_at(path)
    check_formats(weights, activations)
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"threads must lie between 1 and 1024, not {threads}.")
    if isa not in ("auto", *_kernels.isas()):
        raise InputError(f"isa must be auto or one of {', '.join(_kernels.isas())} on this machine, not {isa}.")
    spec = read_config(folder)
    _check_sizes(spec, weights)
    threads = threads or physical_cores()
    with refusing(f"{folder} cannot be loaded"), Checkpoint(folder) as checkpoint:
        config, layers = Builder(spec, checkpoint, weights, activations).build()
        compiled = _kernels.Model(config, layers, isa, threads)
    name = f"native:{folder},weights={weights}" + (",activations=int8" if activations == "int8" else "")
    return NativeModel(name, spec, compiled, Source(folder, config, weights, threads, make_twin))


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads counted once."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(topology.read_text(encoding="ascii") if topology.is_file() else str(cpu))
    return max(1, len(siblings))


def _check_sizes(spec: DecoderSpec, weights: str) -> None:
    unit = GROUP if weights in ("int8", "int4") else PANEL
    sizes = {
        "hidden_size": (spec.hidden, unit),
        "intermediate_size": (spec.intermediate, unit),
        "head_dim": (spec.head_dim, PANEL),
        "num_attention_heads * head_dim": (spec.heads * spec.head_dim, unit),
    }
    for name, (size, multiple) in sizes.items():
        if size < multiple or size % multiple:
            raise InputError(f"native: needs {name} in multiples of {multiple}, not {size}; use hf: for this model.")
    if spec.heads % spec.kv_heads:
        raise InputError("num_attention_heads must be a multiple of num_key_value_heads; check config.json.")
