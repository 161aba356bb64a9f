"""Algorithm 1 of the paper against explicit matrices in float64, and its table."""

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import scipy
import torch
from attribution_oracles import laplacian_matrix, relative
from attribution_toys import Linear, SmallNet, Smooth, inputs, small_images
from torch import Tensor

import fringe
from conftest import SHARED
from fringe.attribution import PaperFRInGe, ReleasedFRInGe, get_method
from fringe.attribution._fisher_rao import Bound
from fringe.attribution._paper import VARIANTS, blur, conjugate_gradients, laplacian, table
from toys import normal

EXACT = PaperFRInGe(tau=2e-2, delta_euc=0.7, damping=1e-3, cg_iterations=200, cg_rtol=1e-13)
"""Conjugate gradients run to the end."""


def dense(model, image: Tensor, target: int, m: PaperFRInGe) -> tuple[Tensor, Tensor]:
    """The map of an image (2, 8, 8) and where its path ends, by Algorithm 1 with the Fisher matrix itself."""
    rough = laplacian_matrix(8, 8)
    ltl, one = torch.block_diag(*[rough.T @ rough] * 2), torch.eye(128).double()

    def logits(x):
        return model(x.view(1, 2, 8, 8))[0]

    def gradient(x):
        return torch.autograd.functional.jacobian(logits, x)

    x, root0 = image.flatten(), logits(image.flatten()).softmax(-1).sqrt()
    root1 = torch.full_like(root0, len(root0) ** -0.5)
    theta, path_integral = torch.arccos(root0 @ root1), torch.zeros_like(x)
    steps = math.ceil(2 * theta.item() / math.sqrt(2 * m.tau))
    for k in range(steps):
        alpha = (k + 1) / steps
        s = (torch.sin((1 - alpha) * theta) * root0 + torch.sin(alpha * theta) * root1) / torch.sin(theta)
        p, j = logits(x).softmax(-1), gradient(x)
        softmax = torch.diag(p) - torch.outer(p, p)
        # d(1 - <sqrt p, s>)/dlogits by the chain rule: dsqrt(p)/dp = 1/(2 sqrt p), dp/dlogits = diag p - p p'
        b = j.T @ (softmax @ (-s / (2 * p.sqrt()))) + m.gamma_prior * ltl @ x
        fisher = j.T @ softmax @ j
        v = b if m.direction == "gradient" else torch.linalg.solve(fisher + m.damping * one + m.gamma_step * ltl, b)
        eta = m.eta_max
        if m.kl_bound:
            eta = min(eta, math.sqrt(2 * m.tau / ((v @ fisher @ v).item() + 1e-12)))
        if m.delta_euc is not None:
            eta = min(eta, m.delta_euc / (v.norm().item() + 1e-12))
        after = x - eta * v
        path_integral += 0.5 * (j[target] + gradient(after)[target]) * (after - x)
        x = after
    return -path_integral.view(2, 8, 8), x.view(2, 8, 8)


@pytest.mark.parametrize(
    ("variant", "few"), [*((name, True) for name in VARIANTS), ("fringe", False), ("non_geometric", False)]
)
def test_the_path_and_its_ablations_equal_dense_algebra(variant, few):
    """With J as a whole where K is at least the number of classes, and by products."""
    model, x = Smooth(classes=5 if few else 130), inputs(2)
    method = dataclasses.replace(EXACT.variant(variant), cg_iterations=200 if few else 129)
    method = dataclasses.replace(method, eta_max=0.3 if variant == "euclidean" else method.eta_max)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    assert (found.passes.jvp > 0) == (method.kl_bound and not (few and method.direction == "natural"))
    for i, target in enumerate(found.target.tolist()):
        values, end = dense(model, x[i], target, method)
        assert relative(found.values[i], values) < 1e-8
        assert relative(found.trajectory[i].snapshots[-1], end) < 1e-8


def krylov(matrix: Tensor, b: Tensor, inverse: Tensor, start: Tensor, most: int) -> Tensor:
    """The point of least energy of ``start`` + span{M r, M A M r, ...}, of dimension ``most``: what exact conjugate
    gradients with the preconditioner M return."""
    residual = b - matrix @ start
    basis = [inverse @ residual]
    for _ in range(most - 1):
        basis.append(inverse @ (matrix @ basis[-1]))
        basis = list(torch.linalg.qr(torch.stack(basis, 1))[0].unbind(1))
    span = torch.stack(basis, 1)
    return start + span @ torch.linalg.solve(span.T @ matrix @ span, span.T @ residual)


