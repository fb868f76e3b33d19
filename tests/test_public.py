from __future__ import annotations

import importlib

import pytest

import draftproof


def test_every_public_name_is_there_and_sorted() -> None:
    assert list(draftproof.__all__) == sorted(draftproof.__all__)
    for name in draftproof.__all__:
        assert getattr(draftproof, name).__doc__
    assert dir(draftproof) == draftproof.__all__


def test_a_name_that_is_not_public_is_an_attribute_error_that_lists_those_that_are() -> None:
    with pytest.raises(AttributeError, match="load_engine"):
        draftproof.nothing  # noqa: B018


def test_no_module_shadows_a_public_function() -> None:
    importlib.import_module("draftproof.custom_generate")
    assert callable(draftproof.hf_generate)
