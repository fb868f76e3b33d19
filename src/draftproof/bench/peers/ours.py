"""draftproof itself among its peers: each target with each drafter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch

from draftproof import catalog, specs
from draftproof.bench.methods import Answer
from draftproof.bench.ours import EngineMethod
from draftproof.bench.peers.base import PeerMethod, Setting, thread_settings, with_plain
from draftproof.catalog import Loaded, Place
from draftproof.types import SamplingParams, Segment

_BITS = {"int8": 8, "int4": 4}


class Targets:
    """Loaded models by spec and thread count, shared by the drafters."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, int], Loaded] = {}

    def get(self, spec: str, threads: int) -> Loaded:
        """The model with so many threads. InputError where it cannot be loaded."""
        if (spec, threads) not in self._loaded:
            self._loaded[spec, threads] = catalog.load_model(spec, Place(threads=threads))
        return self._loaded[spec, threads]

    def keep(self, used: Collection[tuple[str, int]]) -> None:
        """Free all others."""
        self._loaded = {key: loaded for key, loaded in self._loaded.items() if key in used}


class OurMethod:
    """One target with one drafter, greedy, at its best thread count."""

    counts = True

    def __init__(self, spec: str, drafter: str, targets: Targets, threads: Sequence[int]) -> None:
        """InputError for what cannot be loaded or does not fit together."""
        self.spec, self.drafter = spec, drafter
        self.plain: PeerMethod | None = None
        self._targets, self._counts = targets, threads
        self.use(self.settings()[0])
        dtype = targets.get(spec, threads[0]).model.dtype
        self.bits = _BITS.get(dtype, 16)
        eight = specs.parse(spec).options.get("activations") == "int8"
        self.name = f"draftproof {dtype}{'/int8' if eight else ''} {drafter}"

    def settings(self) -> Sequence[Setting]:
        """Thread counts."""
        return thread_settings(self._counts)

    def use(self, setting: Setting) -> None:
        """Another thread count is another packed copy of the weights."""
        self.threads = int(setting["threads"])
        loaded, place = self._targets.get(self.spec, self.threads), Place(threads=self.threads)
        # A model with threads of its own leaves one to PyTorch, which samples.
        self._torch_threads = 1 if getattr(loaded.model, "threads", None) is not None else self.threads
        torch.set_num_threads(self._torch_threads)
        engine = catalog.engine_for(loaded, self.drafter, "auto", place)
        self._inner = EngineMethod(self.drafter, engine, SamplingParams())

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        """InputError where no token can follow."""
        torch.set_num_threads(self._torch_threads)
        return self._inner.answer(prompt, max_tokens, seed)

    def margin(self, context: Sequence[int], ours: int, theirs: int) -> float:
        """How much higher the target scores one token than another behind this context, in logits."""
        model = self._inner.engine.target
        tokens = torch.tensor(list(context)).to(model.device)
        (output,) = model.forward([Segment(model.new_cache(), tokens, tuple(range(-1, len(tokens) - 1)), rows=1)])
        row = output.logits[0].float()
        return float(row[ours] - row[theirs])

    def close(self) -> None:
        """The weights belong to the targets."""
        self._inner.close()


def methods(own: Sequence[str], drafters: Sequence[str], targets: Targets, threads: Sequence[int]) -> list[OurMethod]:
    """Every target with every drafter; of each target the null drafter comes first."""
    wanted = dict.fromkeys(["null", *drafters])
    made: list[OurMethod] = []
    for spec in dict.fromkeys(own):
        group = [OurMethod(spec, drafter, targets, threads) for drafter in wanted]
        with_plain(group)
        made += group
    seen = Counter[str]()
    for method in made:
        seen[method.name] += 1
        if seen[method.name] > 1:
            method.name += f" ({seen[method.name]})"
    return made
