"""`draftproof check`: what a target can do and needs, whether a draft model fits it, and what drafting would bring."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.options import Device, Dtype, Json, Threads

if TYPE_CHECKING:
    from draftproof.catalog import Loaded, Place
    from draftproof.cli.check_forecast import Outlook
    from draftproof.vocab import Pairing

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Do a target and a draft model fit together, what do they need, and will drafting pay here?

How the vocabularies relate is one of: same; same up to padding; N ids differ; different tokenizers.

The forecast measures what target calls and drafts cost on this machine, and what the target takes of them on 20 \
prompts of the project's own; it computes the speed-up of decoding with a 95 % interval over prompts, for the drafter \
named or for every one the target can have, and recommends drafter, rule and γ, or none. A low-bit copy is made first \
where there is none yet, once.

Exit code 0 for what can be used, 2 for what is refused.
"""
_KINDS = {"same": "same", "padding": "same up to padding", "differ": "n ids differ", "different": "different tokenizer"}
_LABELS = (
    "model",
    "vocabulary",
    "special ids",
    "chat template",
    "context",
    "layers",
    "runs on",
    "weights",
    "KV cache",
    "KV, full context",
    "can",
)
_CAN = {
    "rollback": "rolls its cache back",
    "tree": "scores trees",
    "hidden": "gives hidden states",
    "early_exit": "stops after a layer (early-exit drafter)",
    "lowbit": "drafts with a low-bit copy of itself (lowbit drafter)",
    "invariant": "same bits whatever shares the call",
}


