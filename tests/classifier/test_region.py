"""A region of a segmentation network is a classifier: closed forms, masks of single images, other forms of output."""

import pytest
import torch
from torch import nn

import fringe

SIZE = 12


class Net(nn.Module):
    """Two smooth convolutions with logits (B, 3, H, W); ``stride`` 2 gives logits of half the size."""

    def __init__(self, stride: int = 1):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, stride=stride), nn.Softplus(), nn.Conv2d(6, 3, 3, padding=1)
        )

    def forward(self, x):
        return self.layers(x)


@pytest.fixture
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().double().eval().requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def square(top: int, left: int, size: int = 4) -> torch.Tensor:
    mask = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    mask[top : top + size, left : left + size] = True
    return mask


def test_logits_and_gradients_are_those_of_the_mean(net, x):
    mask = square(2, 5)
    region = fringe.Region(net, mask)
    expected = net(x)[:, :, mask].mean(-1)
    torch.testing.assert_close(region(x), expected, rtol=1e-13, atol=0)
    assert torch.equal(fringe.Region(net, mask.numpy())(x), region(x))
    score, gradient = fringe.Classifier(region).score_gradient(x, torch.tensor([0, 1, 2]))
    leaf = x.clone().requires_grad_(True)
    by_hand = net(leaf)[:, :, 2:6, 5:9].mean((-2, -1))[range(3), [0, 1, 2]]
    torch.testing.assert_close(score, by_hand.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(by_hand.sum(), leaf)[0], rtol=1e-12, atol=1e-15)


def test_a_map_stays_within_what_the_region_sees(net, x):
    """A 5 x 5 receptive field: pixels more than two away from the region have the gradient zero."""
    seen = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    seen[2:10, 3:11] = True  # the region 4..7 x 5..8 and two pixels around it
    values = fringe.attribute(fringe.Region(net, square(4, 5)), x, method="ig").values
    assert values[:, :, ~seen].abs().max() == 0
    assert values[:, :, seen].abs().sum() > 0


def test_masks_of_single_images_follow_their_images(net, x):
    masks = torch.stack([square(0, 0), square(4, 4), square(7, 2, 5)])
    method = fringe.FRInGe(tau=1e-2)
    together = fringe.attribute(fringe.Region(net), x, method=method, forward_kwargs={"mask": masks}, batch_size=2)
    for i in range(3):
        alone = fringe.attribute(fringe.Region(net, masks[i]), x[i : i + 1], method=method)
        torch.testing.assert_close(together.values[i], alone.values[0], rtol=1e-6, atol=1e-10)


def test_a_mask_of_another_size_is_averaged(x):
    coarse = Net(stride=2).double().requires_grad_(False)
    mask = square(0, 0, 3)  # 3 x 3 of the image cover one output cell, half of two, and a quarter of one
    weights = torch.tensor([[1.0, 0.5], [0.5, 0.25]], dtype=torch.float64)
    expected = (coarse(x)[:, :, :2, :2] * weights).sum((-2, -1)) / weights.sum()
    torch.testing.assert_close(fringe.Region(coarse, mask)(x), expected)


class Named(nn.Module):
    def __init__(self, net, form):
        super().__init__()
        self.net, self.form = net, form

    def forward(self, x):
        return self.form(self.net(x))


@pytest.mark.parametrize(
    "form",
    [lambda z: {"out": z, "aux": z + 1}, lambda z: {"logits": z}, lambda z: type("Record", (), {"logits": z})()],
)
def test_other_forms_of_output(net, x, form):
    mask = square(2, 2)
    torch.testing.assert_close(fringe.Region(Named(net, form), mask)(x), fringe.Region(net, mask)(x))


@pytest.mark.parametrize("convolution", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_regions_of_series_and_volumes_are_means_too(convolution):
    """A mask that is empty in some slices of a volume, and one for each volume."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = convolution(2, 3, 3, padding=1).double().eval()
    axes = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[convolution]
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, 2, *[6] * axes, generator=draw, dtype=torch.float64)
    mask, second = torch.zeros(2, *[6] * axes, dtype=torch.bool)
    mask[(slice(1, 4),) * axes], second[(slice(0, 2),) * axes] = True, True
    expected = net(x)[:, :, mask].mean(-1)
    torch.testing.assert_close(fringe.Region(net, mask)(x), expected)
    torch.testing.assert_close(fringe.Region(net, mask[None])(x), expected)
    each = torch.stack([net(x)[0][:, mask].mean(-1), net(x)[1][:, second].mean(-1)])
    torch.testing.assert_close(fringe.Region(net)(x, mask=torch.stack([mask, second])), each)
    assert fringe.attribute(fringe.Region(net, mask), x, method="ig").verdict == ("ok", "ok")
    with pytest.raises(
        fringe.InputError, match=rf"mask: got shape .*, expected \({['L', 'H, W', 'D, H, W'][axes - 1]}\)"
    ):
        fringe.Region(net, torch.ones([2] * (axes + 1)))(x)


def test_what_is_no_region_is_refused(net, x):
    with pytest.raises(fringe.InputError, match="mask: it is empty; choose at least one pixel"):
        fringe.Region(net, torch.zeros(4, 4))
    with pytest.raises(fringe.InputError, match=r"mask: got shape \(2, 12, 12\), expected \(H, W\); masks of single"):
        fringe.Region(net, torch.stack([square(0, 0)] * 2))(x)
    with pytest.raises(fringe.InputError, match="mask: it is empty; choose at least one pixel"):
        fringe.Region(net)(x, mask=torch.stack([square(0, 0), 0 * square(0, 0), square(0, 0)]))
    with pytest.raises(fringe.InputError, match="finite and not negative"):
        fringe.Region(net, -torch.ones(4, 4))
    with pytest.raises(fringe.InputError, match="mask: this region has none"):
        fringe.Region(net)(x)
    with pytest.raises(fringe.ModelOutputError, match=r"its output is shape \(3, 3\), expected logits \(3, C, H, W\)"):
        fringe.Region(lambda z: z.mean((-2, -1)), square(0, 0))(x)


def test_torchvision_segmentation_networks(x):
    from fringe.models._torchvision import import_torchvision

    segmentation = import_torchvision().models.segmentation
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    net = net.eval().requires_grad_(False)
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    mask = torch.zeros(64, 64, dtype=torch.bool)
    mask[16:48, 16:48] = True
    result = fringe.attribute(fringe.Region(net, mask), image, method="ig")
    expected = net(image)["out"][:, :, 16:48, 16:48].mean((-2, -1))
    torch.testing.assert_close(result.score, expected.amax(1))
    assert result.completeness_residual.max() < 0.05
