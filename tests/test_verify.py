"""Rules: their laws by enumeration over one step, their orders among each other, and reference against fast twin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from draftproof import fast, tree, verify
from draftproof.rng import PhiloxSource
from draftproof.types import Proposal, chain

RATIO = {"token": verify.TokenRule(), "block": verify.BlockRule(), "tree": verify.TreeRule()}
V = 3


def table(seed: int, sparse: bool = False) -> dict[tuple[int, ...], Tensor]:
    """A random row for every prefix of up to 4 tokens."""
    generator, rows = torch.Generator().manual_seed(seed), {}
    for length in range(5):
        for prefix in itertools.product(range(V), repeat=length):
            weights = torch.rand(V, generator=generator, dtype=torch.float64)
            if sparse:
                weights[int(torch.randint(V, (), generator=generator))] = 0
            rows[prefix] = weights / weights.sum()
    return rows


def text(proposal: Proposal, node: int) -> tuple[int, ...]:
    return tuple(int(proposal.tokens[i]) for i in tree.path(proposal.parents, node))


def proposals(
    q: dict[tuple[int, ...], Tensor], parents: tuple[int, ...], drawn: bool
) -> Iterator[tuple[float, Proposal]]:
    """Every proposal of this topology with its probability; siblings without replacement."""
    for tokens in itertools.product(range(V), repeat=len(parents)):
        made = Proposal(torch.tensor(tokens, dtype=torch.int64), parents)
        weight, rows = 1.0, []
        for node, parent in enumerate(parents):
            row = q[text(made, parent)].clone()
            for elder in (i for i in range(node) if parents[i] == parent):
                row[tokens[elder]] = 0
            row = row / row.sum() if row.sum() > 0 else torch.full((V,), float("nan"), dtype=torch.float64)
            weight *= float(row[tokens[node]]) if not row.isnan().any() else 0.0
            rows.append(row)
        if weight > 0:
            yield weight, Proposal(made.tokens, parents, torch.stack(rows)) if drawn else made


def target_rows(p: dict[tuple[int, ...], Tensor], proposal: Proposal) -> Tensor:
    return torch.stack([p[text(proposal, node)] for node in range(-1, len(proposal))])


CHAINS = [(-1,), (-1, 0), (-1, 0, 1)]
TREES = [(-1, -1), (-1, -1, 0), (-1, -1, 0, 0, 1), (-1, -1, -1, 0)]


@pytest.mark.parametrize(
    "name, parents", [(n, p) for n in RATIO for p in CHAINS + TREES if n != "block" or p in CHAINS]
)
@pytest.mark.parametrize("seed", range(4))
def test_one_step_has_the_targets_law(name: str, parents: tuple[int, ...], seed: int) -> None:
    p, q = table(seed, seed % 2 == 1), table(seed + 50)
    length = max(tree.depths(parents)) + 1
    law = dict.fromkeys(itertools.product(range(V), repeat=length), 0.0)
    for weight, proposal in proposals(q, parents, drawn=True):
        made = RATIO[name].outcomes(proposal, target_rows(p, proposal))
        assert float(made.stops.sum()) == pytest.approx(1, abs=1e-12)
        for stop, s in enumerate(made.stops.tolist()):
            for token, share in enumerate(made.after(stop).tolist() if s else ()):
                _finish(law, p, (*text(proposal, stop - 1), token), weight * s * share)
    plain = {whole: _plain(p, whole) for whole in law}
    assert sum(abs(law[whole] - plain[whole]) for whole in law) / 2 <= 1e-12


def _plain(p: dict[tuple[int, ...], Tensor], whole: tuple[int, ...]) -> float:
    value = 1.0
    for i, token in enumerate(whole):
        value *= float(p[whole[:i]][token])
    return value


def _finish(
    law: dict[tuple[int, ...], float], p: dict[tuple[int, ...], Tensor], prefix: tuple[int, ...], w: float
) -> None:
    """The target alone completes the sequence."""
    if w == 0:
        return
    if prefix in law:
        law[prefix] += w
        return
    for token, share in enumerate(p[prefix].tolist()):
        _finish(law, p, (*prefix, token), w * share)


@pytest.mark.parametrize("seed", range(8))
def test_the_tree_rule_is_the_block_rule_on_a_chain(seed: int) -> None:
    p, q = table(seed), table(seed + 50)
    for _, proposal in proposals(q, (-1, 0, 1), drawn=True):
        rows = target_rows(p, proposal)
        one, other = verify.TreeRule().outcomes(proposal, rows), verify.BlockRule().outcomes(proposal, rows)
        torch.testing.assert_close(one.stops, other.stops, rtol=0, atol=1e-14)
        for stop in (s for s, mass in enumerate(one.stops.tolist()) if mass > 1e-12):
            torch.testing.assert_close(one.after(stop), other.after(stop), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("parents", CHAINS + TREES)
def test_block_and_tree_accept_at_least_what_the_token_rule_does(seed: int, parents: tuple[int, ...]) -> None:
    p, q = table(seed), table(seed + 50)
    mean = dict.fromkeys(("token", "tree"), 0.0)
    for weight, proposal in proposals(q, parents, drawn=True):
        for name in mean:
            stops = RATIO[name].outcomes(proposal, target_rows(p, proposal)).stops
            mean[name] += weight * float(verify.expected_accepted(proposal, stops))
    assert mean["tree"] >= mean["token"] - 1e-12


def test_the_papers_example_of_block_verification() -> None:
    """Sun et al. 2403.10444, section 2: two tokens, token rule 10/9 accepted tokens, block 11/9 (their figure 2)."""
    p, q = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    mean = dict.fromkeys(("token", "block"), 0.0)
    for tokens in itertools.product(range(2), repeat=2):
        proposal = chain(tokens, q.expand(2, -1).clone())
        for name in mean:
            stops = RATIO[name].outcomes(proposal, p.expand(3, -1)).stops
            mean[name] += float(q[tokens[0]] * q[tokens[1]] * verify.expected_accepted(proposal, stops))
    assert mean["token"] == pytest.approx(10 / 9) and mean["block"] == pytest.approx(11 / 9)


def random_case(seed: int, parents: tuple[int, ...], drawn: bool, size: int = 60) -> tuple[Proposal, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(len(parents) + 1, size, generator=generator), -1)
    q = torch.softmax(p[:-1].log() + torch.randn(len(parents), size, generator=generator), -1)
    if not drawn:
        return Proposal(q.argmax(-1), parents), p
    tokens = torch.tensor([int(torch.multinomial(row, 1, generator=generator)) for row in q], dtype=torch.int64)
    return Proposal(tokens, parents, q), p


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("name", RATIO)
@pytest.mark.parametrize("parents", [(), *CHAINS, tuple(range(-1, 7))])
def test_fast_outcomes_equal_the_reference(name: str, parents: tuple[int, ...], drawn: bool) -> None:
    for seed in range(10):
        proposal, rows = random_case(seed, parents, drawn)
        slow, quick = RATIO[name].outcomes(proposal, rows), fast.outcomes(RATIO[name], proposal, rows)
        torch.testing.assert_close(slow.stops, quick.stops, rtol=0, atol=1e-6)
        for stop in (s for s, mass in enumerate(slow.stops.tolist()) if mass > 1e-4):
            after = quick.after(stop)
            torch.testing.assert_close(slow.after(stop), after / after.sum(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["token", "tree"])
@pytest.mark.parametrize("parents", TREES)
def test_chosen_trees_have_one_law_whatever_the_rule(name: str, parents: tuple[int, ...]) -> None:
    """Under the token rule also where siblings are the same token, as a careless drafter's may be."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        rows = torch.softmax(2 * torch.randn(len(parents) + 1, 60, generator=generator), -1)
        doubles = torch.randint(0, 4, (len(parents),), generator=generator)
        proposal = Proposal(
            doubles if name == "token" else torch.randperm(60, generator=generator)[: len(parents)], parents
        )
        slow, quick = RATIO[name].outcomes(proposal, rows), fast.outcomes(RATIO[name], proposal, rows)
        torch.testing.assert_close(slow.stops, quick.stops, rtol=0, atol=1e-6)
        for stop in range(len(parents) + 1):
            after = quick.after(stop)
            torch.testing.assert_close(slow.after(stop), after / after.sum(), rtol=0, atol=1e-5)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    for name in RATIO:
        p = table(3)
        for _, proposal in proposals(p, (-1, 0, 1), drawn=True):
            assert float(RATIO[name].outcomes(proposal, target_rows(p, proposal)).stops[-1]) == pytest.approx(1)


