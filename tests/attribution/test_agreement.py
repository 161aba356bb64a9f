"""What occlusion says of a map, by loops in float64, and what it cannot see."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import fringe
from fringe.attribution._agreement import describe
from fringe.errors import InputError
from fringe.paths import Occlusion, Problem, filling, part_numbers

BOXES = {
    "row": [(slice(k, k + 1),) for k in range(7)],
    "series": [(slice(None), slice(math.ceil(40 * k / 16), math.ceil(40 * (k + 1) / 16))) for k in range(16)],
    "image": [(slice(None), slice(2 * i, 2 * i + 2), slice(3 * j, 3 * j + 3)) for i in range(5) for j in range(5)],
    "volume": [
        (slice(None), *(slice(2 * k, 2 * k + 2) for k in cell))
        for cell in ((i, j, k) for i in range(3) for j in range(3) for k in range(3))
    ],
}
SHAPES = {"row": (7,), "series": (2, 40), "image": (3, 10, 15), "volume": (2, 6, 6, 6)}


def network(shape, classes=4, seed=0):
    torch.manual_seed(seed)
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 9), nn.Tanh(), nn.Linear(9, classes)).double().eval()


def inputs(shape, count=3):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5


def pearson(a, b):
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm()))


def by_loop(net, x, maps, targets, boxes):
    """The number of each input and class, with signs and without; the plain statement of both."""
    plain, signed = [], []
    for row in range(len(x)):
        for k, target in enumerate(targets[row]):
            drops, sums, sizes = [], [], []
            for box in boxes:
                gone = x[row].clone()
                mean = gone.flatten(1).mean(1) if gone.dim() > 1 else torch.zeros(())
                gone[box] = mean.view(-1, *[1] * (gone.dim() - 1)).expand_as(gone)[box] if gone.dim() > 1 else mean
                drops.append(net(x[row][None])[0, target] - net(gone[None])[0, target])
                sums.append(maps[row, k][box].sum())
                sizes.append(maps[row, k][box].sum(0).abs().sum() if gone.dim() > 2 else maps[row, k][box].sum().abs())
            drops, sums, sizes = map(torch.stack, (drops, sums, sizes))
            plain.append(pearson(sizes, drops.abs()))
            signed.append(pearson(sums, drops))
    return torch.tensor(plain), torch.tensor(signed)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_number_is_that_of_a_loop_in_float64_for_all_classes_at_the_price_of_one(kind):
    shape = SHAPES[kind]
    net, x = network(shape), inputs(shape)
    found = fringe.attribute(net, x, method=fringe.FRInGe(max_steps=5), target="top2", probe=True)
    with torch.no_grad():
        plain, signed = by_loop(net, x, found.values, found.target.tolist(), BOXES[kind])
    assert torch.allclose(found.agreement.flatten(), plain.double(), atol=1e-6)
    assert torch.allclose(found.diagnostics["agreement_signed"].flatten(), signed.double(), atol=1e-6)
    assert found.diagnostics["agreement_parts"].tolist() == [[len(BOXES[kind])] * 2] * 3
    without = fringe.attribute(net, x, method=fringe.FRInGe(max_steps=5), target="top2")
    assert without.agreement is None
    assert torch.equal(without.values, found.values)
    other_grids = 16 + 49 if kind == "image" else 0
    assert found.passes.forward - without.passes.forward == 3 * (len(BOXES[kind]) + other_grids)
    assert (found.passes.jvp, found.passes.vjp) == (without.passes.jvp, without.passes.vjp)
    one = found.of_class(1)
    assert torch.equal(one.agreement, found.agreement[:, 1])
    assert "occlusion" in one.advice[0]


@pytest.mark.parametrize("shape", [(7,), (2, 40), (3, 10, 15)], ids=str)
def test_a_linear_network_agrees_exactly_with_signs(shape):
    net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 3)).double().eval()
    x = inputs(shape)
    start = "zero" if len(shape) == 1 else "mean"
    found = fringe.attribute(net, x, method=fringe.IntegratedGradients(baseline=start), probe=True)
    assert torch.allclose(found.diagnostics["agreement_signed"], torch.ones(3).double(), atol=1e-9)
    assert torch.allclose(found.diagnostics["agreement_signs"], torch.ones(3).double(), atol=1e-9)
    if len(shape) < 3:
        assert torch.allclose(found.agreement, torch.ones(3).double(), atol=1e-9)


class Fixed(nn.Module):
    """A table: two columns of which either is enough, and others that change nothing."""

    def forward(self, x):
        score = torch.maximum(x[:, 0], x[:, 1]) + 0.3 * x[:, 2]
        return torch.stack([score, -score], 1)


def problem_of(net, x, target=0, **fields):
    return Problem.of(fringe.Classifier(net), x, target=target, **fields)


def occlusion_of(net, x):
    problem = problem_of(net, x)
    numbers = part_numbers(problem)
    return Occlusion.of(problem, numbers, filling(problem, numbers))


def test_what_it_is_blind_to():
    """The sign of a map, a pair of parts that stand for each other, and what cancels in a part: docs/trust.md."""
    x = torch.tensor([[2.0, 2.0, 1.0, 0.0, 0.0]])
    right = torch.tensor([[1.0, 1.0, 0.3, 0.0, 0.0]])
    assert float(occlusion_of(Fixed().eval(), x).agreement(right, sizes=False)) < 0  # one of the pair is enough
    series = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(0))
    found = occlusion_of(network((1, 32)).float(), series)
    assert found.agreement(series, sizes=False).equal(found.agreement(-series, sizes=False))
    with_signs = found.agreement(series, sizes=False, signed=True)
    assert torch.allclose(found.agreement(-series, sizes=False, signed=True), -with_signs)
    cancels = torch.tensor([1.0, -1.0]).repeat(16).view(1, 1, 32)
    sums = found.sums(series)
    assert torch.allclose(found.sums(series + 100 * cancels), sums, atol=1e-4)
    assert not torch.allclose(found.sums(series + 100 * cancels, sizes=True), found.sums(series, sizes=True))


@pytest.mark.parametrize("case", ["constant network", "constant map", "too few parts"])
def test_it_is_undefined_and_says_so(case):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.tensor([[2.0, -1.0]]) + 0.0 * x.sum(1, keepdim=True)

    x = torch.tensor([[1.0, 2.0]] if case == "too few parts" else [[1.0, 2.0, 3.0, 4.0]])
    net = Constant() if case == "constant network" else nn.Linear(x.shape[1], 2).eval()
    occlusion = occlusion_of(net.eval(), x)
    values = torch.ones_like(x) if case == "constant map" else torch.arange(x.shape[1]).float()[None]
    assert occlusion.agreement(values, sizes=False).isnan().all()
    assert "says nothing of the map" in describe(1, 4, math.nan, math.nan)
    if case == "constant network":
        found = fringe.attribute(net.eval(), x, method="ig", probe=True)
        assert found.agreement.isnan().all()
        assert "says nothing of the map" in found.advice[0]


def test_drops_that_are_equal_within_rounding_are_no_drops():
    """Each of seven equal parts of a linear network has one seventh, up to the last digit of a float32."""
    net = nn.Linear(7, 2).eval()
    with torch.no_grad():
        net.weight.fill_(0.3)
        net.bias.copy_(torch.tensor([9.0, 1.0]))
        net.weight += 2e-7 * torch.arange(14.0).view(2, 7)
    found = occlusion_of(net, torch.full((1, 7), 1.1))
    assert found.agreement(torch.arange(7.0)[None], sizes=False).isnan().all()


def test_padding_is_no_part_of_a_series():
    net = network((1, 48))
    x = inputs((1, 48))
    x[0, :, 32:] = 0
    tail = x[0, :, 32:].clone()

    class Short(nn.Module):
        def forward(self, z):
            return net(torch.cat([z, tail.expand(len(z), 1, 16)], -1))

    together = fringe.attribute(net, x, lengths=[32, 48, 48], method="ig", probe=True, target=1, axes="CL")
    alone = fringe.attribute(Short().eval(), x[:1, :, :32], method="ig", probe=True, target=1, axes="CL")
    assert torch.allclose(together.agreement[0], alone.agreement[0], atol=1e-9)
    assert together.diagnostics["agreement_parts"].tolist() == [16, 16, 16]


def test_the_callers_parts_and_baseline_are_taken():
    net, x = network((2, 12)), inputs((2, 12), 1)
    mask = (torch.arange(12) // 3).expand(1, 2, 12)
    fill = torch.full_like(x, 0.25)
    found = fringe.attribute(net, x, method="ig", probe=True, feature_mask=mask, baseline=0.25, target=0)
    drops, sums = [], []
    for k in range(4):
        drops.append((net(x) - net(torch.where(mask == k, fill, x)))[0, 0])
        sums.append(found.values[mask == k].sum())
    drops, sums = torch.stack(drops).detach(), torch.stack(sums)
    assert float(found.agreement) == pytest.approx(pearson(sums.abs(), drops.abs()), abs=1e-9)
    captum = fringe.attribute(net, x, method="captum:occlusion", feature_mask=mask, baseline=0.25, target=0)
    assert torch.allclose(captum.values, drops[mask[0, 0]].expand(1, 2, 12))
    with pytest.raises(InputError, match="probe=True"):
        fringe.attribute(net, x, method="ig", feature_mask=mask)
    with pytest.raises(InputError, match="probe"):
        fringe.attribute(net, x, method="ig", probe=2)


def test_a_batch_gives_each_input_its_own_number_and_a_broken_map_none():
    net, x = network((3, 10, 15)), inputs((3, 10, 15))
    together = fringe.attribute(net, x, method="ig", probe=True, batch_size=2)
    for row in range(3):
        alone = fringe.attribute(net, x[row : row + 1], method="ig", probe=True)
        assert torch.allclose(together[row].agreement, alone.agreement, atol=1e-9)
        assert together.advice[row] == alone.advice[0]
    x[1, 0, 0, 0] = torch.nan
    marked = fringe.attribute(net, x, method="ig", probe=True, bad_images="mark")
    assert marked.agreement.isnan().tolist() == [False, True, False]


def test_several_tensors_have_their_parts_one_after_the_other():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.row, self.series = nn.Linear(3, 2), nn.Linear(20, 2)

        def forward(self, row, series):
            return self.row(row) + self.series(series.flatten(1)).tanh()

    torch.manual_seed(0)
    net, pair = Two().double().eval(), (inputs((3,)), inputs((1, 20)))
    found = fringe.attribute(net, pair, method="ig", probe=True, target=0)
    assert found.diagnostics["agreement_parts"].tolist() == [3 + 16] * 3
    boxes = [(0, slice(k, k + 1)) for k in range(3)]
    boxes += [(1, slice(math.ceil(20 * k / 16), math.ceil(20 * (k + 1) / 16))) for k in range(16)]
    drops, sums = [], []
    for which, place in boxes:
        gone = [one[:1].clone() for one in pair]
        gone[which][..., place] = 0.0 if which == 0 else pair[1][:1].mean()
        drops.append((net(*(one[:1] for one in pair)) - net(*gone))[0, 0].detach())
        sums.append(found.maps[which][:1][..., place].sum())
    expected = pearson(torch.stack(sums).abs(), torch.stack(drops).abs())
    assert float(found.agreement[0]) == pytest.approx(expected, abs=1e-9)


def test_results_keep_it_in_files_rows_and_tables(tmp_path):
    net, x = network((7,)), inputs((7,))
    found = fringe.attribute(net, x, method="ig", probe=True)
    found.save(tmp_path / "map.safetensors")
    assert torch.equal(fringe.load(tmp_path / "map.safetensors").agreement, found.agreement)
    assert [row["agreement"] for row in found.to_records()] == found.agreement.tolist()
    joined = fringe.Attribution.concat([found[0], fringe.attribute(net, x[1:2], method="ig")])
    assert joined.agreement.isnan().tolist() == [False, True]
    broken = dataclasses.replace(found, agreement=found.agreement[:2])
    broken.save(tmp_path / "broken.safetensors")
    with pytest.raises(InputError, match="damaged"):
        fringe.load(tmp_path / "broken.safetensors")


@pytest.mark.parametrize(
    ("rank", "numbers", "words"),
    [
        (1, (16, 0.6, 0.1), "occlusion of 16 parts: r = 0.60, agrees"),
        (2, (16, 0.59, 0.1), "occlusion of 16 parts: r = 0.59, unclear"),
        (1, (1, 0.39, 0.1), "occlusion of 1 part: r = 0.39, disagrees: compare it"),
        (3, (25, 0.5, 0.7, 0.41, 0.6), "r = 0.50 (0.70 with signs; 0.41 to 0.60 with 16, 25 and 49 parts: steady)"),
        (3, (25, 0.5, 0.7, 0.39, 0.6), "49 parts: not steady)"),
        (3, (25, 0.3, 0.2, 0.2, 0.3), "occlusion says otherwise: compare it with method='gradcam'"),
        (4, (27, 0.3, 0.2), "r = 0.30 (0.20 with signs), occlusion says otherwise"),
    ],
)
def test_words(rank, numbers, words):
    assert words in describe(rank, *numbers)
    assert "wrong" not in describe(rank, *numbers)


def test_of_a_series_a_high_number_has_no_word():
    assert describe(2, 16, 0.9, 0.1) == "occlusion of 16 parts: r = 0.90"


def test_an_image_whose_signed_sums_agree_is_not_said_to_be_otherwise():
    """A linear network: where the signs of a map cancel within parts its sizes say little, and its sums are exact."""
    assert "otherwise" not in describe(3, 25, 0.28, 1.0, 0.07, 0.32)
