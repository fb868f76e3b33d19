"""`draftproof chat`: a conversation. One session holds the target's cache, so a turn reads only what is new."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.options import ModelOptions, OutputOptions, SamplingOptions, grouped

if TYPE_CHECKING:
    from draftproof.cli.setup import Setup
    from draftproof.run import Reply, Result
    from draftproof.types import SamplingParams

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Talk with a model; Ctrl-C stops a reply, Ctrl-D or /quit leaves.

/reset begins anew, /stats shows what drafting has brought, a line that ends in a backslash goes on in the next.

From a pipe every line is a message.
"""
_COMMANDS = "/reset, /stats, /quit"


@app.command(help=HELP)
@grouped
def command(
    models: ModelOptions,
    sampling: SamplingOptions,
    output: OutputOptions,
    system: Annotated[str, typer.Option(metavar="TEXT", help="System message.")] = "",
) -> None:
    """Load, then answer line after line."""
    params = sampling.params(models)

    from draftproof.cli import setup, show
    from draftproof.run import has_template
    from draftproof.types import InputError

    loaded = setup.load(models)
    if not has_template(loaded.text):
        raise InputError(f"{loaded.text.name} has no chat template: use draftproof generate --raw.")
    show.notice(loaded.status(params.max_tokens))
    if sys.stdin.isatty():
        show.notice(f"Ctrl-C stops a reply; {_COMMANDS}.")
    chat = Chat(loaded, params, output, system)
    for line in _lines():
        if line in ("/quit", "/exit", "/bye"):
            break
        chat.take(line)
    chat.close()


class Chat:
    """The messages so far and the cache that holds them."""

    def __init__(self, setup: Setup, params: SamplingParams, output: OutputOptions, system: str) -> None:
        from draftproof.cli import show
        from draftproof.cli.setup import Watch

        self._setup, self._params, self._output = setup, params, output
        self._off = setup.drafting_off(params.max_tokens)
        self._writer = show.Writer(output.color, plain=self._off is not None, silent=output.json)
        self._writer.legend()
        self._watch = Watch(setup.forewarning(params))
        self._results: list[Result] = []
        self._opening = [{"role": "system", "content": system}] if system else []
        self._reset()

    def take(self, line: str) -> None:
        """A command, or a message to be answered."""
        from draftproof.cli import show
        from draftproof.types import InputError

        if line == "/reset":
            self._reset()
            show.notice("A new conversation.")
        elif line == "/stats":
            show.notice(self._statistics())
        elif line.startswith("/") and line[1:].isalpha():
            show.notice(f"There is no command {line}: {_COMMANDS}.")
        elif line.strip():
            before = len(self._messages)
            self._messages.append({"role": "user", "content": line})
            try:
                self._answer()
            except InputError as error:
                del self._messages[before:]
                if not sys.stdin.isatty():
                    raise
                show.notice(f"error: {error} /reset begins anew.", "red")

    def close(self) -> None:
        """The last line under --json: everything together."""
        from draftproof.cli import show
        from draftproof.stats import Stats

        if not self._output.json:
            return
        stats = Stats.pooled(result.stats for result in self._results)
        described = self._setup.described(self._params.max_tokens)
        report = {"replies": len(self._results), "speculation": stats.report(), "timing": stats.timing()}
        show.print_json({**report, **described, "warnings": self._watch.warnings})

    def _reset(self) -> None:
        from draftproof.session import Session

        self._messages = list(self._opening)
        self._session = Session(self._setup.engine.target)
        self._tokens = 0

    def _answer(self) -> None:
        """Stream one reply; what has been said of one that is stopped stays in the conversation."""
        from draftproof.cli import show
        from draftproof.run import Reply
        from draftproof.types import InputError

        prompt = self._setup.text.chat(self._messages)
        self._setup.check_room(len(prompt), self._params.max_tokens)
        reply = Reply(self._setup.engine, prompt, self._params, self._session)
        cached = self._stream(reply)
        self._tokens = len(reply.request.context)
        self._messages.append({"role": "assistant", "content": reply.text})
        result = reply.result()
        self._results.append(result)
        if result.finish_reason == "length":
            show.notice(f"(cut at {show.count(len(result.token_ids), 'token')}; see --max-tokens)")
        if self._output.json:
            report = result.report(self._setup.text.label)
            report["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
            show.print_json(report)
        if result.error is not None:
            raise InputError(result.error)

    def _stream(self, reply: Reply) -> int:
        """Show the reply as it comes; the tokens of its prompt that need not be read again."""
        from draftproof.cli import show
        from draftproof.run import steps
        from draftproof.session import Session

        cached, before = 0, self._session.fed
        with _first_interrupt() as interrupted:
            try:
                for step, pieces in steps(self._setup.engine, reply):
                    self._writer.write(pieces)
                    self._watch.see(step)
                    if step.prefill:
                        cached = reply.request.prompt_length - (self._session.fed - before)
                    if interrupted:
                        break
            except KeyboardInterrupt:
                # A call was cut off in the middle, so the cache no longer is what the session says.
                self._session, interrupted = Session(self._setup.engine.target), [True]
            finally:
                self._writer.write(reply.cancel())
                self._writer.end()
        if interrupted:
            show.notice("(stopped)")
        return cached

    def _statistics(self) -> str:
        from draftproof.cli import show
        from draftproof.stats import Stats, ratio

        if not self._results:
            return "Nothing has been said yet."
        last, stats = self._results[-1], Stats.pooled(result.stats for result in self._results)
        seconds = sum(result.seconds for result in self._results)
        lines = [f"last reply: {show.statistics(last.stats, last.tokens_per_second)}"]
        if len(self._results) > 1:
            all_of_them = show.count(len(self._results), "reply").replace("replys", "replies")
            lines.append(f"{all_of_them}: {show.statistics(stats, ratio(stats.tokens, seconds))}")
        lines.append(f"the conversation has {show.count(self._tokens, 'token')}")
        return "\n".join(lines)


def _lines() -> Iterator[str]:
    """Messages from the terminal, or the lines of a pipe; a backslash at the end joins the next line."""
    parts: list[str] = []
    for line in _typed() if sys.stdin.isatty() else _piped():
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield "\n".join([*parts, line])
        parts = []
    if parts:
        yield "\n".join(parts)


def _typed() -> Iterator[str]:
    from draftproof.cli import show
    from draftproof.prompts import clean

    # Line editing and history for input(), where the platform has it.
    with suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            yield clean(input("\n> "))
        except KeyboardInterrupt:
            show.notice("\nCtrl-D or /quit leaves.")
        except EOFError:
            print(file=sys.stderr)
            return


def _piped() -> Iterator[str]:
    from draftproof.prompts import decoded

    for line in sys.stdin.buffer:
        yield decoded(line, "standard input").rstrip("\r\n")


@contextmanager
def _first_interrupt() -> Iterator[list[bool]]:
    """A list that the first Ctrl-C puts something into; the second one raises KeyboardInterrupt as usual."""
    seen: list[bool] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(True)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
