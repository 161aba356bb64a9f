"""Methods written out: FRInGe with explicit matrices, and the fits of Geodesic IG one image at a time by autograd."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor
from torch import distributions as dist

import fringe

#: Least entropy at the input for temperature="auto", as a share of the largest.
ENTROPY = 0.5


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
    """The method ``m`` on one image of (2, 8, 8), solved exactly, with a metric of this ``rank``; ``scale`` (n,) is
    what
    its cap multiplies v by."""

    def __init__(self, model, m: fringe.FRInGe, scale: Tensor | float = 1.0, rank: int = 1):
        self.model, self.m, self.scale, self.rank, self.temperature = model, m, scale, rank, 1.0
        rough = laplacian_matrix(8, 8)
        self.ltl = torch.block_diag(*[rough.T @ rough] * 2)

    def logits(self, x: Tensor) -> Tensor:
        return self.model(x.view(1, 2, 8, 8))[0] / self.temperature

    def divergence(self, x: Tensor) -> float:
        """KL of the model's own prediction from the uniform one."""
        p = self.model(x.view(1, 2, 8, 8))[0].softmax(-1)
        return float((p * (p * len(p)).log()).sum())

    def softening(self, image: Tensor) -> float:
        """The temperature of ``image``'s path, by a root finder."""
        if self.m.temperature != "auto":
            return self.m.temperature
        logits = self.model(image[None])[0].numpy()

        def excess(temperature: float) -> float:
            return scipy.stats.entropy(scipy.special.softmax(logits / temperature), base=len(logits)) - ENTROPY

        return 1.0 if excess(1.0) >= 0 else scipy.optimize.brentq(excess, 1.0, 1e6, xtol=1e-13, rtol=1e-13)

    def jacobian(self, x: Tensor) -> Tensor:
        return torch.autograd.functional.jacobian(self.logits, x)

    def step(
        self,
        x: Tensor,
        waypoint: Tensor,
        ratio: float | None = None,
        *,
        earlier: list[Tensor] | None = None,
        exact: bool = False,
    ) -> DenseStep:
        """The step; ``exact`` takes the Fisher metric itself; m, which joins the ``earlier`` ones, counts .7 times as
        much for each step since."""
        m, j, p = self.m, self.jacobian(x), self.logits(x).softmax(-1)
        fisher = j.T @ (torch.diag(p) - torch.outer(p, p)) @ j
        root = p.sqrt()
        # d(1 - <sqrt p, s>)/dlogits by the chain rule: dsqrt(p)/dp = 1/(2 sqrt p), dp/dlogits = S
        g = j.T @ ((torch.diag(p) - torch.outer(p, p)) @ (-waypoint / (2 * root)))
        regulariser = m.damping * torch.eye(128, dtype=torch.float64) + m.gamma_step * self.ltl
        columns = None if m.smooths else (j.T @ (root[:, None] * self.directions(root, waypoint)))
        if columns is not None and earlier is not None:
            earlier.append(columns[:, 0].clone())
            weights = 0.7 ** torch.arange(len(earlier), dtype=x.dtype).flip(0)
            columns[:, 0] = (weights / weights.sum()) @ torch.stack(earlier)
            g = -0.5 * (waypoint - root * (root @ waypoint)).norm() * columns[:, 0]
        b = g + m.gamma_prior * self.ltl @ x
        metric = fisher if columns is None or exact else columns @ columns.T
        if m.smooths:
            v = torch.linalg.solve(regulariser, m.gamma_prior * self.ltl @ x)
        else:
            v = torch.linalg.solve(metric + regulariser, b)
        norm = (v @ fisher @ v).item()
        along = 0.0 if columns is None else (columns[:, 0] @ v).item() ** 2
        if ratio is not None:
            norm = ratio * along
        bounds = [m.eta_max, math.sqrt(2 * m.tau / (norm + 1e-12))]
        if isinstance(m.delta_euc, float):
            bounds.append(m.delta_euc / ((self.scale * v).norm().item() + 1e-12))
        return DenseStep(v, min(bounds), norm, along)

    def directions(self, root: Tensor, waypoint: Tensor) -> Tensor:
        """(C, r): the unit tangent towards the waypoint, then axes of the most probable classes made orthogonal to it
        and to ``root``, always the one of which most remains."""
        tangent = waypoint - root * (root @ waypoint)
        basis, count = [tangent / tangent.norm()], min(self.rank, len(root) - 1)
        axes = torch.eye(len(root), dtype=torch.float64)[root.argsort(descending=True)[: count + 1]]
        while len(basis) < count:
            known = torch.stack([root, *basis])
            rest = [axis - known.T @ torch.linalg.lstsq(known.T, axis).solution for axis in axes]
            longest = max(rest, key=lambda r: r.norm().item())
            basis.append(longest / longest.norm())
        return torch.stack(basis, 1)

    def explain(self, image: Tensor, target: int, ratio: float | None = None) -> tuple[Tensor, Tensor]:
        """Attribution and end point, (2, 8, 8) each; ``ratio`` of v^T G v to (m^T v)^2 that the first step assumes."""
        self.temperature = self.softening(image)
        x, p0 = image.flatten(), self.logits(image.flatten()).softmax(-1)
        root0, root1 = p0.sqrt(), torch.full_like(p0, 1 / len(p0)).sqrt()
        theta = torch.arccos(root0 @ root1)
        steps = math.ceil(2 * theta.item() / math.sqrt(2 * self.m.tau))
        total = torch.zeros_like(x)
        until = "half" if self.m.until == "auto" and self.m.steps is None else self.m.until
        start, level, gained, earlier = self.divergence(x), math.inf, 0, list[Tensor]()
        for k in range({"arrival": self.m.max_steps, "half": 5 * steps}.get(until, steps)):  # no arrival is looked for
            p = self.logits(x).softmax(-1)
            left = float((p * (p * len(p)).log()).sum())
            if left <= 0.95 * level:
                level, gained = left, k
            no_gain = k - gained >= max(steps / 2, 4) and not self.m.smooths
            if until == "half" and k >= steps and (self.divergence(x) <= start / 2 or no_gain):
                break
            alpha = min((k + 1) / steps, 1.0)
            waypoint = (torch.sin((1 - alpha) * theta) * root0 + torch.sin(alpha * theta) * root1) / torch.sin(theta)
            found = self.step(x, waypoint, ratio, earlier=earlier)
            after = x - found.eta * found.v
            if not self.m.smooths:
                ratio = found.fisher_norm_squared / found.geodesic_norm_squared
                made = 2 * torch.arccos(self.logits(x).softmax(-1).sqrt() @ self.logits(after).softmax(-1).sqrt())
                quotient = made.item() ** 2 / (found.fisher_norm_squared * found.eta**2)
                ratio *= min(max(quotient, 0.25), 4.0)
            total -= 0.5 * (self.jacobian(x)[target] + self.jacobian(after)[target]) * (after - x)
            x = after
        return self.temperature * total.view(2, 8, 8), x.view(2, 8, 8)


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def assert_dense(found: fringe.Attribution, model, method: fringe.FRInGe, x: Tensor, rank: int = 1, **more) -> None:
    """Maps, and ends where they were recorded, are those of explicit matrices."""
    for i, target in enumerate(found.target.tolist()):
        values, end = DenseFRInGe(model, method, rank=rank).explain(x[i], target, **more)
        assert relative(found.values[i], values) < 1e-8
        if found.trajectory is not None:
            assert relative(found.trajectory[i].snapshots[-1], end) < 1e-8


