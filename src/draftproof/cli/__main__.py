"""`draftproof`: the commands, each in its own file and imported when it is called."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

VERBS = {
    "demo": ("demo", "Three prompts on a real model: plain against speculative, in colours."),
    "generate": ("generate", "Generate text for one prompt or a file of prompts."),
    "chat": ("chat", "Talk with a model."),
    "check": ("check", "Do a target and a draft model fit together, and what do they need?"),
    "audit": ("audit", "Prove that the output is the target's: exactly, by sampling, token by token."),
    "bench": ("bench", "Measure what a target call costs and what speculation brings."),
    "train": ("train", "Train a head or an early-exit adapter for a target, from its own answers."),
    "plot": ("plot", "Draw the reports of bench as SVG and PNG."),
    "list": ("list_", "Models, drafters and rules, with their options."),
    "import": ("import_", "Convert a GGUF file into a Hugging Face folder."),
}
"""Verb -> its module in this package, and one line about it."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

# Usage errors of typer's parser; it has no public name of its own in every version.
UsageProblem: Any = typer.BadParameter.__mro__[2]

# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Lossless speculative decoding, with proof.

Same distribution: always. Every rule keeps the target's output distribution exactly (draftproof audit exact).

Same tokens: greedy, and with the rule coupled at any temperature, the tokens are those of plain decoding in float32. \
In bfloat16 and float16 a near tie can fall the other way (draftproof audit paths tells ties from defects).
"""

app = typer.Typer(name="draftproof", pretty_exceptions_enable=False)


class LazyGroup(TyperGroup):
    """Knows names and summaries of all commands and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {verb: TyperCommand(verb, help=summary) for verb, (_, summary) in VERBS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself in the place of its summary."""
        verb, command, rest = super().resolve_command(ctx, args)
        if verb in VERBS:
            command = load(verb)
        return verb, command, rest


def load(verb: str) -> Any:
    """A verb's command."""
    module = importlib.import_module(f"draftproof.cli.{VERBS[verb][0]}")
    command: Any = get_command(module.app)
    command.name = verb
    return command


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"draftproof {version('draftproof')}")
        except PackageNotFoundError:
            typer.echo("draftproof, not installed")
        raise typer.Exit


@app.callback(cls=LazyGroup, help=HELP)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options that stand before a command."""


def main() -> None:
    """Run the command line and exit: 0 done, 2 for input that cannot be used, 130 for Ctrl-C."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of a command line. Bad input is one sentence on standard error, never a traceback."""
    if not _streams_are_open():
        return _refuse("standard output is closed: leave it open, or send it to a file.")
    _quiet_libraries()
    try:
        code = get_command(app).main(arguments or ["--help"], prog_name="draftproof", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except UsageProblem as error:
        return _refuse(_sentence(error), _help_of(error))
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        # An error about a named file is no error about our output.
        if error.filename is not None or error.errno not in _FULL:
            raise
        _drop_output()
        return _refuse(f"the output cannot be written: {error.strerror}.")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except ValueError as error:
        from draftproof.types import InputError

        if not isinstance(error, InputError):
            raise
        return _refuse(str(error))


def _streams_are_open() -> bool:
    """Whether there is a standard output; the two other streams are replaced by nothing where they are closed."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return sys.stdout is not None


def _drop_output() -> None:
    """Nobody takes our output any more; Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(sentence: str, hint: str = "") -> int:
    # Where standard error is full as well, the exit code has to do.
    with contextlib.suppress(OSError):
        print(" ".join(f"error: {sentence} {hint}".split()), file=sys.stderr, flush=True)
    return 2


def _sentence(error: Any) -> str:
    # An error of ours names what is wrong itself; the parser's own begin with the option.
    own = isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None
    message: str = (error.message if own else error.format_message()).strip()
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _help_of(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"({context.command_path} --help lists what there is.)" if context is not None else ""


def _quiet_libraries() -> None:
    """Only our own warnings are for the user, as one line each."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("once", module=r"draftproof\.")
        warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(" ".join(f"warning: {message}".split()), file=sys.stderr)


if __name__ == "__main__":
    main()
