"""`draftproof generate`: one prompt streams its text, a file of prompts runs as one batch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.options import Logprobs, ModelOptions, OutputOptions, SamplingOptions, grouped

if TYPE_CHECKING:
    from draftproof.batch import Job
    from draftproof.cli.setup import Setup
    from draftproof.prompts import Prompt
    from draftproof.types import SamplingParams

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_PANEL = "Prompt"
# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Generate text for one prompt or a file of prompts.

The text goes to standard output and what is said about it to standard error; --prompts prints one JSON object a reply.

Same distribution: always the target's. Same tokens: plain decoding's, when greedy or with the rule coupled, in float32.
"""


@dataclass(frozen=True)
class PromptOptions:
    """Where the prompt comes from and how it is put."""

    file: Annotated[
        str | None,
        typer.Option(rich_help_panel=_PANEL, metavar="FILE", help="Read the prompt from a file; - is standard input."),
    ] = None
    prompts: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL,
            metavar="FILE.jsonl",
            help="Run all prompts of a file as one batch; bundled or bundled:CATEGORY are the project's own.",
        ),
    ] = None
    raw: Annotated[bool, typer.Option("--raw", rich_help_panel=_PANEL, help="No chat template.")] = False
    system: Annotated[
        str, typer.Option(rich_help_panel=_PANEL, metavar="TEXT", help="System message of the chat template.")
    ] = ""
    max_batch: Annotated[
        int, typer.Option(rich_help_panel=_PANEL, metavar="N", min=1, help="Prompts of a file that run at a time.")
    ] = 32


@app.command(help=HELP)
@grouped
def command(
    source: PromptOptions,
    models: ModelOptions,
    sampling: SamplingOptions,
    output: OutputOptions,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without it --file, --prompts or a pipe.")] = None,
    logprobs: Logprobs = None,
) -> None:
    """Read the prompts, load the engine, run one or many."""
    if logprobs is not None and not output.json and source.prompts is None:
        raise typer.BadParameter("--logprobs goes into the JSON output: add --json.")
    if source.system and source.raw:
        raise typer.BadParameter("--system needs the chat template: drop --raw.")
    prompts = _prompts(prompt, source)
    params = sampling.params(models, logprobs)

    from draftproof.batch import job_of
    from draftproof.cli import batch, setup

    loaded = setup.load(models, setup.Texts.of(prompts, params.max_tokens, source.max_batch))
    jobs = [job_of(loaded.text, one, source.raw, source.system) for one in prompts]
    if source.prompts is None:
        _one(loaded, jobs[0], params, output)
    else:
        batch.run(loaded, batch.Work(prompts, jobs, params, source.max_batch), output.json)


def _one(setup: Setup, job: Job, params: SamplingParams, output: OutputOptions) -> None:
    """Stream the text, then say what it took; or print one object."""
    from draftproof.cli import show
    from draftproof.cli.setup import Watch
    from draftproof.run import Reply, steps
    from draftproof.types import InputError

    ids = job.encode([])
    setup.check_room(len(ids), params.max_tokens)
    reply = Reply(setup.engine, ids, params)
    off = setup.drafting_off(params.max_tokens)
    show.notice(setup.status(params.max_tokens))
    watch = Watch(setup.forewarning(params))
    writer = show.Writer(output.color, plain=off is not None, silent=output.json)
    writer.legend()
    try:
        for step, pieces in steps(setup.engine, reply):
            writer.write(pieces)
            watch.see(step)
    finally:
        writer.write(reply.cancel())
        writer.end()
    result = reply.result()
    watch.end(result.stats, off)
    show.notice(show.statistics(result.stats, result.tokens_per_second))
    if output.json:
        report = result.report(setup.text.label)
        show.print_json({**report, **setup.described(params.max_tokens), "warnings": watch.warnings})
    if result.error is not None:
        raise InputError(result.error)


def _prompts(prompt: str | None, source: PromptOptions) -> list[Prompt]:
    """What to run. InputError, or a usage error, where that is nothing or not clear."""
    from draftproof import prompts
    from draftproof.types import InputError

    given = [
        name
        for name, value in (("PROMPT", prompt), ("--file", source.file), ("--prompts", source.prompts))
        if value is not None
    ]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other: give one.")
    if source.prompts is not None:
        return prompts.read(source.prompts)
    if prompt is None and source.file is None and sys.stdin.isatty():
        raise typer.BadParameter("there is no prompt: give one, or --file, or --prompts.")
    if prompt is not None and prompt != "-":
        text, where = prompts.clean(prompt), "the prompt"
    elif source.file is None or source.file == "-":
        text, where = prompts.read_stdin().removesuffix("\n"), "standard input"
    else:
        text, where = prompts.read_text(source.file).removesuffix("\n"), source.file
    if not text:
        raise InputError(f"{where} is empty: write some text.")
    return [prompts.Prompt((text,), where=where)]