def test_ratio_rules_refuse_tokens_that_share_the_noise_of_their_position() -> None:
    proposal = Proposal(torch.tensor([1]), (-1,), torch.full((1, V), 1 / V), coupled=True)
    for rule in RATIO.values():
        with pytest.raises(ValueError, match="coupled rule"):
            rule.outcomes(proposal, torch.full((2, V), 1 / V))


def test_the_block_rule_refuses_a_tree() -> None:
    with pytest.raises(ValueError, match="tree rule"):
        verify.BlockRule().outcomes(Proposal(torch.tensor([0, 1]), (-1, -1)), torch.full((3, V), 1 / V))


@pytest.mark.parametrize("parents", [(), *CHAINS, *TREES])
def test_the_coupled_twin_is_the_coupled_rule(parents: tuple[int, ...]) -> None:
    from draftproof.sampling import Sampler
    from draftproof.types import SamplingParams

    for seed in range(30):
        proposal, rows = random_case(seed, parents, drawn=False)
        slow = verify.CoupledRule().verdict(proposal, rows, PhiloxSource(seed), 11)
        sampler = Sampler(SamplingParams(temperature=1), 0)
        pending = fast.judge(verify.CoupledRule(), proposal, rows.log(), sampler, PhiloxSource(seed), 11)
        ((quick, _),) = fast.fetch([pending], [proposal])
        assert quick.verdict == slow


