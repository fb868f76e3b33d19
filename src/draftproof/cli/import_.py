"""`draftproof import`: a GGUF file becomes a Hugging Face folder, once."""

from __future__ import annotations

from typing import Annotated

import typer

from draftproof.cli.options import Json

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    file: Annotated[str, typer.Argument(metavar="FILE.gguf", help="A GGUF file of the Llama, Qwen or Gemma-3 family.")],
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder to make; without it beside the file, under its name.")
    ] = None,
    keep_quantized: Annotated[
        bool,
        typer.Option(
            "--keep-quantized",
            "--keep-grid",
            help="Keep Q4_0, Q4_1 and Q8_0 weights as they are, for native:DIR,weights=int4, which then is the file's"
            " model exactly.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Convert a GGUF file into a Hugging Face folder."""
    from draftproof.cli import show
    from draftproof.files import shortened
    from draftproof.models.gguf_import import import_gguf
    from draftproof.types import InputError

    try:
        with show.Bar("reading the file", 1.0) as bar:
            folder = import_gguf(file, out, lambda what, share: bar.update(share, what), keep_quantized)
    except OSError as error:
        raise InputError(f"{shortened(file)} cannot be converted: {error.strerror or error}.") from error
    spec = f"native:{folder},weights=int4" if keep_quantized else f"hf:{folder}"
    written = sum(item.stat().st_size for item in folder.iterdir())
    if json:
        show.print_json({"folder": str(folder), "bytes": written, "spec": spec})
        return
    typer.echo(str(folder))
    show.notice(f"{show.size(written)}; use it with --target {spec}")
