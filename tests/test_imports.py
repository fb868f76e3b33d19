"""Imports point one way, read from the source; and the command's help comes without the heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src" / "draftproof"
# A part may import its own level and what stands before it. Parts without a level of their own come last.
LEVELS = (
    ("types",),
    ("contracts",),
    (
        "device",
        "kernels",
        "files",
        "memory",
        "tree",
        "rng",
        "sampling",
        "fast_sampling",
        "verify",
        "on_cpu",
        "fast",
        "streaming",
        "text",
        "vocab",
        "stats",
        "stop",
        "specs",
        "prompts",
        "int8",
    ),
    ("session",),
    ("models", "drafters"),
    ("request", "engine", "cost_memory"),
    ("costs", "backends"),
    ("heads",),
    ("demo_weights", "calibration", "entries"),
    ("catalog",),
)
LEVEL = {part: number for number, parts in enumerate(LEVELS) for part in parts}
LAST = len(LEVELS)
# Plug-ins know the contracts, the mathematics and the session; nothing of the loop, and not each other.
PLUGINS = ("models", "drafters")
PLUGINS_MAY_IMPORT = {
    "types",
    "contracts",
    "device",
    "kernels",
    "files",
    "memory",
    "tree",
    "sampling",
    "verify",
    "on_cpu",
    "rng",
    "session",
    "fast",
    "int8",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """(dotted name below the package, syntax tree) of every file; the package itself is ""."""
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported(name: str, tree: ast.Module, known: Collection[str]) -> set[str]:
    """Dotted names below the package that a module imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.split(".")[0] == "draftproof"}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name or '__init__'} imports relatively; write draftproof... in full"
            head, _, base = (node.module or "").partition(".")
            if head == "draftproof":
                names = {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
                found |= {one if one in known else base for one in names}
    return found - {""}


def part(name: str) -> str:
    return name.split(".")[0]


def level(name: str) -> int:
    return LEVEL.get(part(name), LAST)


TREES = dict(modules())
GRAPH = {name: imported(name, tree, TREES) for name, tree in TREES.items()}


@pytest.mark.parametrize("name", [name for name in GRAPH if name])
def test_a_module_imports_nothing_above_it(name: str) -> None:
    above = {other for other in GRAPH[name] if level(other) > level(name)}
    assert not above, f"{name} must not import {sorted(above)}: {LEVELS}, then everything else"


@pytest.mark.parametrize("name", [name for name in GRAPH if part(name) in PLUGINS])
def test_models_and_drafters_import_the_left_side_only(name: str) -> None:
    outside = {other for other in GRAPH[name] if part(other) not in PLUGINS_MAY_IMPORT | {part(name)}}
    assert not outside, f"{name} must not import {sorted(outside)}"


def test_types_import_nothing_of_the_package() -> None:
    assert not GRAPH["types"]


def test_there_are_no_cycles() -> None:
    order: list[str] = []
    waiting: list[str] = []

    def visit(name: str) -> None:
        assert name not in waiting, f"a cycle: {' -> '.join([*waiting[waiting.index(name) :], name])}"
        if name in order:
            return
        waiting.append(name)
        for other in sorted(GRAPH.get(name, ())):
            visit(other)
        order.append(waiting.pop())

    for name in GRAPH:
        visit(name)


def test_help_comes_without_the_heavy_libraries() -> None:
    code = """
import contextlib, io, sys
sys.argv = ["draftproof", "--help"]
from draftproof.cli.__main__ import main
with contextlib.redirect_stdout(io.StringIO()) as shown:
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
assert "demo" in shown.getvalue()
print(sorted({"torch", "transformers", "tokenizers", "numpy", "scipy", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT.parent), "PATH": "", "HOME": "/"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
