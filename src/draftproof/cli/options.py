"""Options that several commands share, as dataclasses: `grouped` puts their fields on a command line.

Nothing heavy is imported here, so that help is quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from draftproof.types import SamplingParams


def _option(*names: str, panel: str | None = None, metavar: str | None = None, help: str) -> Any:
    return typer.Option(*names, rich_help_panel=panel, metavar=metavar, help=help, show_default=True)


# Far beyond every logit, and small enough that penalty and temperature keep it finite in float32.
_MOST_BIAS = 1e6
_model = partial(_option, panel="Models and method")
_sampling = partial(_option, panel="Sampling")
_ends = partial(_option, panel="Length and ends")
_output = partial(_option, panel="Output")

Json = Annotated[bool, _output("--json", help="Print JSON; the last line on standard output is one object.")]
Color = Annotated[bool | None, _output("--color/--no-color", help="Without it colours in a terminal only.")]
Logprobs = Annotated[
    int | None, _output(metavar="N", help="With --json: the target's log-probabilities and the N likeliest tokens.")
]
Device = Annotated[str, _model(help="cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[str, _model(help="Of hf: models: auto (that of the files), float32, bfloat16 or float16.")]
Threads = Annotated[int | None, _model(metavar="N", help="CPU threads; without it the backend chooses.")]


@dataclass(frozen=True)
class ModelOptions:
    """What runs, and where."""

    target: Annotated[
        str,
        _model(metavar="SPEC", help="Target model: native:FOLDER, hf:FOLDER or toy:SEED; without it the demo's model."),
    ] = ""
    drafter: Annotated[
        str,
        _model(
            metavar="SPEC",
            help="null, ngram, model:hf:FOLDER, early-exit:layer=N, eagle:FOLDER, lowbit; see draftproof list. Without"
            " it ngram+lowbit for the demo's model, ngram for others.",
        ),
    ] = ""
    rule: Annotated[str, _model(metavar="NAME", help="Verification rule: auto, token, block, tree or coupled.")] = (
        "auto"
    )
    gamma: Annotated[int | None, _model(metavar="N", help="Draft tokens a step, at most.")] = None
    speculative: Annotated[bool, _model("--speculative/--no-speculative", help="Draft, or decode plainly.")] = True
    device: Device = "cpu"
    dtype: Dtype = "auto"
    threads: Threads = None


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen and when the text ends."""

    temperature: Annotated[float, _sampling(metavar="T", help="0 is greedy.")] = 0.0
    top_k: Annotated[int, _sampling(metavar="N", help="Keep the N likeliest tokens; 0 keeps all.")] = 0
    top_p: Annotated[float, _sampling(metavar="P", help="Keep the likeliest tokens up to this mass.")] = 1.0
    min_p: Annotated[float, _sampling(metavar="P", help="Keep tokens above this share of the likeliest one's.")] = 0.0
    typical_p: Annotated[float, _sampling(metavar="P", help="Keep the most typical tokens up to this mass.")] = 1.0
    repetition_penalty: Annotated[float, _sampling(metavar="X", help="Over prompt and output; 1 is off.")] = 1.0
    presence_penalty: Annotated[float, _sampling(metavar="X", help="Off a token that the output has.")] = 0.0
    frequency_penalty: Annotated[float, _sampling(metavar="X", help="Off, for each time the output has it.")] = 0.0
    no_repeat_ngram: Annotated[int, _sampling(metavar="N", help="No N tokens in a row twice; 0 is off.")] = 0
    logit_bias: Annotated[
        list[str] | None, _sampling(metavar="ID=VALUE", help="Added to a token's logit; may be repeated.")
    ] = None
    seed: Annotated[int | None, _sampling(metavar="N", help="Without it a fresh one, which --json reports.")] = None
    max_tokens: Annotated[int, _ends(metavar="N", help="New tokens at most.")] = 256
    min_tokens: Annotated[int, _ends(metavar="N", help="No end token before so many new ones.")] = 0
    stop: Annotated[list[str] | None, _ends(metavar="TEXT", help="End before this text; may be repeated.")] = None
    stop_token: Annotated[list[int] | None, _ends(metavar="ID", help="End at this token; may be repeated.")] = None

    def params(self, models: ModelOptions, logprobs: int | None = None) -> SamplingParams:
        """As the engine takes them. InputError for a value out of range."""
        from draftproof.types import SamplingParams

        given = {item.name: getattr(self, item.name) for item in fields(self)}
        values: dict[str, Any] = {item.name: given[item.name] for item in fields(SamplingParams) if item.name in given}
        values |= {
            "logit_bias": tuple(_bias(entry) for entry in self.logit_bias or ()),
            "stop_tokens": tuple(self.stop_token or ()),
            "stop_strings": tuple(self.stop or ()),
        }
        return SamplingParams(**values, logprobs=logprobs, speculative=models.speculative, gamma=models.gamma)


@dataclass(frozen=True)
class OutputOptions:
    """How results are shown."""

    json: Json = False
    color: Color = None


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """A function whose parameters annotated with an options dataclass are that class's fields for typer."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in groups
    ]
    for kind in groups.values():
        parameters += _parameters(kind)

    def command(**values: Any) -> None:
        made = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        function(**values, **made)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in fields(kind)
    ]


def _bias(entry: str) -> tuple[int, float]:
    from draftproof.types import InputError

    token, _, value = entry.partition("=")
    try:
        bias = int(token), float(value)
    except ValueError:
        raise InputError(f"write --logit-bias as ID=VALUE, for example 42=-1.5, not {entry}.") from None
    if not bias[1] <= _MOST_BIAS:
        raise InputError(
            f"the bias of token {token} must be a number up to {_MOST_BIAS:.0f} (-inf forbids), not {value}."
        )
    return bias
