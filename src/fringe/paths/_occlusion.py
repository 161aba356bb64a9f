"""Occlusion: what the score loses without each part of an input, and how well a map agrees with it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fringe._network.arguments import Part, is_joint, split
from fringe.classifier import Score
from fringe.linalg import add_rows, batch_view, grid_cells
from fringe.paths._problem import ROUNDING, Problem

#: Parts along each axis of space, by the axes of an input: of rows of features, series and images; of others 3. More
#: features or words than 64 are removed in groups of neighbours.
PIECES = {1: 64, 2: 16, 3: 5}
#: Fewer parts have no correlation.
LEAST_PARTS = 3


def part_numbers(problem: Problem, pieces: int | None = None) -> Tensor:
    """Return the number of the part of each entry, from 0 on; -1: of none.

    Parts are the caller's (``feature_mask``), the words of a text or its tokens, columns of a table, and else pieces of
    equal size: 16 of a series, 5 x 5 of an image, 3 x 3 x 3 of a volume, with all channels. Several tensors have their
    parts one after the other.

    Args:
        problem: The inputs.
        pieces: Pieces along each axis of space, in place of these.

    Returns:
        Numbers that broadcast to the inputs (B, *S).
    """
    x = problem.inputs
    if problem.feature_mask is not None:
        held = problem.forward_args.kwargs.get("words") if problem.token_length is not None else None
        given = problem.feature_mask
        return given if held is None else torch.where(held[:, : x.shape[1], None] < 0, -1, given)
    if problem.token_length is not None:
        tokens = torch.arange(x.shape[1], device=x.device)[None]
        words: Tensor = problem.forward_args.kwargs.get("words", tokens)[:, : x.shape[1]]
        count = words.amax(1, keepdim=True) + 1
        most = pieces or PIECES[1]
        return torch.where(words < 0, -1, words * count.clamp_max(most) // count.clamp_min(1))[..., None]
    given, each, start = problem.forward_args.parts, list[Tensor](), 0
    for part in given if is_joint(given) else (Part(None, tuple(x.shape[1:])),):
        shape = part.shape or (1,)
        cells = grid_cells(torch.Size(shape[1:] or shape), pieces or PIECES.get(len(shape), 3)).to(x.device)
        each.append(start + (cells.expand(shape).flatten() if is_joint(given) else cells))
        start += int(cells.max()) + 1
    return torch.cat(each)[None] if is_joint(given) or x.dim() == 2 else each[0][None, None]


def filling(problem: Problem, numbers: Tensor) -> Tensor:
    """Return what removed parts become: the caller's baseline, or else the input's own mean of each channel, and of a
    text that of its words. A row of features has the mean of the reference rows of the call, or zeros.

    Args:
        problem: The inputs.
        numbers: The parts.

    Returns:
        Numbers that broadcast to the inputs (B, *S).
    """
    x, parts = problem.inputs, problem.forward_args.parts
    if problem.baseline is not None:
        return problem.baseline
    if problem.token_length is not None:
        has = (numbers >= 0).to(x)
        return (x * has).sum(1, keepdim=True) / has.sum(1, keepdim=True).clamp_min(1.0)
    if x.dim() == 2 and problem.domain.references is not None:
        return problem.reference_images("").mean(0, keepdim=True)

    def mean(part: Tensor) -> Tensor:
        return part.mean(tuple(range(2, part.dim())), keepdim=True) if part.dim() > 2 else torch.zeros_like(part)

    if not is_joint(parts):
        return mean(x)
    return torch.cat([mean(part).expand_as(part).flatten(1) for part in split(x, parts)], 1)


def removable(problem: Problem, baseline: str) -> tuple[Tensor, Tensor]:
    """Return the caller's parts, or the words of texts, and what takes their place.

    Args:
        problem: The inputs.
        baseline: Its name, unless the caller gave one. Zeros are no word: if it is ``zero``, that of texts is the mean
            of their words.

    Returns:
        The numbers of :func:`part_numbers`, and the baseline; both broadcast to the inputs (B, *S).
    """
    is_text = problem.token_length is not None
    numbers = part_numbers(problem, problem.inputs.shape[1] if is_text else None)
    is_mean = is_text and baseline == "zero"
    return numbers, filling(problem, numbers) if is_mean else problem.resolve_baseline(baseline)


def movable_words(one: Problem, baseline: str) -> tuple[Problem, Tensor, Tensor]:
    """Return a text whose baseline is that of :func:`removable` where words may move, the part (L, D) of each entry,
    and its share (1, L, D) in the value of its part: 0 at special tokens and padding, which are no part."""
    numbers, filled = (given.expand_as(one.inputs) for given in removable(one, baseline))
    moves, (_, index, sizes) = numbers >= 0, numbers.unique(return_inverse=True, return_counts=True)
    held = replace(one, baseline=torch.where(moves, filled, one.inputs))
    return held, numbers[0].clamp_min(0), moves.to(one.inputs) / sizes[index]


@dataclass(frozen=True)
class Occlusion:
    """What is lost without each of n parts of B inputs.

    Attributes:
        numbers: The parts: see :func:`part_numbers`.
        drops: What the score of K classes loses without each (B, K, n), float64; NaN where an input has no such part.
        score: The scores (B, K) of the inputs.
        eps: Resolution of the numbers of the network.
    """

    numbers: Tensor
    drops: Tensor
    score: Tensor
    eps: float

    @classmethod
    def of(cls, problem: Problem, numbers: Tensor, filled: Tensor, kind: Score | None = None) -> "Occlusion":
        """Remove each part of each input by itself: a forward pass for each, in chunks of the batch size.

        Args:
            problem: The inputs, with one class or K classes of each.
            numbers: The parts.
            filled: What they become: numbers that broadcast to the inputs.
            kind: Another score than the explained one.

        Returns:
            The drops.
        """
        x, count = problem.inputs, int(numbers.max()) + 1
        filled, numbers = filled.expand_as(x), numbers.expand(len(x), *numbers.shape[1:])
        every = torch.arange(count, device=x.device)
        has = torch.stack([(numbers == k).flatten(1).any(1) for k in every], 1)
        image, part = has.nonzero().unbind(1)

        def without(rows: Tensor, which: Tensor) -> Tensor:
            gone = numbers[rows] == batch_view(which, x)
            return problem.score(problem.forward(torch.where(gone, filled[rows], x[rows]), rows).double(), rows, kind)

        score = problem.score(problem.logits.double(), None, kind).view(len(x), -1)
        left = problem.model.batch_size.map(without, image, part) if len(image) else score[:0]
        drops = score.new_full((len(x), count, score.shape[1]), torch.nan)
        drops[image, part] = score[image] - left.view(len(image), -1)
        return cls(numbers, drops.mT.contiguous(), score, torch.finfo(x.dtype).eps)

    @classmethod
    def alone(cls, problem: Problem, baseline: str) -> Tensor:
        """Return the maps (B, *S) of the removal of the caller's parts, or of each word of texts.

        Args:
            problem: The inputs, with one class of each.
            baseline: As of :func:`removable`.

        Returns:
            The maps.
        """
        return cls.of(problem, *removable(problem, baseline)).map(problem)

    def map(self, problem: Problem) -> Tensor:
        """Return maps (B, *S) of one class in which each entry has the drop of its part, or of texts a share of it: the
        evidence of a word is a sum."""
        x, numbers = problem.inputs, self.numbers.flatten(1)
        drops = self.drops[:, 0].gather(1, numbers.clamp_min(0)).masked_fill(numbers < 0, 0.0)
        if problem.token_length is not None:
            each = numbers.new_zeros(len(x), int(numbers.max()) + 2).scatter_add(
                1, numbers + 1, torch.ones_like(numbers)
            )
            drops = drops / (each.gather(1, numbers + 1) * (x[0].numel() // numbers.shape[1]))
        return drops.view_as(self.numbers).expand_as(x).to(x)

    def sums(self, values: Tensor, *, sizes: bool = False) -> Tensor:
        """Sum maps over each part.

        Args:
            values: Maps (B, *S), or (B, K, *S) of K classes.
            sizes: Whether the sizes of the entries are summed, without their signs: where a part has all channels,
                those of the sums over channels.

        Returns:
            The sums (B, K, n), float64.
        """
        shape, (batch, classes, count) = self.numbers.shape[1:], self.drops.shape
        maps = values.detach().double().reshape(batch, classes, *values.shape[-len(shape) :])
        maps = maps.sum_to_size(batch, classes, *shape)
        maps = (maps.abs() if sizes else maps).flatten(2)
        first = (count + 1) * torch.arange(batch, device=values.device)[:, None]
        numbers = self.numbers.flatten(1)
        rows = (first + torch.where(numbers < 0, count, numbers)).flatten()
        total = maps.new_zeros(batch * (count + 1), classes)
        return (
            add_rows(total, rows, maps.mT.reshape(-1, classes))
            .view(batch, count + 1, classes)[:, :count]
            .mT.contiguous()
        )

    def agreement(self, values: Tensor, *, sizes: bool, signed: bool = False) -> Tensor:
        """Correlate the sums of maps with the drops, by Pearson's coefficient over the parts.

        Args:
            values: Maps (B, *S) or (B, K, *S).
            sizes: See :meth:`sums`.
            signed: Whether signs count; else the size of a sum is compared with the size of the drop.

        Returns:
            From -1 to 1 (B, K); NaN where it is undefined: fewer than three parts, sums that are all equal, or drops
            that are equal within rounding, as those of a network that does not look at the input.
        """
        sums, drops = self.sums(values, sizes=sizes), self.drops
        sums, drops = (sums, drops) if signed else (sums.abs(), drops.abs())
        has = ~drops.isnan()
        count = has.sum(-1, keepdim=True).clamp_min(1)

        def centred(numbers: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
            numbers = torch.where(has, numbers, 0.0)
            apart = torch.where(has, numbers - numbers.sum(-1, keepdim=True) / count, 0.0)
            return apart, apart.abs().amax(-1) > ROUNDING * self.eps * size

        largest = torch.where(has, drops, 0.0).abs().amax(-1)
        a, a_differs = centred(sums, torch.where(has, sums, 0.0).abs().amax(-1))
        b, b_differs = centred(drops, torch.maximum(self.score.abs(), largest))
        norms = a.norm(dim=-1) * b.norm(dim=-1)
        known = a_differs & b_differs & (norms > 0) & (has.sum(-1) >= LEAST_PARTS)
        return torch.where(known, (a * b).sum(-1) / norms, torch.nan).clamp(-1.0, 1.0)

    def same_signs(self, values: Tensor) -> Tensor:
        """Return the share (B, K) of the drops, by their size, in parts whose sum has the sign of the drop; NaN without
        drops."""
        drops = self.drops.nan_to_num()
        same = (self.sums(values).sign() == drops.sign()) * drops.abs()
        return same.sum(-1) / drops.abs().sum(-1)