@pytest.mark.parametrize("most", [1, 3, 7])
def test_a_solve_that_is_cut_off_is_the_exact_projection(most):
    """Of systems with conditions of 1e2 and 1e6 in one batch, from a start that is not zero."""
    n, q = 24, torch.linalg.qr(normal(2, 24, 24))[0]
    spectra = torch.stack([torch.logspace(-c, 0, n).double() for c in (2, 6)])
    a, (b, start) = q * spectra[:, None] @ q.mT, normal(2, 2, n, seed=1)
    half = normal(n, n, seed=2)
    inverse = half @ half.T / n + torch.eye(n).double()
    found = conjugate_gradients(
        lambda v: (a @ v[..., None])[..., 0], b, lambda r: r @ inverse.T, start, rtol=1e-30, most=most
    )
    for i in range(2):
        assert relative(found[i], krylov(a[i], b[i], inverse, start[i], most)) < 1e-8


def test_each_solve_ends_at_its_own_tolerance():
    """An image that has converged rests while another goes on, and a right-hand side of zero asks for no product."""
    a, b, asked = torch.tensor([[2.0] * 6, [1.0, 2, 3, 4, 5, 6], [1.0] * 6]).double(), normal(3, 6), []
    b[2] = 0.0

    def system(v):
        asked.append(v)
        return a * v

    found = conjugate_gradients(system, b, lambda r: r, None, rtol=1e-12, most=50)
    torch.testing.assert_close(found, b / a, rtol=1e-10, atol=0)
    assert len(asked) == 6  # the one with six eigenvalues
    assert torch.equal(conjugate_gradients(system, 0 * b, lambda r: r, None, rtol=1e-3, most=5), 0 * b)
    assert len(asked) == 6


def test_a_solve_has_no_unit():
    """Of a right-hand side that is 2**20 times as small the solution is, too, bit for bit."""
    a, b = torch.arange(1.0, 7.0).double(), normal(1, 6)
    found, small = (conjugate_gradients(lambda v: a * v, c * b, lambda r: r, None, 0.1, 50) for c in (1.0, 2.0**-20))
    assert 0 < relative(found, b / a) < 0.2
    assert torch.equal(2.0**20 * small, found)


def test_an_operator_without_curvature_leaves_the_last_sound_point():
    found = conjugate_gradients(lambda v: -v, normal(1, 4), lambda r: r, None, rtol=1e-3, most=5)
    assert torch.equal(found, torch.zeros(1, 4).double())


def test_the_laplacian_and_the_blur_are_those_of_padded_images():
    """Edges repeated: numpy's mode symmetric."""
    x = normal(2, 3, 5, 6)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="symmetric")
    stencil = 4 * padded[..., 1:-1, 1:-1] - padded[..., :-2, 1:-1] - padded[..., 2:, 1:-1]
    stencil = stencil - padded[..., 1:-1, :-2] - padded[..., 1:-1, 2:]
    torch.testing.assert_close(laplacian(x), torch.from_numpy(stencil), rtol=1e-13, atol=1e-13)
    taps = np.exp(-0.5 * np.arange(-3, 4) ** 2)
    expected = scipy.ndimage.convolve1d(x.numpy(), taps / taps.sum(), axis=-2, mode="reflect")
    expected = scipy.ndimage.convolve1d(expected, taps / taps.sum(), axis=-1, mode="reflect")
    torch.testing.assert_close(blur(x), torch.from_numpy(expected), rtol=1e-13, atol=1e-13)


