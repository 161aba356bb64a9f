"""Geodesic IG's fits written out: an image at a time, autograd through the whole energy, torch's Adam and densities."""

import itertools

import numpy as np
import torch
from torch import distributions as dist


def line(x, count):
    """Evenly from ``x`` (*S) to zero: (count, *S)."""
    return torch.linspace(1, 0, count, dtype=x.dtype).view(-1, *[1] * x.dim()) * x


def gradients(model, path, scalar):
    """Gradients (N, *S) of ``scalar(logits)`` at the points of ``path``, with their graph."""
    path = path if path.requires_grad else path.clone().requires_grad_(True)
    return torch.autograd.grad(scalar(model(path)).sum(), path, create_graph=True)[0]


def log_probability(target):
    return lambda logits: logits.log_softmax(1)[:, target]


def logit(target):
    return lambda logits: logits[:, target]


def point_energy(model, scalar, beta):
    def energy(path, straight):
        steep = gradients(model, path, scalar).flatten(1).norm(dim=1)
        moved = [(p - s).norm() for p, s in zip(path, straight, strict=True) if not torch.equal(p, s)]
        return sum(moved) + beta * steep.sum()

    return energy


def length_energy(model, scalar, beta):
    def energy(path, straight):
        stretch = 1 + beta * gradients(model, path, scalar).flatten(1).norm(dim=1)
        return sum((stretch[k] + stretch[k + 1]) / 2 * (path[k + 1] - path[k]).norm() for k in range(len(path) - 1))

    return energy


def published_energy(model, beta):
    """``|delta| - beta |gradient of the sum of all outputs|``, rows of the last axis; 100 more at either end."""

    def energy(path, straight):
        rows = torch.norm(path - straight, p=2, dim=-1)
        steep = torch.norm(gradients(model, path, lambda logits: logits.sum(1)), p=2, dim=-1)
        ends = max(1, int(0.1 * len(path)))
        return rows.sum() - beta * steep.sum() + 100 * rows[:ends].sum() + 100 * rows[-ends:].sum()

    return energy


def most_probable_path(energy, straight, iterations, learning_rate):
    """The best of Adam's iterates of the interior points, the rate falling linearly; its loss and the first one."""
    deviation = torch.zeros_like(straight[1:-1], requires_grad=True)
    optimiser = torch.optim.Adam([deviation], lr=learning_rate)
    losses, paths = [], []
    for i in range(iterations):
        optimiser.param_groups[0]["lr"] = learning_rate * (1 - i / iterations)
        path = torch.cat((straight[:1], straight[1:-1] + deviation, straight[-1:]))
        loss = energy(path, straight) + 0.5 * deviation.square().sum()
        losses.append(float(loss.detach()))
        paths.append(path.detach())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return paths[int(np.argmin(losses))], losses[0], min(losses)


def variational_path(energy, straight, iterations, learning_rate, noise):
    """The mean of the Gaussian that maximises the evidence bound, its divergence in closed form."""
    mean = torch.zeros_like(straight[1:-1], requires_grad=True)
    log_scale = torch.full_like(mean, np.log(0.1)).requires_grad_(True)
    optimiser = torch.optim.Adam([mean, log_scale], lr=learning_rate)
    for i in range(iterations):
        optimiser.param_groups[0]["lr"] = learning_rate * (1 - i / iterations)
        guide = dist.Normal(mean, log_scale.exp())
        path = torch.cat((straight[:1], straight[1:-1] + mean + log_scale.exp() * noise(i, mean), straight[-1:]))
        loss = energy(path, straight) + dist.kl_divergence(guide, dist.Normal(0.0, 1.0)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return torch.cat((straight[:1], straight[1:-1] + mean.detach(), straight[-1:])), float(loss.detach())


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
    g = gradients(model, path, logit(target))
    return sum(g[k] * ([*lengths, lengths[-1]][k]) for k in range(len(path))).detach(), float(sum(lengths))