@app.command(help=HELP)
def command(
    target: Annotated[str, typer.Argument(help="Target model: native:FOLDER, hf:FOLDER, toy:SEED, or a folder (hf:).")],
    draft: Annotated[str | None, typer.Argument(help="Draft model, or a drafter such as early-exit:layer=8.")] = None,
    no_forecast: Annotated[bool, typer.Option("--no-forecast", help="Only whether they fit: nothing is run.")] = False,
    temperature: Annotated[float, typer.Option(metavar="T", help="Of the forecast; 0 is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=2, max=1024, help="New tokens a prompt.")] = 64,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Load both, compare, forecast, print."""
    from draftproof import catalog, specs
    from draftproof.cli import check_forecast, setup
    from draftproof.types import SamplingParams

    SamplingParams(temperature=temperature)
    place = setup.settle(device, dtype, threads)
    loaded = setup.load_target(target, place)
    facts, fit = {"target": _facts(loaded)}, Fit()
    if draft is not None:
        spec = draft if specs.parse(draft.partition("+")[0]).name in catalog.drafters() else f"model:{draft}"
        fit, own = _fit(spec, loaded, place)
        facts |= own
    if not json:
        _print(facts, fit)
    seen = None
    if fit.problem is None and not no_forecast:
        question = check_forecast.Question(target, fit.spec, temperature, max_tokens)
        seen = check_forecast.outlook(question, loaded, place)
    if json:
        _print_json(facts, fit, seen)
    elif seen is not None:
        check_forecast.show_outlook(seen)
    if fit.problem is not None:
        raise typer.Exit(2)


@dataclass(frozen=True)
class Fit:
    """The drafter asked for, how its vocabulary relates to the target's, and why it is refused."""

    spec: str | None = None
    pairing: Pairing | None = None
    problem: str | None = None


def _fit(spec: str, target: Loaded, place: Place) -> tuple[Fit, dict[str, dict[str, Any]]]:
    """Does this drafter fit the target, and the facts of its model, which is let go again."""
    from draftproof import catalog, specs
    from draftproof.cli import setup
    from draftproof.entries import find, split

    for link in map(specs.parse, specs.links(spec, catalog.drafters())):
        entry = find("drafter", catalog.drafters(), link.name)
        specs.convert(split(link, entry), entry.options)
    model = catalog.inner(spec)
    if model is None:
        return Fit(spec, None, _drafter(spec, target, place)), {}
    draft = setup.load_target(model, catalog.place_of_draft(model, place))
    return Fit(spec, *_pair(target, draft)), {"draft": _facts(draft)}


def _pair(target: Loaded, draft: Loaded) -> tuple[Pairing | None, str | None]:
    """The pairing of two vocabularies, and why it is refused."""
    from draftproof.types import InputError
    from draftproof.vocab import compare

    if target.text is None or draft.text is None:
        return None, "one of the models has no tokenizer, so their ids cannot be compared."
    pairing = compare(target.text, draft.text, target.model.vocab_size, draft.model.vocab_size)
    try:
        pairing.refuse_if_different()
    except InputError as error:
        return pairing, str(error)
    return pairing, None


def _drafter(spec: str, target: Loaded, place: Place) -> str | None:
    """Why this drafter cannot be used with the target; it has no vocabulary of its own."""
    from draftproof import catalog
    from draftproof.cli import setup
    from draftproof.types import InputError

    try:
        with setup.reporting(place, "loading the drafter") as place:
            catalog.load_drafter(spec, target, place)
    except InputError as error:
        return str(error)
    return None


def _facts(loaded: Loaded) -> dict[str, Any]:
    """What there is to know about one model; memory in bytes."""
    from draftproof.cli.setup import threads_of

    model, text = loaded.model, loaded.text
    tokenizer = None if text is None else text.tokenizer
    special = (
        {}
        if tokenizer is None
        else {
            "start": tokenizer.bos_token_id,
            "end": list(text.eos_ids),
            "unknown": tokenizer.unk_token_id,
            "padding": tokenizer.pad_token_id,
        }
    )
    memory = model.memory() if hasattr(model, "memory") else {}
    if "kv_per_token" in memory and model.max_context is not None:
        memory["kv_full_context"] = memory["kv_per_token"] * model.max_context + memory.get("kv_window", 0)
    return {
        "name": model.name,
        "vocab_size": model.vocab_size,
        "tokens": None if text is None else sum(token is not None for token in text.tokens),
        "special_ids": special,
        "chat_template": tokenizer is not None and bool(tokenizer.chat_template),
        "max_context": model.max_context,
        "num_layers": model.num_layers,
        "device": str(model.device),
        "dtype": loaded.model.dtype,
        "threads": threads_of(model) if model.device.type == "cpu" else None,
        "memory": memory,
        "can": sorted(model.can),
    }


def _print_json(models: dict[str, dict[str, Any]], fit: Fit, seen: Outlook | None) -> None:
    from draftproof.cli import check_forecast, show

    report: dict[str, Any] = {**models, "usable": fit.problem is None, "problem": fit.problem}
    if fit.pairing is not None:
        pairing = fit.pairing
        differences = [{"id": d.id, "target": d.target, "draft": d.draft} for d in pairing.differences]
        report |= {
            "vocabularies": _KINDS[pairing.kind],
            "num_differences": pairing.num_differences,
            "differences": differences,
            "proposable": sum(pairing.allowed),
        }
    report |= {"forecast": None, "forecast_note": None} if seen is None else check_forecast.report(seen)
    show.print_json(report)


def _print(models: dict[str, dict[str, Any]], fit: Fit) -> None:
    from draftproof.cli import show

    out = show.console(sys.stdout)
    rows = show.table("", *models)
    for label, cells in zip(_LABELS, zip(*(_cells(facts) for facts in models.values()), strict=True), strict=True):
        rows.add_row(label, *cells)
    out.print(rows)
    out.print()
    if fit.pairing is not None and fit.problem is None:
        _print_pairing(fit.pairing)
    if fit.problem is not None:
        out.print(f"refused: {fit.problem}", style="red")
    elif fit.spec is not None:
        out.print(f"usable: --drafter {fit.spec}", style="green")
        out.print()


def _print_pairing(pairing: Pairing) -> None:
    from draftproof.cli import show

    out = show.console(sys.stdout)
    if pairing.kind != "differ":
        out.print(str(pairing))
        return
    out.print(f"{show.count(pairing.num_differences, 'id')} differ: never proposed, so the output stays the target's.")
    rows = show.table(">id", "target", "draft")
    for difference in pairing.differences:
        rows.add_row(str(difference.id), difference.target or "no token", difference.draft or "no token")
    out.print(rows)


def _cells(facts: dict[str, Any]) -> list[str]:
    """The facts in the order of _LABELS, for a reader."""
    from draftproof.cli.show import count, size

    memory, special = facts["memory"], facts["special_ids"]
    ends = ", ".join(str(i) for i in special.get("end", ())) or "none"
    threads = [] if facts["threads"] is None else [count(facts["threads"], "thread")]
    return [
        facts["name"],
        f"{facts['vocab_size']:,} rows, {_number(facts['tokens'])} tokens",
        f"start {_number(special.get('start'))}, end {ends}, unknown {_number(special.get('unknown'))}",
        "yes" if facts["chat_template"] else "no",
        "no limit" if facts["max_context"] is None else f"{facts['max_context']:,} tokens",
        str(facts["num_layers"]),
        ", ".join([facts["device"], facts["dtype"], *threads]),
        size(memory["weights"]) if "weights" in memory else "not reported",
        f"{size(memory['kv_per_token'])} a token" if "kv_per_token" in memory else "not reported",
        size(memory["kv_full_context"]) if "kv_full_context" in memory else "not reported",
        "\n".join(text for name, text in _CAN.items() if name in facts["can"]),
    ]


def _number(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"
