"""Lengths of focused paths, on ResNet-20: what ``focus_length_ratio`` says of right and wrong regions.

For each region, with the floor 0.2: the paths that keep it; how many of these have a ratio above
``DOUBTFUL_ABOVE``; and medians of the ratio, and of the length in the input over that of the unfocused path.

    FRINGE_SHARED=... python benchmarks/focus.py
"""

import warnings
from typing import Any

import torch

import fringe
import shared_models
from fringe.attribution._focus import DOUBTFUL_ABOVE, FocusedPaths
from fringe.paths import Problem

COUNT = 32


def main() -> None:
    """Print a row for each region."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, x = shared_models.model("cifar_resnet20"), shared_models.images("cifar_resnet20", COUNT)
    classifier, order = fringe.Classifier(model), model(x).argsort(1, descending=True)

    def region(kind: str, target: torch.Tensor) -> torch.Tensor:
        with classifier.session(x.device):
            weights = FocusedPaths(kind, 0.2, "auto").weights(Problem.of(classifier, x, target=target))
        assert weights is not None
        return weights

    own, corner = region("cam", order[:, 0]), torch.zeros(COUNT, 1, 32, 32)
    corner[:, :, :10, :10] = 1.0
    regions: dict[str, Any] = {
        "the class itself": own,
        "contrast": region("contrast", order[:, 0]),
        "the second class": region("cam", order[:, 1]),
        "another image": own.roll(1, 0),
        "the last class": region("cam", order[:, -1]),
        "a corner": corner,
    }
    plain = fringe.attribute(model, x).diagnostics["path_length"]
    print(
        f"| region | floor 0.2 is kept | ratio above {DOUBTFUL_ABOVE} | ratio, median | length over the unfocused one |"
    )
    print("|---|---|---|---|---|")
    for name, weights in regions.items():
        found = fringe.attribute(model, x, method=fringe.FRInGe(focus=weights)).diagnostics
        kept = (found["focus_floor"] == 0.2).nonzero()[:, 0]
        ratio, length = found["focus_length_ratio"][kept], (found["path_length"] / plain)[kept]
        doubtful = int((ratio > DOUBTFUL_ABOVE).sum())
        print(f"| {name} | {len(kept)} of {COUNT} | {doubtful} | {ratio.median():.2f} | {length.median():.2f} |")


if __name__ == "__main__":
    main()