def line(x, count):
    """Evenly from ``x`` (*S) to zero: (count, *S)."""
    return torch.linspace(1, 0, count, dtype=x.dtype).view(-1, *[1] * x.dim()) * x


def gradients(model, path, scalar):
    """Gradients (N, *S) of ``scalar(logits)`` at the points of ``path``, with their graph."""
    path = path if path.requires_grad else path.clone().requires_grad_(True)
    return torch.autograd.grad(scalar(model(path)).sum(), path, create_graph=True)[0]


def published_energy(model, beta):
    """``|delta| - beta |gradient of the sum of all outputs|``, rows of the last axis; 100 more at either end."""

    def energy(path, straight):
        rows = torch.norm(path - straight, p=2, dim=-1)
        steep = torch.norm(gradients(model, path, lambda logits: logits.sum(1)), p=2, dim=-1)
        ends = max(1, int(0.1 * len(path)))
        return rows.sum() - beta * steep.sum() + 100 * rows[:ends].sum() + 100 * rows[-ends:].sum()

    return energy


def published_path(energy, straight, iterations, learning_rate, noise, halve_after, stop_after):
    """The published fit: a sampled bound, halved learning rates with a new optimiser each, an early end."""
    mean = torch.zeros_like(straight).requires_grad_(True)
    log_scale = torch.full_like(straight, np.log(0.1)).requires_grad_(True)
    optimiser = torch.optim.Adam([mean, log_scale], lr=learning_rate)
    best, since_best, since_halved, losses, halvings = float("inf"), 0, 0, [], 0
    for i in range(iterations):
        guide = dist.Normal(mean, log_scale.exp())
        delta = mean + log_scale.exp() * noise(i, mean)
        log_joint = dist.Normal(0.0, 1.0).log_prob(delta).sum() - energy(straight + delta, straight)
        loss = guide.log_prob(delta).sum() - log_joint
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        if len(losses) > 1:
            gain = (losses[-2] - losses[-1]) / losses[-2]
            if losses[-1] < best:
                best, since_best, since_halved = losses[-1], 0, 0
            else:
                since_best, since_halved = since_best + 1, since_halved + 1
                if since_halved >= halve_after and learning_rate > 1e-5:
                    learning_rate, since_halved, halvings = max(learning_rate * 0.5, 1e-5), 0, halvings + 1
                    optimiser = torch.optim.Adam([mean, log_scale], lr=learning_rate)
            if gain < 1e-4 and since_best >= stop_after:
                break
    return (straight + mean).detach(), losses, halvings


def published_respacing(path):
    """N points at equal places of a list of cuts, every piece cut the finer the longer it is."""
    count = len(path)
    steps = [(b - a).norm() for a, b in itertools.pairwise(path)]
    steps.append(steps[-1])
    share = torch.stack(steps) / sum(steps)
    parts = (share * (count / share.max().item())).long().tolist()
    dense = [path[:1]]
    for i in range(count - 1):
        along = torch.linspace(0, 1, parts[i] + 1, dtype=path.dtype).view(-1, *[1] * (path.dim() - 1))
        dense.append(path[i : i + 1] + along * (path[i + 1 : i + 2] - path[i : i + 1]))
    dense = torch.cat(dense)
    return dense[torch.linspace(0, len(dense) - 1, count).long()]


def published_map(model, path, target):
    """Gradients times the lengths of the steps, the last length twice."""
    lengths = [(b - a).norm() for a, b in itertools.pairwise(path)]
    g = gradients(model, path, lambda logits: logits[:, target])
    return sum(g[k] * ([*lengths, lengths[-1]][k]) for k in range(len(path))).detach(), float(sum(lengths))
