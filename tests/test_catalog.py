"""Spec strings: what is understood, and one sentence for what is not."""

from __future__ import annotations

import shutil

import pytest

from draftproof import catalog, specs
from draftproof.catalog import Place, engine_for, load_drafter, load_engine, load_model, load_rule
from draftproof.models import native
from draftproof.types import InputError, SamplingParams


def test_a_spec_has_a_name_an_argument_and_options() -> None:
    assert specs.parse("model:hf:a/b,gamma=5") == specs.Spec("model", "hf:a/b", {"gamma": "5"})
    assert specs.parse("ngram:max=3,min=1") == specs.Spec("ngram", "", {"max": "3", "min": "1"})
    assert specs.parse("hf:/data/x=1/model") == specs.Spec("hf", "/data/x=1/model", {})


@pytest.mark.parametrize(
    "spec, message",
    [
        ("nothing", "null, ngram, model, early-exit"),
        ("ngram:3", "options alone"),
        ("early-exit:8", "options alone"),
        ("ngram:max=x", "no value for max"),
        ("ngram:max=3,max=4", "twice"),
        ("ngram:max", "options alone"),
        ("ngram,max", "key=value"),
        ("ngram:width=2,depth=1", "gamma, max, min, width"),
        ("model", "model:spec"),
        ("model:nothing:1", "there is no model"),
        ("model:toy:2,nothing=3", "toy has no option nothing"),
        ("model:toy:2,shape=2xx", "draft shape"),
        ("model:toy:2,children=best", "drawn, chosen, mixed"),
        ("model:toy:2,gamma=0", "draft shape"),
        ("early-exit:layer=4", "between 1 and 3"),
        ("lowbit:bits=5", "4 or 8 bits"),
        ("lowbit:4", "options alone"),
        ("ngram+nothing", "there is no drafter"),
        ("ngram+lowbit:group=7", "32, 64, 128"),
    ],
)
def test_drafter_specs_that_make_no_sense_are_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_drafter(spec, load_model("toy:7"))


@pytest.mark.parametrize(
    "spec, message",
    [
        ("toy:x", "toy:SEED"),
        ("toy:" + "1" * 5000, "19 digits"),
        ("nothing:1", "there is no model"),
        ("hf", "hf:FOLDER"),
        ("toy:1,vocab=1", "2 tokens"),
    ],
)
def test_model_specs_that_make_no_sense_are_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(spec)


@pytest.mark.parametrize(
    "spec, given, gamma",
    [
        ("ngram", 9, 9),
        ("ngram:max=3", 9, 9),
        ("model:toy:1", 9, 9),
        ("model:toy:1,vocab=20", 9, 9),
        ("early-exit:", 9, 9),
        ("ngram:gamma=3", 9, 3),
        ("early-exit:shape=2x2", 9, 2),
        ("lowbit:bits=8", 9, 9),
        ("ngram+lowbit", 9, 9),
        ("ngram:gamma=7+lowbit:gamma=3", None, 7),
        ("null", 9, 0),
        ("ngram", None, 5),
        ("ngram", 0, 5),
    ],
)
def test_gamma_reaches_drafters_that_have_it(spec: str, given: int | None, gamma: int) -> None:
    assert load_drafter(spec, load_model("toy:7"), gamma=given).gamma == gamma
    assert engine_for(load_model("toy:7"), spec, gamma=given).drafter.gamma == gamma


def test_the_model_inside_a_drafter_has_the_options_that_are_not_the_drafters() -> None:
    assert catalog.inner("model:toy:2,gamma=3,vocab=30,shape=2x1") == "toy:2,vocab=30"
    assert catalog.inner("model:hf:/a/b") == "hf:/a/b"
    assert catalog.inner("ngram:max=3") is None and catalog.inner("model:toy:2+ngram") is None
    with pytest.raises(InputError, match="model:spec"):
        catalog.inner("model:gamma=3")


def test_options_of_an_inner_model_reach_it() -> None:
    drafter = load_drafter("model:toy:2,vocab=30,gamma=3,near=7", load_model("toy:7"))
    assert drafter.gamma == 3 and drafter.model.vocab_size == 30  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "spec, rule",
    [
        ("null", "coupled"),
        ("ngram", "coupled"),
        ("model:toy:2", "block"),
        ("model:toy:2,shape=2x2", "tree"),
        ("model:toy:2,children=chosen", "coupled"),
        ("early-exit", "block"),
        ("lowbit", "block"),
        ("lowbit:shape=2x2", "tree"),
        ("ngram+lowbit", "block"),
        ("ngram:width=2+lowbit", "tree"),
        ("ngram+lowbit:children=chosen", "coupled"),
    ],
)
def test_auto_picks_the_strongest_rule_for_what_is_reported(spec: str, rule: str) -> None:
    assert load_rule("auto", load_drafter(spec, load_model("toy:7"))).name == rule


def test_a_plus_joins_drafters_and_may_stand_in_a_path() -> None:
    names = catalog.drafters()
    assert specs.links("ngram:min=3+lowbit", names) == ["ngram:min=3", "lowbit"]
    assert specs.links("model:hf:/a+b,gamma=2+ngram", names) == ["model:hf:/a+b,gamma=2", "ngram"]
    assert specs.links("model:hf:/a+ngrams", names) == ["model:hf:/a+ngrams"]


def test_the_block_rule_is_refused_for_trees() -> None:
    with pytest.raises(InputError, match="use the rule tree"):
        load_engine("toy:7", "early-exit:shape=2x1", "block")


@pytest.mark.parametrize("spec, message", [("toy:7", "no dtype int8"), ("native:FOLDER", "weights=")])
def test_a_backend_without_a_dtype_refuses_one(spec: str, message: str) -> None:
    if spec.startswith("native") and not native.available():
        pytest.skip("the kernels are not built")
    with pytest.raises(InputError, match=message):
        load_model(spec, Place(dtype="int8"))


def test_the_dtype_of_the_target_is_not_that_of_a_toy_draft() -> None:
    target = load_model("toy:7")
    assert load_drafter("model:toy:2", target, Place(dtype="bfloat16")).name == "model"


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_the_kernels_are_there_where_they_can_be_built() -> None:
    """Their own tests are skipped without them, so a failed build would pass unseen."""
    assert native.available()


def test_every_entry_has_a_summary_and_makes_something() -> None:
    for table in (catalog.models(), catalog.drafters(), catalog.rules()):
        assert all(entry.summary and callable(entry.make) for entry in table.values())


@pytest.mark.parametrize(
    "drafter", ["null", "ngram:min=1", "model:toy:9,near=7", "early-exit:layer=2", "ngram:min=1+lowbit"]
)
@pytest.mark.parametrize("rule", ["auto", "token", "tree", "coupled"])
def test_an_engine_by_names_generates(drafter: str, rule: str) -> None:
    steps = list(load_engine("toy:7", drafter, rule).generate([0, 1], SamplingParams(max_tokens=12)))
    assert sum(len(step.tokens) for step in steps) == 12