def test_a_map_depends_on_no_other_image_and_an_image_at_the_reference_rests():
    """Of different T, in one batch and in two; a linear network is undecided at zero."""
    model, x = Linear(), torch.cat([inputs(2) * 0.3, inputs(1), 0 * inputs(1)])
    method = PaperFRInGe(tau=3e-2)
    seen: list[tuple[int, int]] = []
    together = fringe.attribute(model, x, method=method, progress=lambda *n: seen.append(n))
    assert seen[-1] == (int(together.diagnostics["steps"].sum()),) * 2
    assert len(set(together.diagnostics["steps"].tolist())) > 2
    for i in range(4):
        alone = fringe.attribute(model, x[i : i + 1], method=method)
        torch.testing.assert_close(together.values[i : i + 1], alone.values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(together.diagnostics["path_length"][i], alone.diagnostics["path_length"][0])
    assert (together.diagnostics["steps"][3], together.verdict[3]) == (0, "stalled")
    assert "already is the uniform distribution" in together.advice[3]
    in_parts = fringe.attribute(fringe.Classifier(model, batch_size=3), x, method=method)
    torch.testing.assert_close(in_parts.values, together.values, rtol=1e-9, atol=1e-12)


def test_memory_that_ends_in_the_first_step_costs_no_image():
    model, x = Smooth(), inputs(4)
    expected = fringe.attribute(model, x, method=PaperFRInGe(tau=0.1)).values

    def limited(z):
        if len(z) > 2 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("simulated")
        return model(z)

    classifier = fringe.Classifier(limited, batch_size=4)
    found = fringe.attribute(classifier, x, method=PaperFRInGe(tau=0.1))
    torch.testing.assert_close(found.values, expected, rtol=1e-9, atol=1e-12)
    assert classifier.batch_size.on(x.device) == 2


def test_each_bound_sets_the_step_where_it_is_the_smallest():
    model, x, far = SmallNet(), small_images(1), {"delta_euc": None, "kl_bound": False}
    for settings, bound, name, expected in (
        ({"eta_max": 0.01, **far}, Bound.ETA_MAX, "step_size", 0.01),
        ({"eta_max": 1e9, "kl_bound": False}, Bound.EUCLIDEAN, "euclidean_step", 0.01 * math.sqrt(x[0].numel())),
        ({"eta_max": 1e9, "delta_euc": 0.02}, Bound.EUCLIDEAN, "euclidean_step", 0.02),
    ):
        steps = fringe.attribute(model, x, method=PaperFRInGe(tau=5e-3, **settings), telemetry=True).trajectory[0].steps
        assert set(steps["active_bound"].tolist()) == {bound}
        assert steps[name].tolist() == pytest.approx([expected] * len(steps[name]), rel=1e-9)


def test_a_path_that_lost_less_than_half_of_the_divergence_is_short():
    found = fringe.attribute(Smooth(), inputs(2), method=PaperFRInGe(tau=0.1, delta_euc=0.05))
    assert found.verdict == ("short", "short")
    lost = 1 - found.diagnostics["endpoint_kl"] / (math.log(5) - found.diagnostics["entropy"])
    for share, advice in zip(lost.tolist(), found.advice, strict=True):
        assert f"lost only {share:.0%} of its divergence from the uniform one (ok needs 50%)" in advice


@pytest.mark.parametrize("settings", [{"cg_iterations": 3}, {"direction": "gradient", "cg_iterations": 9}])
def test_planned_passes_are_those_of_its_steps(settings):
    """Where every solve uses all its iterations."""
    spent = {}
    for tau in (0.3, 0.05):
        method = PaperFRInGe(tau=tau, cg_rtol=1e-30, **settings)
        found = fringe.attribute(Smooth(), inputs(1), method=method)
        spent[int(found.diagnostics["steps"])] = found.passes.forward + found.passes.jvp + found.passes.vjp
    (fewer, less), (more, much) = sorted(spent.items())
    farthest = math.pi / math.sqrt(2 * 0.05)
    assert (much - less) / (more - fewer) == pytest.approx(method.planned_passes / farthest)


def test_other_inputs_than_images_are_refused():
    with pytest.raises(
        fringe.InputError, match=r"paper smooths images \(B, C, H, W\), got .* \(2, 6\); use method='fr"
    ):
        fringe.attribute(lambda x: x[:, :3], torch.randn(2, 6), method="paper")


# The table


@pytest.mark.shared
def test_the_shipped_table_is_the_paper_s():
    with (SHARED / "paper" / "hyperparameters.csv").open() as file:
        assert list(table().values()) == list(csv.DictReader(file))
    assert len(table()) == 18


def test_variants_take_parts_out_and_those_of_the_table_have_their_own_numbers():
    method = PaperFRInGe.preset("resnet50")
    for name, changes in VARIANTS.items():
        assert method.variant(name) == dataclasses.replace(method, **changes)
    euclidean = PaperFRInGe.preset("vgg19", "euclidean")
    assert (euclidean.eta_max, euclidean.tau, euclidean.direction) == (0.01817, 3.0449e-4, "gradient")
    assert (euclidean.kl_bound, euclidean.delta_euc, euclidean.gamma_step, euclidean.gamma_prior) == (False, None, 0, 0)
    assert PaperFRInGe.preset("resnet18", "fisher_rao_unregularized").damping == 2.7685e-11
    with pytest.raises(fringe.InputError, match="variant: got 'nothing'"):
        method.variant("nothing")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("paper", "paper"), ("auto", "paper:auto"), ("resnet50", "paper:resnet50"), ("full_metric", "paper")),
        *(("released", "released"), ("released_vgg19", "released:vgg19")),
    ],
)
def test_an_old_spelling_is_answered_with_the_new_one(old, new):
    for name in (f"fringe:{old}", f"straight:fringe:{old}"):
        with pytest.raises(fringe.InputError, match=f"'{old}' is a method of its own; write method='{new}'$"):
            get_method(name)
    if not new.endswith("auto"):
        get_method(new)
    assert get_method("fringe_b:resnet50").name == "fringe_b"


def test_the_page_shows_the_settings():
    """docs/paper.md: a column each for the paper's text, the release and the default."""
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.split("## The settings")[1].split("## ")[0].splitlines()]
    shown = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`")}
    methods = PaperFRInGe.preset("resnet50"), ReleasedFRInGe.preset("resnet50"), fringe.FRInGe()
    assert set(shown) >= {"tau", "eta_max", "delta_euc", "damping", "gamma_step", "gamma_prior", "cg_iterations"}
    for name, cells in shown.items():
        assert [str(method.record().get(name, "–")) for method in methods] == cells, name
