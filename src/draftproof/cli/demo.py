"""`draftproof demo`: three prompts, each decoded plainly and with speculation, and a table of both."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.options import ModelOptions, OutputOptions, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from draftproof.cli.compare import Comparison, OnStep, Run
    from draftproof.cli.setup import Setup
    from draftproof.prompts import Prompt
    from draftproof.run import Piece
    from draftproof.types import Step

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Three prompts on a real model, each decoded plainly and with speculation.

The first call fetches a model of 94 MB (SmolLM2-135M-Instruct, Apache-2.0) and converts it; --target names another.
"""
PROMPTS = ("chat-1", "rewriting-5", "code-1")


@app.command(help=HELP)
@grouped
def command(
    models: ModelOptions,
    output: OutputOptions,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens a prompt at most.")] = 96,
) -> None:
    """Load, warm up, run, tell."""
    from draftproof.cli import compare, setup, show
    from draftproof.prompts import bundled
    from draftproof.types import InputError

    if max_tokens < 1:
        raise InputError(f"--max-tokens must be at least 1, not {max_tokens}.")
    by_id = {prompt.id: prompt for prompt in bundled()}
    prompts = [by_id[name] for name in PROMPTS]
    loaded = setup.load(models, setup.Texts.of(prompts, max_tokens))
    comparisons = _run(loaded, prompts, max_tokens, Screen(output))
    if output.json:
        show.print_json({**compare.report(comparisons), **loaded.described(max_tokens)})
        return
    out = show.console(sys.stdout, output.color)
    out.print()
    out.print(compare.as_table(comparisons))
    out.print()
    for sentence in compare.summary(comparisons):
        out.print(sentence)


def _run(setup: Setup, prompts: Sequence[Prompt], max_tokens: int, screen: Screen) -> list[Comparison]:
    """Plain and speculative in turn; which one goes first alternates, so that neither has the cooler machine."""
    from draftproof.batch import job_of
    from draftproof.cli import compare, show

    runner = compare.Runner(setup)
    ids = [job_of(setup.text, prompt).encode([]) for prompt in prompts]
    with show.busy("warming up"):
        runner.warm_up(ids[0])
    show.notice(setup.status(max_tokens))
    screen.legend()
    comparisons = []
    for number, (prompt, tokens) in enumerate(zip(prompts, ids, strict=True)):
        screen.title(number + 1, prompt)
        runs: dict[bool, Run] = {}
        for plain in (True, False) if number % 2 == 0 else (False, True):
            with screen.hidden(max_tokens) if plain else screen.streamed() as on_step:
                runs[plain] = runner.run(tokens, max_tokens, plain, on_step)
        comparisons.append(compare.Comparison(prompt.id, prompt.category, runs[True], runs[False]))
        screen.line(comparisons[-1].line())
    return comparisons


class Screen:
    """What is seen while the demo runs; nothing on standard output under --json."""

    def __init__(self, output: OutputOptions) -> None:
        from draftproof.cli import show
        from draftproof.cli.setup import Watch

        self._out, self._silent, self._watch = show.console(sys.stdout, output.color), output.json, Watch()

    def legend(self) -> None:
        """What the colours mean."""
        from draftproof.cli import show

        if not self._silent and self._out.is_terminal and not self._out.no_color:
            self._out.print(show.legend())

    def title(self, number: int, prompt: Prompt) -> None:
        """The prompt that follows, in one line."""
        words = " ".join(prompt.turns[0].split())
        room = self._out.width - len(prompt.category) - 6
        shown = words if len(words) <= room else words[: room - 1] + "…"
        if not self._silent:
            self._out.print(f"\n{number}. {prompt.category}: {shown}", style="bold")

    def line(self, text: str) -> None:
        """Something about what has just been seen."""
        if not self._silent:
            self._out.print(text, style="dim")

    @contextmanager
    def streamed(self) -> Iterator[OnStep]:
        """Shows the text of a run as it comes."""
        from draftproof.cli import show

        wrapped = show.Wrapped(self._out)

        def on_step(step: Step, pieces: Sequence[Piece]) -> None:
            self._watch.see(step)
            for piece in [] if self._silent else pieces:
                wrapped.write(piece)

        yield on_step
        wrapped.end()

    @contextmanager
    def hidden(self, max_tokens: int) -> Iterator[OnStep]:
        """Shows the progress alone: the plain run has the same text."""
        from draftproof.cli import show

        done = 0

        def on_step(step: Step, pieces: Sequence[Piece]) -> None:
            nonlocal done
            done += len(step.tokens)
            bar.update(done)

        with show.Bar("plain decoding of the same prompt", max_tokens) as bar:
            yield on_step
