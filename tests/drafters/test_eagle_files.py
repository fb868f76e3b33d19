"""Folders in the layouts of those who train heads: every tensor used or listed, and the logits those of plain torch."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import heads
from models.hf_models import VOCABULARY, build, tokens
from safetensors.torch import load_file
from torch import Tensor

from draftproof.catalog import Loaded
from draftproof.drafters.children import Shape
from draftproof.drafters.eagle import EagleDrafter, EagleSession
from draftproof.heads import load_eagle
from draftproof.models.hf import HfModel
from draftproof.session import Session
from draftproof.text import letters
from draftproof.types import InputError, Proposal

V, H, D = VOCABULARY, 32, 40
MAPS, IDS = heads.maps(V, D)
Case = tuple[dict[str, tuple[int, ...]], dict[str, Any], bool]


@cache
def model() -> Any:
    return build("llama", rms_norm_eps=heads.EPS)


def target() -> Loaded:
    return Loaded(HfModel.wrap(model(), "llama"), None)


def _bias(shapes: dict[str, tuple[int, ...]], *names: str) -> dict[str, tuple[int, ...]]:
    return {**shapes, **{f"{name}.bias": shapes[f"{name}.weight"][:1] for name in names}}


def cases() -> dict[str, Case]:
    """(shapes, config, with maps) of every layout."""
    embedding = {"embed_tokens.weight": (V, H)}
    three = heads.eagle3(V, H, D)
    theirs = heads.eagle3(V, H, D, "layers.0.")
    whole = {name: shape for name, shape in heads.eagle3(V, H, V).items() if name != "lm_head.weight"}
    headless = {name: shape for name, shape in three.items() if name != "lm_head.weight"}
    reduced = {"draft_vocab_size": D}
    return {
        "eagle1": (heads.eagle1(V, H), heads.config(V, H), False),
        "eagle1, bias and embedding": (_bias({**heads.eagle1(V, H), **embedding}, "fc"), heads.config(V, H), False),
        "eagle1, speculators": (
            _bias(heads.eagle1(V, H, "transformer.", "fusion_fc"), "fusion_fc"),
            heads.speculators("eagle", V, H, fusion_bias=True, layernorms=False),
            False,
        ),
        "eagle3": (three, heads.config(V, H, **reduced), True),
        "eagle3, embedding": ({**three, **embedding}, heads.config(V, H, **reduced), True),
        "eagle3, fc bias": (_bias(three, "fc"), heads.config(V, H, **reduced), True),
        "eagle3, no own head": (headless, heads.config(V, H, **reduced), True),
        "eagle3, no own head, whole vocabulary": (whole, heads.config(V, H), False),
        "eagle3, layers named": (
            three,
            heads.config(V, H, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, **reduced),
            True,
        ),
        "eagle3, two layers": (
            heads.eagle3(V, H, D, states=2),
            heads.config(V, H, eagle_aux_hidden_state_layer_ids=[4, 0], **reduced),
            True,
        ),
        "eagle3, speculators": (
            {**theirs, **embedding},
            heads.speculators("eagle3", V, H, norm_before_residual=True, **reduced),
            True,
        ),
        "eagle3, speculators, norm before fc": (
            {**theirs, "input_norm.weight": (3 * H,)},
            heads.speculators("eagle3", V, H, norm_before_residual=False, norm_before_fc=True, **reduced),
            True,
        ),
    }


CASES = cases()


def written(name: str, folder: Path) -> tuple[Path, heads.Tensors]:
    shapes, settings, mapped = CASES[name]
    made = heads.random_tensors(shapes)
    return heads.write(folder, {**made, **(MAPS if mapped else {})}, settings), made


def reference(name: str, t: heads.Tensors, text: list[int], drafted: list[int]) -> Tensor:
    """[1 + len(drafted), D or V]: the row behind the text and behind each draft token, by plain torch."""
    settings = CASES[name][1]
    with torch.no_grad():
        states = model()(torch.tensor([text[:-1]]), output_hidden_states=True)
        # transformers gives the last layer's states behind the norm; the third entry from its end is plain.
        layers = [*(one[0] for one in states.hidden_states[:-1]), _behind_last_layer(text[:-1])]
    own = t.get("embed_tokens.weight", model().get_input_embeddings().weight.detach())
    prefix = next(key for key in ("midlayer.", "layers.0.", "transformer.") if f"{key}mlp.up_proj.weight" in t)
    fc = "fusion_fc" if "fusion_fc.weight" in t else "fc"
    bias = t.get(f"{fc}.bias", torch.zeros(()))
    if "norm.weight" not in t:
        true = model().model.norm(layers[-1]).detach()
    else:
        named = settings.get("eagle_aux_hidden_state_layer_ids") or settings.get("eagle_config", {}).get(
            "eagle_aux_hidden_state_layer_ids", [2, 2, 1]
        )
        flat = torch.cat([layers[i] for i in named], -1)
        flat = heads.norm(flat, t["input_norm.weight"]) if "input_norm.weight" in t else flat
        true = flat @ t["fc.weight"].T + bias
    head = t.get("lm_head.weight", model().get_output_embeddings().weight.detach())
    head = head[IDS] if CASES[name][2] and "lm_head.weight" not in t else head
    rows, entries = [], list(true)
    for step in range(len(drafted) + 1):
        s, e = torch.stack(entries), own[torch.tensor([*text, *drafted[:step]])[1:]]
        if "norm.weight" not in t:
            x = torch.cat([e, s], -1) @ t[f"{fc}.weight"].T + bias
            y = heads.decode(t, prefix, x, x)
            rows.append(y[-1] @ head.T)
        else:
            normed = heads.norm(s, t[f"{prefix}hidden_norm.weight"])
            x = torch.cat([heads.norm(e, t[f"{prefix}input_layernorm.weight"]), normed], -1)
            y = heads.decode(t, prefix, x, normed if settings.get("norm_before_residual") else s)
            rows.append(heads.norm(y[-1], t["norm.weight"]) @ head.T)
        entries.append(y[-1])
    return torch.stack(rows)


def _behind_last_layer(ids: list[int]) -> Tensor:
    """States of the last layer in front of the norm."""
    kept: list[Tensor] = []
    hook = model().model.layers[-1].register_forward_hook(lambda m, a, output: kept.append(output))
    model()(torch.tensor([ids]))
    hook.remove()
    return kept[0][0].detach()


def served(drafter: EagleDrafter, text: list[int], drafted: list[int], loaded: Loaded) -> Tensor:
    """The same rows by the drafter: true states through the session, then a chain of draft tokens."""
    session = Session(loaded.model)
    state = drafter.start(session)
    assert isinstance(state, EagleSession)
    for start, end in ((0, 7), (7, len(text) - 1)):
        segment = session.plan(text[:end])
        (output,) = loaded.model.forward([segment], drafter.layers)
        assert output.hidden is not None and len(output.hidden) == end - start
        state.observe(text[: end + 1], (), output.hidden)
    rows = [drafter.call([state.plan(text)])[0]]
    for i in range(len(drafted)):
        proposal = Proposal(torch.tensor(drafted[: i + 1]), tuple(range(-1, i)))
        rows.append(drafter.call([state.plan_more(proposal)])[0])
    return torch.cat(rows)


@pytest.mark.parametrize("name", CASES)
def test_every_layout_computes_what_plain_torch_does(name: str, tmp_path: Path) -> None:
    folder, made = written(name, tmp_path)
    loaded = target()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a tensor that is not used would be listed in a warning
        drafter = load_eagle(str(folder), loaded, Shape.of(4))
    text, drafted = tokens(17, 3), tokens(4, 4)
    found, expected = served(drafter, text, drafted, loaded), reference(name, made, text, drafted)
    if CASES[name][2]:
        outside = torch.ones(V, dtype=torch.bool)
        outside[IDS] = False
        assert (found[:, outside] == -torch.inf).all()
        found = found[:, IDS]
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["eagle1, bias and embedding", "eagle3", "eagle1, speculators"])
def test_a_missing_tensor_is_named_and_never_made_up(name: str, tmp_path: Path) -> None:
    folder, made = written(name, tmp_path)
    for missing in made:
        optional = missing in ("lm_head.weight", "embed_tokens.weight") or missing.endswith(".bias")
        if optional:
            continue
        kept = {key: tensor for key, tensor in load_file(folder / "model.safetensors").items() if key != missing}
        other = heads.write(tmp_path / "less", kept, CASES[name][1])
        with pytest.raises(InputError, match=f"no tensor {re.escape(missing)}"):
            load_eagle(str(other), target(), Shape.of(4))


def test_the_map_of_a_reduced_vocabulary_is_needed(tmp_path: Path) -> None:
    shapes, settings, _ = CASES["eagle3"]
    with pytest.raises(InputError, match="d2t"):
        load_eagle(str(heads.write(tmp_path, heads.random_tensors(shapes), settings)), target(), Shape.of(4))


def test_tensors_without_a_place_are_listed(tmp_path: Path) -> None:
    shapes, settings, _ = CASES["eagle3"]
    made = {**heads.random_tensors(shapes), **MAPS, "verifier_norm.weight": torch.ones(H), "odd": torch.ones(2)}
    with pytest.warns(UserWarning, match=r"odd, verifier_norm\.weight"):
        load_eagle(str(heads.write(tmp_path, made, settings)), target(), Shape.of(4))


Change = Callable[[heads.Tensors, dict[str, Any]], None]
REFUSED: dict[str, tuple[Change, str]] = {
    "map out of range": (lambda t, s: t["d2t"].__setitem__(-1, 1000), "d2t"),
    "map twice to one token": (lambda t, s: t["d2t"].__setitem__(1, int(t["d2t"][0]) - 1), "one by one"),
    "maps apart": (lambda t, s: t["t2d"].__setitem__(int(IDS[0]), False), "t2d"),
    "map of another size": (lambda t, s: t.update(d2t=t["d2t"][:-1]), "d2t"),
    "another vocabulary": (lambda t, s: s.update(vocab_size=V + 1), "t2d|tokens"),
    "another width": (lambda t, s: s.update(hidden_size=64), "shape"),
    "wide target": (lambda t, s: t.update({"fc.weight": torch.ones(H, 192)}) or s.update(target_hidden_size=64), "64"),
    "two layers": (lambda t, s: s.update(num_hidden_layers=2), "layers"),
    "layers the target lacks": (lambda t, s: s.update(eagle_aux_hidden_state_layer_ids=[1, 2, 9]), "layers"),
    "another activation": (lambda t, s: s.update(hidden_act="gelu"), "gelu"),
    "another kind": (lambda t, s: s.update(speculators_model_type="dflash", transformer_layer_config={}), "dflash"),
    "no aux states": (lambda t, s: s.update(eagle_config={"use_aux_hidden_state": False}), "use_aux"),
    "quantised": (lambda t, s: s.update(quantization_config={"bits": 4}), "quantization_config"),
    "no size": (lambda t, s: s.pop("hidden_size"), "hidden_size"),
    "not finite": (lambda t, s: t["norm.weight"].__setitem__(0, float("nan")), "finite"),
    "stale tokenizer": (lambda t, s: s.update(draftproof={"tokenizer": "of another"}), "another tokenizer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    change, says = REFUSED[name]
    shapes, settings, _ = CASES["eagle3"]
    made = {**heads.random_tensors(shapes), **{key: one.clone() for key, one in MAPS.items()}}
    settings = json.loads(json.dumps(settings))
    change(made, settings)
    folder = heads.write(tmp_path, made, settings)
    with pytest.raises(InputError, match=says):
        load_eagle(str(folder), Loaded(target().model, letters(V)), Shape.of(4))


def test_weights_may_be_a_torch_file(tmp_path: Path) -> None:
    folder, made = written("eagle1", tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(made, folder / "pytorch_model.bin")
    loaded, text = target(), tokens(12, 3)
    found = served(load_eagle(str(folder), loaded, Shape.of(4)), text, [], loaded)
    assert (found - reference("eagle1", made, text, [])).abs().max() <= 1e-4


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(heads.config(V, H)))
    with pytest.raises(InputError, match="no weights"):
        load_eagle(str(tmp_path), target(), Shape.of(4))