def test_overlap_is_one_minus_the_total_variation() -> None:
    proposal, rows = random_case(4, (-1, 0), drawn=True)
    assert proposal.probs is not None
    for node in (0, 1):
        distance = float((rows[node] - proposal.probs[node]).abs().sum() / 2)
        assert float(verify.overlap(proposal, rows, node)) == pytest.approx(1 - distance, abs=1e-6)


def test_children_that_cover_the_support_leave_a_row_that_can_be_drawn_from() -> None:
    """Rounding may leave 1e-8 for a stop above them."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        two = torch.rand(2, generator=generator)
        rows = torch.zeros(3, 60)
        rows[:, :2] = two / two.sum()
        made = fast.outcomes(verify.TreeRule(), Proposal(torch.tensor([0, 1]), (-1, -1)), rows)
        assert float(made.after(0).sum()) > 0 and float(made.stops.min()) >= 0


@pytest.mark.parametrize("name", RATIO)
def test_stops_are_probabilities_to_the_last_digit(name: str) -> None:
    for seed in range(30):
        p, q = table(seed), table(seed + 50)
        for _, proposal in proposals(q, (-1, 0, 1), drawn=True):
            stops = RATIO[name].outcomes(proposal, target_rows(p, proposal)).stops
            assert float(stops.min()) >= 0 and float(stops.max()) <= 1


def test_a_rule_of_the_users_own_is_asked_itself() -> None:
    class Never(verify.TokenRule):
        name = "block"

        def outcomes(self, proposal: Proposal, target_probs: Tensor) -> verify.Rows:
            return verify.Rows(torch.tensor([1.0] + [0.0] * len(proposal), dtype=torch.float64), list(target_probs))

    for drawn in (True, False):
        proposal, rows = random_case(3, (-1, 0), drawn)
        assert fast.outcomes(Never(), proposal, rows).stops.tolist() == [1, 0, 0]
