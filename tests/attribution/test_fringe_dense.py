"""One step and whole paths against explicit matrices, in float64."""

import dataclasses

import pytest
import torch
from attribution_oracles import DenseFRInGe, assert_dense, laplacian_matrix, relative
from attribution_toys import Smooth, inputs

import fringe
from fringe.attribution import Diffusion, _fisher_rao
from fringe.geometry import fisher_norm_squared, geodesic, log_probabilities, sqrt_chart

GEODESIC = fringe.FRInGe(tau=8e-3, delta_euc=0.7, damping=1e-3)


@pytest.mark.parametrize("method", [GEODESIC, Diffusion.of(GEODESIC)])
def test_whole_path_equals_dense_algebra(method):
    model, x = Smooth(), inputs(2)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    assert_dense(found, model, method, x)


@pytest.mark.parametrize(("rank", "gamma_prior"), [(1, 3e-3), (2, 3e-3), (2, 0.0), (3, 0.0)])
def test_whole_path_of_low_rank_equals_dense_algebra(rank, gamma_prior, monkeypatch):
    monkeypatch.setitem(_fisher_rao.RANK, "image", rank)
    model, x = Smooth(), inputs(3)
    method = dataclasses.replace(GEODESIC, gamma_prior=gamma_prior)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    assert_dense(found, model, method, x, rank)


def test_without_jvps_the_whole_path_begins_at_the_least_norm():
    """m m^T is part of G: the first step takes (m^T v)^2 for v^T G v, and the further ones learn from it."""
    model, x = Smooth(), inputs(3)
    method = dataclasses.replace(GEODESIC, delta_euc=None)
    classifier = fringe.Classifier(model)
    classifier.jvp_mode = "none"
    found = fringe.attribute(classifier, x, method=method, telemetry=True)
    usual = fringe.attribute(model, x, method=method)
    assert_dense(found, model, method, x, ratio=1.0)
    assert min(map(relative, usual.values, found.values)) > 1e-3  # a JVP gives another first step


@pytest.mark.parametrize("damping", [1e-6, 1e-2])
@pytest.mark.parametrize("sharpness", [1.0, 6.0])
def test_full_rank_is_the_exact_solve(damping, sharpness, monkeypatch):
    """With C - 1 columns, W W^T is the Fisher metric itself, for sure predictions (p = 1 - 1e-6) too."""
    model, x = Smooth(sharpness=sharpness), inputs(2)
    whole = dataclasses.replace(GEODESIC, damping=damping)
    monkeypatch.setitem(_fisher_rao.RANK, "image", 4)
    found, _, waypoint, norm = direction(model, whole, x)
    monkeypatch.setitem(_fisher_rao.RANK, "image", 9)
    more, *_ = direction(model, whole, x)
    for i in range(2):
        exact = DenseFRInGe(model, whole, rank=4).step(x[i].flatten(), waypoint[i], exact=True)
        assert relative(found[i].flatten(), exact.v) < 1e-8
        assert relative(more[i].flatten(), exact.v) < 1e-8
        assert norm[i].item() == pytest.approx(exact.fisher_norm_squared, rel=1e-6)


@pytest.mark.parametrize("structure", ["none", "sequence"])
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("gamma_prior", [0.0, 0.4])
@pytest.mark.parametrize(("sharpness", "slope"), [(1.0, 0.2), (6.0, 0.2), (6.0, 1e-3), (60.0, 0.2), (250.0, 0.2)])
def test_tables_and_sequences_measure_the_damping_along_the_geodesic(
    structure, rank, gamma_prior, sharpness, slope, monkeypatch
):
    """(W W^T + u R) v = -|t| m / 2 + u gamma_prior L^T L x with u = |m|^2 / 100 and m the first column of W. No
    coefficient of v in the eigenbasis of R is larger than 1e6, as those of a saturated prediction would be."""
    generator = torch.Generator().manual_seed(3)
    x, first, second = (torch.randn(*s, generator=generator).double() for s in ((3, 2, 12), (24, 16), (16, 5)))
    model = lambda z: sharpness * torch.tanh(slope * z.flatten(1) @ first) @ second  # noqa: E731
    monkeypatch.setitem(_fisher_rao.RANK, structure, rank)
    method = fringe.FRInGe(structure=structure, damping=0.05, gamma_step=0.3, gamma_prior=gamma_prior)
    found, along, waypoint, _ = direction(model, method, x)
    rough = laplacian_matrix(1, 12)
    rough = rough if structure == "sequence" else torch.zeros_like(rough)
    smoothness, modes = torch.block_diag(rough.T @ rough, rough.T @ rough), torch.linalg.eigh(rough).eigenvectors
    for i in range(3):
        j = torch.autograd.functional.jacobian(lambda z: model(z[None])[0], x[i]).flatten(1)
        root = model(x[i : i + 1])[0].softmax(-1).sqrt()
        # s o q sums to zero for q orthogonal to s: in differences to the most probable logit, no digit of it is lost
        j = j - j[root.argmax()]
        columns = j.T @ (root[:, None] * DenseFRInGe(model, method, rank=rank).directions(root, waypoint[i]))
        m, tangent = columns[:, 0], waypoint[i] - root * (root @ waypoint[i])
        unit = m @ m / 100
        metric = columns @ columns.T + unit * (0.05 * torch.eye(24).double() + 0.3 * smoothness)
        b = -tangent.norm() / 2 * m + unit * gamma_prior * smoothness @ x[i].flatten()
        v = torch.linalg.solve(metric, b)
        v = v * (1e6 / (v.view(2, 12) @ modes).abs().max()).clamp_max(1.0)
        assert relative(found[i].flatten(), v) < 1e-10
        assert along[i].item() == pytest.approx((m @ v).item() ** 2, rel=1e-10, abs=0)


