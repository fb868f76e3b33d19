"""`draftproof bench cost`: time of a target call by the number of its tokens, and the memory bandwidth beside it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.benching import ReportOptions
from draftproof.cli.options import Device, Dtype, Threads, grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftproof.bench.cost import Contender
    from draftproof.catalog import Place
    from draftproof.contracts import Model

_DIGITS = 7
# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Time a target call over 1 ... 16 tokens, for one or more models side by side.

Speculation pays where a call over several tokens costs little more than over one. The speed of reading the weights \
once is put beside the memory bandwidth, which is measured in the same run.
"""


@grouped
def command(
    output: ReportOptions,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="native:FOLDER, hf:FOLDER; without one the demo's.")
    ] = None,
    tokens: Annotated[str, typer.Option(metavar="LIST", help="Tokens of a call, such as 1-8,12,16.")] = "1-16",
    contexts: Annotated[str, typer.Option(metavar="LIST", help="Context lengths before it.")] = "100,1000",
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Calls of each kind.")] = 9,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    threads: Threads = None,
) -> None:
    """Load, measure, tell."""
    output.check()
    from draftproof.bench import cost
    from draftproof.bench.provenance import provenance
    from draftproof.cli import bench_tables, benching, setup, show

    plan = cost.Plan(_numbers("--tokens", tokens), _numbers("--contexts", contexts), repeats)
    origin = provenance()
    contenders = load(models or [""], setup.settle(device, dtype, threads))
    with show.Bar("timing target calls", plan.size * len(contenders)) as bar:
        curves, bandwidth = cost.measure(contenders, plan, bar.update)
    report = {"kind": "cost", "repeats": repeats, **cost.report(contenders, curves, bandwidth)}
    report |= {"notes": benching.busy(origin), "provenance": origin}
    benching.deliver(report, output, lambda: bench_tables.show_cost(report, output.markdown, output.color))


def load(specs: Sequence[str], place: Place) -> list[Contender]:
    """The models under their names, told apart by a number where two have the same."""
    import torch

    from draftproof.bench.cost import Contender
    from draftproof.cli.setup import load_target

    shared, seen = torch.get_num_threads(), Counter[str]()
    made = []
    for spec in specs:
        model = load_target(spec, place).model
        name = short(spec or model.name)
        seen[name] += 1
        threads, own = torch_threads(model, place, shared), getattr(model, "threads", None)
        made.append(Contender(name if seen[name] == 1 else f"{name} ({seen[name]})", model, own or threads, threads))
    return made


def torch_threads(model: Model, place: Place, most: int) -> int:
    """PyTorch's threads while this model runs: one beside threads of its own, else those asked for, else the better
    of one and `most`."""
    from draftproof.bench.cost import best_threads

    if getattr(model, "threads", None) is not None:
        return 1
    if place.threads is not None or most == 1 or model.device.type != "cpu":
        return place.threads or most
    return best_threads(model, most)


def short(name: str) -> str:
    """A spec or a model's name, its folders left out: `model:hf:a/b/c,gamma=5` -> `model:hf:c,gamma=5`."""
    import re

    return re.sub(r"[^:,=]*[/\\](?=[^/\\,])", "", name.rstrip("/\\"))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """`1-4,8` -> 1, 2, 3, 4, 8."""
    from draftproof.files import shortened
    from draftproof.types import InputError

    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"{option} takes whole numbers and ranges such as 1-8,12,16, not {shortened(text)!r}.")
        ends = [int(end[:_DIGITS]) for end in (first, last or first)]
        if not 1 <= ends[0] <= ends[1] < 10 ** (_DIGITS - 1):
            raise InputError(
                f"{option} takes numbers between 1 and {10 ** (_DIGITS - 1) - 1:,}, not {shortened(text)}."
            )
        found += range(ends[0], ends[1] + 1)
    return tuple(dict.fromkeys(found))
