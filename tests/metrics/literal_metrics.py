"""The metrics as their formulas say: one image, one step, one pixel at a time, in plain Python."""

import math

from torch import Tensor


def spatial(a: Tensor, how: str) -> list[float]:
    """Importance of the pixels of one map (C, H, W), row by row."""
    rows = []
    for i in range(a.shape[1]):
        for j in range(a.shape[2]):
            entries = a[:, i, j].tolist()
            rows.append(max(abs(v) for v in entries) if how == "max" else abs(sum(entries)))
    return rows


def order(importance: list[float]) -> list[int]:
    """Pixel numbers, the most important first, equal ones in row-major order."""
    return sorted(range(len(importance)), key=lambda k: (-importance[k], k))


def probability(model, x: Tensor, target: int) -> float:
    logits = model(x[None])[0].tolist()
    top = max(logits)
    weights = [math.exp(v - top) for v in logits]
    return weights[target] / sum(weights)


def curve(model, x: Tensor, reference: Tensor, target: int, a: Tensor, mode: str, steps: int, how: str = "max"):
    """``c_s`` for s = 0 ... N."""
    pixels, ranked = a.shape[1] * a.shape[2], order(spatial(a, how))
    begin, end = (reference, x) if mode == "insertion" else (x, reference)
    result = []
    for s in range(steps + 1):
        image = begin.clone()
        for k in ranked[: round(s * pixels / steps)]:
            image[:, k // a.shape[2], k % a.shape[2]] = end[:, k // a.shape[2], k % a.shape[2]]
        result.append(probability(model, image, target))
    return result


def normalised(c: list[float], p_input: float, p_reference: float) -> list[float]:
    return [min(max((v - p_reference) / max(p_input - p_reference, 1e-8), 0.0), 1.0) for v in c]


def trapezoid(c: list[float]) -> float:
    total = 0.0
    for s in range(len(c) - 1):
        total += 0.5 * (c[s] + c[s + 1])
    return total / (len(c) - 1)


def density(a: Tensor, mode: str, steps: int, how: str = "max") -> list[float]:
    importance = spatial(a, how)
    ranked, total = order(importance), math.fsum(importance)
    result = []
    for s in range(steps + 1):
        share = math.fsum(importance[k] for k in ranked[: round(s * len(ranked) / steps)]) / total
        result.append(share if mode == "insertion" else 1 - share)
    return result


def mas_official(c, dr, p_input: float, p_reference: float, mode: str, rescale: bool = True) -> float:
    """The ten steps of the authors' code, from the probabilities and densities on."""
    response: list[float] = []
    for v in c:
        r = (v - p_reference) / (p_input - p_reference)
        r = min(max(r, 0.0), 1.0)
        if response:
            r = max(r, response[-1]) if mode == "insertion" else min(r, response[-1])
        response.append(r)
    penalty = [abs(d - r) for d, r in zip(dr, response, strict=True)]
    sign = -1 if mode == "insertion" else 1
    score = [min(max(r + sign * p, 0.0), 1.0) for r, p in zip(response, penalty, strict=True)]
    if not rescale:
        return math.nan if p_input <= p_reference else trapezoid(score)
    low, high = min(score), max(score)
    if high == low:
        return 0.5
    return trapezoid([(v - low) / (high - low) for v in score])


def mas_released(*of) -> float:
    """As the FRInGe authors do: not rescaled, and no score where the reference is as sure as the input."""
    return mas_official(*of, rescale=False)


def mas_text(c: list[float], dr: list[float], p_input: float, p_reference: float, mode: str) -> float:
    """The printed difference of means, or their sum, over the N + 1 steps."""
    response = normalised(c, p_input, p_reference)
    penalty = [abs(d - r) for d, r in zip(dr, response, strict=True)]
    sign = -1 if mode == "insertion" else 1
    return math.fsum(response) / len(response) + sign * math.fsum(penalty) / len(penalty)
