"""FRInGe with explicit matrices: J by reverse mode, S, G, L and L'L as dense arrays, each system by LU."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import fringe


def laplacian_matrix(height: int, width: int) -> Tensor:
    """The negative 5-point Laplacian with mirrored edges, (HW, HW), built neighbour by neighbour."""
    matrix = torch.zeros(height * width, height * width, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                a, b = i + di, j + dj
                if 0 <= a < height and 0 <= b < width:
                    matrix[i * width + j, i * width + j] += 1.0
                    matrix[i * width + j, a * width + b] -= 1.0
    return matrix


@dataclass
class DenseStep:
    """What one step computes, (n,) vectors and numbers."""

    v: Tensor
    eta: float
    fisher_norm_squared: float
    geodesic_norm_squared: float = 0.0


class DenseFRInGe:
    """The method ``m`` on one image of (2, 8, 8), solved exactly."""

    def __init__(self, model, m: fringe.FRInGe):
        self.model, self.m = model, m
        rough = laplacian_matrix(8, 8)
        self.ltl = torch.block_diag(*[rough.T @ rough] * 2)

    def logits(self, x: Tensor) -> Tensor:
        return self.model(x.view(1, 2, 8, 8))[0]

    def jacobian(self, x: Tensor) -> Tensor:
        return torch.autograd.functional.jacobian(self.logits, x)

    def step(self, x: Tensor, waypoint: Tensor, ratio: float | None = None) -> DenseStep:
        m, j, p = self.m, self.jacobian(x), self.logits(x).softmax(-1)
        fisher = j.T @ (torch.diag(p) - torch.outer(p, p)) @ j
        root = p.sqrt()
        # d(1 - <sqrt p, s>)/dlogits by the chain rule: dsqrt(p)/dp = 1/(2 sqrt p), dp/dlogits = S
        g = j.T @ ((torch.diag(p) - torch.outer(p, p)) @ (-waypoint / (2 * root)))
        b = g + m.gamma_prior * self.ltl @ x
        regulariser = m.damping * torch.eye(128, dtype=torch.float64) + m.gamma_step * self.ltl
        columns = (j.T @ (root[:, None] * self.directions(root, waypoint))) if m.solve == "geodesic" else None
        metric = fisher if columns is None else columns @ columns.T
        if m.solve == "diffusion":
            v = torch.linalg.solve(regulariser, m.gamma_prior * self.ltl @ x)
        else:
            v = b if m.solve == "gradient" else torch.linalg.solve(metric + regulariser, b)
        norm = (v @ fisher @ v).item()
        along = 0.0 if columns is None else (columns[:, 0] @ v).item() ** 2
        if ratio is not None:
            norm = ratio * along
        bounds = [m.eta_max]
        if m.kl_bound:
            bounds.append(math.sqrt(2 * m.tau / (norm + 1e-12)))
        if isinstance(m.delta_euc, float):
            bounds.append(m.delta_euc / (v.norm().item() + 1e-12))
        return DenseStep(v, min(bounds), norm, along)

    def directions(self, root: Tensor, waypoint: Tensor) -> Tensor:
        """(C, r): the unit tangent towards the waypoint, then axes of the most probable classes made orthogonal to it
        and to ``root``, always the one of which most remains."""
        tangent = waypoint - root * (root @ waypoint)
        basis, count = (
            [tangent / tangent.norm()],
            min(1 if self.m.fisher_rank == "auto" else self.m.fisher_rank, len(root) - 1),
        )
        axes = torch.eye(len(root), dtype=torch.float64)[root.argsort(descending=True)[: count + 1]]
        while len(basis) < count:
            known = torch.stack([root, *basis])
            rest = [axis - known.T @ torch.linalg.lstsq(known.T, axis).solution for axis in axes]
            longest = max(rest, key=lambda r: r.norm().item())
            basis.append(longest / longest.norm())
        return torch.stack(basis, 1)

    def explain(self, image: Tensor, target: int) -> tuple[Tensor, Tensor]:
        """Attribution and end point, (2, 8, 8) each."""
        x, p0 = image.flatten(), self.logits(image.flatten()).softmax(-1)
        root0, root1 = p0.sqrt(), torch.full_like(p0, 1 / len(p0)).sqrt()
        theta = torch.arccos(root0 @ root1)
        steps = math.ceil(2 * theta.item() / math.sqrt(2 * self.m.tau))
        total, ratio = torch.zeros_like(x), None
        for k in range(self.m.max_steps if self.m.until == "arrival" else steps):  # arrivals are not looked for
            alpha = min((k + (self.m.waypoint == "next")) / steps, 1.0)
            waypoint = (torch.sin((1 - alpha) * theta) * root0 + torch.sin(alpha * theta) * root1) / torch.sin(theta)
            found = self.step(x, waypoint, ratio)
            after = x - found.eta * found.v
            if self.m.feedback is not None and self.m.solve == "geodesic":
                ratio = found.fisher_norm_squared / found.geodesic_norm_squared
                made = 2 * torch.arccos(self.logits(x).softmax(-1).sqrt() @ self.logits(after).softmax(-1).sqrt())
                quotient = made.item() ** 2 / (found.fisher_norm_squared * found.eta**2)
                ratio *= min(max(quotient, 0.25), 4.0) ** self.m.feedback
            total -= 0.5 * (self.jacobian(x)[target] + self.jacobian(after)[target]) * (after - x)
            x = after
        return total.view(2, 8, 8), x.view(2, 8, 8)