def test_of_a_saturated_table_single_precision_has_the_same_direction():
    """Its entries are bounded to 1e6; before that float32 does not hold them."""
    generator = torch.Generator().manual_seed(3)
    x, first, second = (torch.randn(*s, generator=generator) for s in ((3, 24), (24, 16), (16, 5)))
    method = fringe.FRInGe(structure="none")
    found, exact = (
        direction(lambda z: 600.0 * torch.tanh(0.2 * z @ first.to(z)) @ second.to(z), method, x.to(dtype))[0]
        for dtype in (torch.float32, torch.float64)
    )
    assert relative(found.double(), exact) < 1e-3
    assert exact.abs().max().item() == pytest.approx(1e6)


@pytest.mark.parametrize("structure", ["none", "sequence"])
@pytest.mark.parametrize("rank", [1, 2])
def test_where_the_gradient_is_dead_only_the_prior_moves_a_table_or_a_sequence(structure, rank, monkeypatch):
    """One channel of noise of 12: v = R^-1 gamma_prior L^T L x, which is zero where there is no neighbour."""
    x = inputs(1).flatten()[:24].view(2, 1, 12)
    monkeypatch.setitem(_fisher_rao.RANK, structure, rank)
    method = fringe.FRInGe(structure=structure, damping=0.05, gamma_step=0.3, gamma_prior=0.4)
    found, along, *_ = direction(lambda z: 0.0 * z.sum((1, 2))[:, None] + torch.arange(5.0).to(z), method, x)
    rough = laplacian_matrix(1, 12) * (structure == "sequence")
    regulariser = 0.05 * torch.eye(12).double() + 0.3 * rough.T @ rough
    expected = torch.linalg.solve(regulariser, 0.4 * rough.T @ rough @ x.flatten(1).T).T
    torch.testing.assert_close(found.flatten(1), expected, rtol=1e-10, atol=1e-12)
    assert along.tolist() == [0.0, 0.0]


def test_at_its_own_waypoint_only_the_prior_moves_an_image():
    model, x = Smooth(), inputs(2)
    classifier = fringe.Classifier(model)
    with classifier.session(x.device):
        point = classifier.linearise(x)
        log_p = log_probabilities(point.value)
        for gamma_prior in (0.0, 1e-3):
            method = dataclasses.replace(GEODESIC, gamma_prior=gamma_prior)
            v, *_ = method.path(128).on(x[0]).direction(point, log_p, sqrt_chart(log_p), x)
            expected = torch.linalg.solve(
                method.damping * torch.eye(128).double() + method.gamma_step * DenseFRInGe(model, method).ltl,
                gamma_prior * DenseFRInGe(model, method).ltl @ x.flatten(1).T,
            ).T
            torch.testing.assert_close(v.flatten(1), expected, rtol=1e-9, atol=1e-12)


def direction(model, method, x):
    """The direction v of ``method`` at ``x`` towards a tenth of the geodesic to the uniform distribution, (m^T v)^2,
    that
    waypoint, and v^T G v."""
    classifier = fringe.Classifier(model)
    with classifier.session(x.device):
        point = classifier.linearise(x)
        log_p = log_probabilities(point.value)
        waypoint = geodesic(sqrt_chart(log_p), torch.full_like(log_p, 5**-0.5), 0.1)
        v, along, _ = method.path(128).on(x[0]).direction(point, log_p, waypoint, x)
        return v, along, waypoint, fisher_norm_squared(log_p.exp(), point.jvp(v))
