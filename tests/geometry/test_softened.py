"""Products with the Jacobians of softened logits, against the divided matrix."""

import torch
from torch import Tensor

from fringe.geometry import SoftenedJacobian
from toys import normal


class DenseJacobian:
    """The Jacobians ``matrix`` (B, C, n) of inputs (2, 3, 4)."""

    def __init__(self, matrix: Tensor):
        self.matrix = matrix

    def jvp(self, tangent):
        return (self.matrix @ tangent.flatten(1)[..., None])[..., 0]

    def vjp(self, cotangent):
        return (self.matrix.mT @ cotangent[..., None])[..., 0].view(-1, 2, 3, 4)


def test_softened_products_are_those_of_the_divided_matrix():
    matrix, temperature = normal(3, 5, 24), torch.tensor([1.0, 2.5, 40.0], dtype=torch.float64)
    found, expected = (
        SoftenedJacobian(DenseJacobian(matrix), temperature),
        DenseJacobian(matrix / temperature[:, None, None]),
    )
    torch.testing.assert_close(found.jvp(normal(3, 2, 3, 4)), expected.jvp(normal(3, 2, 3, 4)))
    torch.testing.assert_close(found.vjp(normal(3, 5)), expected.vjp(normal(3, 5)))
    single = SoftenedJacobian(DenseJacobian(matrix.float()), temperature)
    assert single.jvp(normal(3, 2, 3, 4).float()).dtype == single.vjp(normal(3, 5).float()).dtype == torch.float32
