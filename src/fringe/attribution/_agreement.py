"""What occlusion says of a map: a number for each input and class, and for some kinds of inputs a word.

It is blind to the sign of a map, to what cancels within a part, and to parts that stand for each other: docs/trust.md.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fringe._network.arguments import is_joint
from fringe.paths import Occlusion, Problem, filling, part_numbers

if TYPE_CHECKING:
    from fringe.attribution._base import Attribution

#: From which number on occlusion agrees, and below which it disagrees.
AGREES, DISAGREES = 0.6, 0.4
#: Sides of the other grids of an image, which tell whether its number is steady.
OTHER_GRIDS = (4, 7)


def probed(result: Attribution, problem: Problem) -> Attribution:
    """Add ``agreement`` to a result, and to its advice what it says: a forward pass for each part of each input."""
    numbers, rank = part_numbers(problem), 1 if is_joint(problem.forward_args.parts) else problem.inputs.dim() - 1
    filled, is_image, shape = filling(problem, numbers), rank > 2, problem.target.shape

    def of(numbers: Tensor) -> tuple[Occlusion, Tensor]:
        occlusion = Occlusion.of(problem, numbers, filled)
        return occlusion, occlusion.agreement(result.values, sizes=is_image)

    occlusion, first = of(numbers)
    parts = (~occlusion.drops.isnan()).sum(-1).double()
    signed = occlusion.agreement(result.values, sizes=False, signed=True)
    known = {
        "agreement_parts": parts,
        "agreement_signed": signed,
        "agreement_signs": occlusion.same_signs(result.values),
    }
    if rank == 3 and problem.feature_mask is None:
        grids = torch.stack([first, *(of(part_numbers(problem, side))[1] for side in OTHER_GRIDS)])
        known |= {"agreement_lowest": grids.amin(0), "agreement_highest": grids.amax(0)}
    ends = [known[name] for name in ("agreement_lowest", "agreement_highest") if name in known]
    rows = torch.stack([parts, first, signed, *ends], -1).tolist()
    notes = [[describe(rank, *numbers) for numbers in row] for row in rows]
    columns = {name: column.view(shape) for name, column in known.items()}
    noted = result.noted([row[0] for row in notes], notes)
    return dataclasses.replace(noted, agreement=first.view(shape), diagnostics={**result.diagnostics, **columns})


def describe(rank: int, parts: float, r: float, signed: float, *spread: float) -> str:
    """Say what occlusion says of a map, and where it is low, what to compare the map with.

    Args:
        rank: The axes of an input: 1 of a row of features, 2 of a series or a text, 3 of an image.
        parts: How many parts were removed.
        r: The agreement.
        signed: The same with signs.
        spread: The lowest and the highest one over three grids, of an image.
    """
    text = f"occlusion of {parts:.0f} part{'s' * (parts != 1)}"
    if not math.isfinite(r):
        return f"{text} says nothing of the map: there are too few, or all weigh the same"
    text = f"{text}: r = {r:.2f}"
    if rank < 3:
        if r >= AGREES:  # of series and texts it is rarely wrong then, but right in fewer than 80 %
            return f"{text}, agrees" if rank == 1 else text
        return f"{text}, unclear" if r >= DISAGREES else f"{text}, disagrees: {_COMPARE[rank]}"
    notes = [f"{signed:.2f} with signs"]
    if spread:
        low, high = spread
        steady = low >= DISAGREES or high < DISAGREES
        notes.append(f"{low:.2f} to {high:.2f} with 16, 25 and 49 parts: {'' if steady else 'not '}steady")
    otherwise = r < DISAGREES and not signed >= DISAGREES
    return f"{text} ({'; '.join(notes)})" + (f", occlusion says otherwise: {_COMPARE[3]}" if otherwise else "")


#: What a map is compared with where occlusion does not agree, by the axes of an input.
_COMPARE = {
    1: "compare it with method='ig' and method='captum:occlusion'",
    2: "compare it with method='captum:occlusion'",
    3: "compare it with method='gradcam', and for small objects with method='fringe:focused'",
}
