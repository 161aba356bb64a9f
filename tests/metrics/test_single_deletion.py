"""Single deletion and SaCo: literal loops, affine scores whose answer is known, and what is not defined."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metrics_toys import additive
from scipy import stats

from fringe.linalg import grid_cells
from fringe.metrics import SaCo, SingleDeletion, evaluate
from fringe.metrics._randomisation import average_ranks
from fringe.metrics._sensitivity import saco, spearman
from toys import Affine, TanhMLP, context_of, normal

X, MAPS = normal(3, 2, 8, 12), normal(3, 2, 8, 12, seed=2)


def reflected(x: torch.Tensor, size: int, sigma: float) -> torch.Tensor:
    """A Gaussian of ``size`` pixels, beyond whose edge the image is mirrored, tap by tap."""
    reach = size // 2
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps /= taps.sum()
    array = x.numpy()
    for axis in (2, 3):
        width = [(0, 0)] * 4
        width[axis] = (reach, reach)
        padded = np.pad(array, width, mode="reflect")
        array = sum(tap * np.take(padded, np.arange(k, k + array.shape[axis]), axis=axis) for k, tap in enumerate(taps))
    return torch.tensor(array)


@pytest.mark.parametrize("how", ["zeros", "blur"])
def test_score_is_the_literal_loop(how):
    model, one = TanhMLP(192), SingleDeletion(deleted_as=how)
    context = context_of(model, X)
    result = evaluate(context, MAPS, [one])[one.name]
    replaced = torch.zeros_like(X) if how == "zeros" else reflected(X, 51, 41.0)
    for i, target in enumerate(context.problem.target.tolist()):
        evidence, losses = [], []
        for row, column in itertools.product(range(4), range(4)):
            place = (slice(2 * row, 2 * row + 2), slice(3 * column, 3 * column + 3))
            image = X[i].clone()
            image[(slice(None), *place)] = replaced[i][(slice(None), *place)]
            evidence.append(float(MAPS[i][(slice(None), *place)].sum()))
            losses.append(float(model(X[i][None])[0, target] - model(image[None])[0, target]))
        assert float(result.values[i]) == pytest.approx(stats.spearmanr(evidence, losses).statistic, abs=1e-12)
        assert float(result.details["loss"][i]) == pytest.approx(losses[int(np.argmax(evidence))], rel=1e-9)


def test_the_contributions_to_an_affine_score_are_perfect_and_their_sign_counts():
    model = Affine(192)
    context = context_of(model, X)
    exact = model.weight[context.problem.target].view_as(X) * X
    one = SingleDeletion()
    for maps, expected in ((exact, 1.0), (5.0 * exact, 1.0), (-exact, -1.0)):
        values = evaluate(context, maps, [one])[one.name].values
        torch.testing.assert_close(values, torch.full((3,), expected, dtype=torch.float64))
    assert bool((evaluate(context, exact.abs(), [one])[one.name].values < 0.9).all())


def test_noise_belongs_to_the_image_and_lies_in_its_range():
    seen = []

    def model(x):
        seen.append(x.detach().clone())
        return x.flatten(1)[:, :3]

    one = SingleDeletion(deleted_as="random")
    context = context_of(model, X, ids="abc")
    evaluate(context, MAPS, [one])
    values = torch.cat(seen[1:]) if len(seen[0]) == 3 else torch.cat(seen)
    changed = values[~torch.isin(values, X)]
    assert len(changed) == 3 * 192  # each entry is deleted once
    assert float(changed.abs().max()) <= 1.0
    assert len(changed.unique()) == len(changed)
    alone = evaluate(context_of(TanhMLP(192), X[1:2], ids="b"), MAPS[1:2], [one])[one.name].values
    together = evaluate(context_of(TanhMLP(192), X, ids="abc"), MAPS, [one])[one.name].values
    torch.testing.assert_close(alone, together[1:2])


def test_the_loss_of_equally_important_cells_is_their_mean():
    x = torch.ones(1, 1, 4, 4, dtype=torch.float64)
    maps = torch.zeros_like(x)
    maps[..., 1, 2] = maps[..., 3, 0] = 2.0
    model = Affine(16)
    result = evaluate(context_of(model, x, target=1), maps, ["single_deletion"])["single_deletion"]
    assert float(result.details["loss"]) == pytest.approx(float(model.weight[1, [6, 12]].mean()), rel=1e-12)


def test_what_is_not_defined_is_nan_and_flagged():
    maps = torch.cat([torch.zeros_like(X[:1]), torch.ones_like(X[:1]), MAPS[2:]])
    result = evaluate(context_of(TanhMLP(192), X), maps, ["single_deletion"])["single_deletion"]
    assert result.flags["undefined"].tolist() == [True, True, False]
    assert result.values.isnan().tolist() == [True, True, False]
    model = Affine(192)
    model.weight.zero_()
    flat = evaluate(context_of(model, X), MAPS, ["single_deletion"])["single_deletion"]
    assert bool(flat.flags["undefined"].all())  # no cell matters
    x = normal(2, 3, 9, 7, seed=4)
    maps = torch.stack([torch.full_like(x[0], 0.1), x[0]])  # cells of 2 to 6 pixels
    uneven = evaluate(context_of(TanhMLP(189), x), maps, ["single_deletion"])["single_deletion"]
    assert uneven.values.isnan().tolist() == uneven.flags["undefined"].tolist() == [True, False]


def test_cells_of_equal_size_or_a_pixel_more():
    assert grid_cells(torch.Size([8]), 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert grid_cells(torch.Size([3]), 4).tolist() == [0, 1, 2]
    cells = grid_cells(torch.Size([7, 6]), 4)
    assert cells.unique().tolist() == list(range(16))
    assert set(cells.flatten().bincount().tolist()) <= {1, 2, 4}
    assert cells[:2, 0].tolist() == [0, 0]
    assert cells[0].tolist() == [0, 0, 1, 2, 2, 3]


NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=9)


@given(NUMBERS, st.randoms())
def test_rank_correlation_is_scipys(numbers, random):
    other = random.sample(numbers, len(numbers))
    a, b = (torch.tensor([v], dtype=torch.float64) for v in (numbers, other))
    assert average_ranks(a)[0].tolist() == stats.rankdata(numbers).tolist()
    if len(set(numbers)) > 1:
        assert float(spearman(a, b)) == pytest.approx(stats.spearmanr(numbers, other).statistic, abs=1e-12)
    else:
        assert bool(spearman(a, b).isnan())


def test_what_is_compared_with_what_is_not_a_number_is_none():
    a, broken = torch.arange(4.0)[None], torch.tensor([[1.0, torch.nan, 3.0, 2.0]])
    assert saco(a, broken).isnan().all()
    assert spearman(a, broken).isnan().all()
    assert spearman(broken, a).isnan().all()


def test_rank_correlation_takes_no_memory_for_pairs():
    a = torch.arange(1e5, dtype=torch.float64)[None]
    assert float(spearman(a, a.square())) == pytest.approx(1.0, abs=1e-12)
    assert float(spearman(a, -a)) == pytest.approx(-1.0, abs=1e-12)


def literal_saco(salience: list[float], losses: list[float]) -> float:
    """Algorithm 1 of the paper."""
    total = weights = 0.0
    for i in range(len(salience) - 1):
        for j in range(i + 1, len(salience)):
            weight = salience[i] - salience[j]
            weight = weight if losses[i] >= losses[j] else -weight
            total += weight
            weights += abs(weight)
    return total / weights if weights else float("nan")


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=8))
def test_saco_is_the_algorithm(pairs):
    salience, losses = ([float(p[k]) for p in pairs] for k in (0, 1))  # a later group may sum to more: it may be larger
    value = float(saco(*(torch.tensor([v], dtype=torch.float64) for v in (salience, losses))))
    assert value == pytest.approx(literal_saco(salience, losses), nan_ok=True, abs=1e-12)


def test_saco_of_an_image_is_the_literal_loop():
    model, context = TanhMLP(192), context_of(TanhMLP(192), X)
    result = evaluate(context, MAPS, ["saco"])["saco"]
    mean = X.mean((2, 3), keepdim=True).expand_as(X)
    for i, target in enumerate(context.problem.target.tolist()):
        spatial = MAPS[i].sum(0).flatten()
        order = spatial.argsort(descending=True, stable=True)
        before, salience, losses = float(model(X[i][None]).softmax(1)[0, target]), [], []
        for k in range(10):
            group = order[k * 96 // 10 : (k + 1) * 96 // 10]
            image = X[i].clone().flatten(1)
            image[:, group] = mean[i].flatten(1)[:, group]
            salience.append(float(spatial[group].sum()))
            losses.append(before - float(model(image.view(1, 2, 8, 12)).softmax(1)[0, target]))
        assert float(result.values[i]) == pytest.approx(literal_saco(salience, losses), abs=1e-9)


def test_saco_knows_its_origin():
    """A probability that is a sum of known weights: the truth scores 1, its inverse -1."""
    weight = torch.arange(40.0, 0.0, -1.0, dtype=torch.float64).view(1, 1, 5, 8)
    weight = weight / weight.sum()
    context = context_of(additive(weight), torch.ones(1, 1, 5, 8, dtype=torch.float64), 1)
    one = SaCo(reference="zeros")
    assert float(evaluate(context, weight, [one])["saco"].values) == pytest.approx(1.0)
    assert float(evaluate(context, -weight, [one])["saco"].values) == pytest.approx(-1.0)
    constant = evaluate(context, torch.ones_like(weight), [SaCo(groups=7)])["saco"]  # groups of 5 and of 6 pixels
    assert bool(constant.values.isnan())
    assert bool(constant.flags["undefined"])
