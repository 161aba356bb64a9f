"""The columns of the closed form's metric: orthonormal directions of the square-root chart."""

import pytest
import torch

import fringe
from fringe.geometry import geodesic, log_probabilities, sqrt_chart, to_tangent


@pytest.mark.parametrize("distance", [1e-9, 1e-3, 0.5])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize(("classes", "rank"), [(3, 2), (10, 3), (10, 9), (100, 20), (100, 99)])
def test_directions_are_orthonormal(classes, rank, spread, distance):
    """For predictions from uniform to saturated, and waypoints however near: one Gram-Schmidt pass is enough."""
    generator = torch.Generator().manual_seed(classes)
    s = sqrt_chart(log_probabilities(spread * torch.rand(4, classes, generator=generator, dtype=torch.float64)))
    tangent = to_tangent(geodesic(s, torch.full_like(s, classes**-0.5), distance) - s, s)
    unit = tangent / tangent.norm(dim=-1, keepdim=True)
    solver = fringe.FRInGe(fisher_rank=rank, structure="none").path(classes).step.on(torch.zeros(3))
    basis = torch.stack([s, unit, *solver._more_directions(s, unit)], 1)
    assert basis.shape[1] == min(rank, classes - 1) + 1
    assert (basis @ basis.mT - torch.eye(basis.shape[1]).double()).abs().max() < 2e-14


def test_the_most_probable_classes_come_first():
    """With s and the geodesic in the plane of classes 0 and 1, the next two directions are the axes of 2 and 3."""
    s = torch.tensor([[0.9, 0.4, 1e-3, 1e-4, 1e-5, 1e-6]]).double()
    s = s / s.norm()
    unit = to_tangent(torch.eye(6).double()[1:2], s)
    solver = fringe.FRInGe(fisher_rank=3, structure="none").path(6).step.on(torch.zeros(3))
    directions = torch.cat(solver._more_directions(s, unit / unit.norm()))
    assert sorted(directions.abs().argmax(1).tolist()) == [2, 3]
    assert (directions.abs().amax(1) > 0.999).all()


@pytest.mark.parametrize("preconditioner", ["blur", "scale", "spectral"])
def test_the_operators_of_a_step_share_one_basis(preconditioner):
    """Of a long sequence it is most of the memory: n x n numbers."""
    method = fringe.FRInGe(structure="sequence", preconditioner=preconditioner)
    solver = method.path(300).step.on(torch.zeros(1, 300))
    operators = (solver.biharmonic, solver.regulariser, solver.preconditioner, solver.inverse)
    assert len({operator.bases[0].data_ptr() for operator in operators}) == 1
