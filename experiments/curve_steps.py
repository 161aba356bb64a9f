"""How many steps a curve needs: signed insertion with fewer steps than one for each row, on MobileNet-V2.

    python experiments/curve_steps.py

Prints, for each number of steps, the largest change of a method's mean, the mean change of an image's value, and
Kendall's tau between the orders of the means of all maps, controls among them. The number was chosen on the first half
of the photographs.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

import fringe
from fringe.data import find_inputs
from fringe.metrics import SignedInsertion

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from shared_models import SHARED  # pyright: ignore[reportMissingImports]

STEPS, IMAGES, METHODS = (64, 32, 16, 8), 12, ("fringe:fast", "ig", "gradcam")
#: Pixels of a row: a quarter of the passes of 256.
SIZE = 128


def main() -> None:
    files = [ref.source for ref in find_inputs([str(SHARED / "images" / "imagenet")])]
    comparison = fringe.compare(
        f"{SHARED}/models/zoo.py:mobilenet_v2",
        files[:: len(files) // IMAGES][:IMAGES],
        METHODS,
        {"rows": SignedInsertion(), **{str(steps): SignedInsertion(steps=steps) for steps in STEPS}},
        preprocessing=f"resize={SIZE},crop={SIZE},mean=0.5,std=0.5",
        trust_code=True,
    )
    values = {
        name: np.array([row.scores[name].values.tolist() for row in comparison.rows])
        for name in ("rows", *map(str, STEPS))
    }
    print("images   steps   a mean   a value   tau")
    for half, chosen in (
        ("first", slice(None, IMAGES // 2)),
        ("second", slice(IMAGES // 2, None)),
        ("all", slice(None)),
    ):
        full = values["rows"][:, chosen]
        for steps in STEPS:
            other = values[str(steps)][:, chosen]
            shift, change = abs(other.mean(1) - full.mean(1)).max(), abs(other - full).mean()
            tau = kendalltau(other.mean(1), full.mean(1)).statistic
            print(f"{half:8} {steps:5} {shift:8.2f} {change:9.2f} {tau:5.2f}")


if __name__ == "__main__":
    main()
