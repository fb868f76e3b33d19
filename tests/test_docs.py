"""The documents agree with the repository: names, tests, controls, equations, links, trees and commands."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from draftproof import catalog
from draftproof.audit.controls import CONTROLS
from draftproof.cli.__main__ import VERBS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "draftproof"
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
DOCUMENTS = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]
MODULES = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@cache
def text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def prose(document: Path) -> str:
    """The document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text(document), flags=re.S | re.M)


def names(document: Path) -> set[str]:
    """What stands in backticks as `module.name`, the module being one of the package."""
    found = re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`", prose(document))
    return {name for name in found if name.split(".")[0] in MODULES and not name.endswith((".py", ".md"))}


def resolve(name: str) -> Any:
    """The object behind `module.Class.attribute`; a field without a default is as good as its annotation."""
    found: Any = importlib.import_module("draftproof")
    path = ""
    for part in name.split("."):
        path = f"{path}.{part}".lstrip(".")
        file = PACKAGE / path.replace(".", "/")
        if file.is_dir() or file.with_suffix(".py").exists():
            found = importlib.import_module(f"draftproof.{path}")
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            found = found.__annotations__[part]
    return found


@each_document
def test_every_name_in_the_documents_exists(document: Path) -> None:
    missing = []
    for name in sorted(names(document)):
        try:
            resolve(name)
        except (AttributeError, KeyError):
            missing.append(name)
    assert not missing


@cache
def functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(text(file))) if isinstance(node, ast.FunctionDef)}


@each_document
def test_every_test_in_the_documents_exists(document: Path) -> None:
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text(document)):
        assert (ROOT / file).exists() and name in functions(ROOT / file), f"{file}::{name}"


@each_document
def test_every_control_in_the_documents_is_run_by_the_audit(document: Path) -> None:
    known = {control.name for control in CONTROLS}
    for listed in re.findall(r'[Cc]ontrols?\s((?:"[^"]+"(?:,\s|\sand\s)?)+)', prose(document)):
        assert set(re.findall(r'"([^"]+)"', " ".join(listed.split()))) <= known, listed


def test_losslessness_names_what_computes_and_what_checks() -> None:
    page = ROOT / "docs" / "losslessness.md"
    assert {"verify.excess", "verify.normalised", "verify.acceptance", "fast.BlockChain"} <= names(page)
    tags = [int(tag) for tag in re.findall(r"\\tag\{(\d+)\}", text(page))]
    assert tags == list(range(1, len(tags) + 1)) and len(tags) > 20
    assert all(int(number) <= len(tags) for number in re.findall(r"(?<![\w$)])\((\d+)\)", prose(page)))
    assert text(page).count("$") % 2 == 0


def slug(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    kept = "".join(char for char in heading.lower() if char.isalnum() or char in " -_")
    return kept.strip().replace(" ", "-")


@each_document
def test_every_relative_link_resolves(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists() and file.is_relative_to(ROOT), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", prose(file), re.M)
            assert anchor in {slug(heading) for heading in headings}, target


def tree(readme: Path) -> Iterator[Path]:
    """The paths of the README's tree: names stand before two spaces, a folder's content is indented below it."""
    blocks = re.split(r"^```\w*$", text(readme), flags=re.M)[1::2]
    (block,) = [block.strip("\n") for block in blocks if "\nsrc/draftproof/" in block]
    folder = ROOT
    for line in block.splitlines():
        entries = re.split(r"\s{2,}", line.strip())[0].split(" ")
        if not line.startswith(" "):
            folder = ROOT
        yield from (folder / entry for entry in entries)
        if not line.startswith(" ") and len(entries) == 1 and entries[0].endswith("/"):
            folder = ROOT / entries[0]


def tracked() -> set[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return {line for line in done.stdout.splitlines() if (ROOT / line).exists()}


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_tree_in_the_readme_is_the_repository(readme: Path) -> None:
    listed = {path.relative_to(ROOT).as_posix() for path in tree(readme)}
    absent = {path for path in listed if not (ROOT / path).exists()}
    assert not absent, f"{readme.name} lists what is not there"
    top = {name.split("/")[0] for name in tracked() if not name.startswith(".")}
    package = {"/".join(name.split("/")[:3]) for name in tracked() if name.startswith("src/draftproof/")}
    docs = {name for name in tracked() if name.startswith("docs/") and name.endswith(".md")}
    missing = (top | package | docs) - listed - {"src"}
    assert not missing, f"{readme.name} does not list what is there"


def test_both_readmes_say_the_same() -> None:
    english, chinese = READMES
    for pattern in (r"\./run [a-z]+", r"--[a-z][a-z-]+", r"`[a-z-]+(?:[:=][^`]*)?`", r"\]\((docs/[^)]+)\)", r"^#+ "):
        assert sorted(set(re.findall(pattern, text(english), re.M))) == sorted(
            {found.replace("目录", "FOLDER") for found in re.findall(pattern, text(chinese), re.M)}
        ), pattern
    assert [len(list(tree(readme))) for readme in READMES] == [len(list(tree(english)))] * 2
    assert all(text(readme).count("<!-- results -->") == 1 for readme in READMES)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_readmes_python_runs(readme: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?load_engine.*?)^```$", text(readme), re.S | re.M)
    exec(re.sub(r"native:\w+", "toy:7", block), {})
    printed = capsys.readouterr().out
    assert len(ast.literal_eval(printed[printed.rindex("[(") :])) == 2


def test_the_readmes_commands_drafters_and_rules_are_the_programs() -> None:
    verbs = set(re.findall(r"\./run ([a-z]+)", text(READMES[0])))
    assert verbs == {*VERBS, "test"}
    sources = "".join(text(file) for file in (PACKAGE / "cli").glob("*.py"))
    for option in set(re.findall(r"--([a-z][a-z-]+)", text(READMES[0]))):
        assert option in sources or option.replace("-", "_") in sources, option
    rows = {name.split(":")[0] for name in re.findall(r"^\| `([^`]+)` \|", text(READMES[0]), re.M)}
    assert rows == {*catalog.models(), *catalog.drafters(), *catalog.rules()} - {"auto"}


def test_the_way_of_a_token_is_five_short_files() -> None:
    files = re.findall(r"^\d\. \[[\w./]+\]\(([^)]+)\)", text(ROOT / "docs" / "design.md"), re.M)
    assert len(files) == 5
    for file in files:
        path = (ROOT / "docs" / file).resolve()
        assert len(text(path).splitlines()) < 300, f"{file} has grown too long to be read"


def test_the_log_is_dated_newest_first() -> None:
    dates = re.findall(r"^## (\d{4}-\d\d-\d\d)", text(ROOT / "docs" / "log.md"), re.M)
    assert dates and dates == sorted(dates, reverse=True)
