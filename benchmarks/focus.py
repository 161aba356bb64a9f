"""Lengths of focused paths, on ResNet-20: what ``focus_length_ratio`` says of right and wrong regions.

For each region, with the floor 0.2: the paths that keep it, and medians of the ratio, and of the length in the input
over that of the unfocused path. Then the same of grids of four images of different classes, where the right region is
known.

    FRINGE_SHARED=... python benchmarks/focus.py
"""

import warnings
from typing import Any

import torch
from torch import Tensor

import fringe
import shared_models
from fringe.attribution._focus import FocusedPaths
from fringe.paths import Problem

COUNT, GRIDS = 32, 16


def main() -> None:
    """Print a row for each region, of images and of grids."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, x = shared_models.model("cifar_resnet20"), shared_models.images("cifar_resnet20", COUNT)
    classifier = fringe.Classifier(model)

    def region(images: Tensor, target: Tensor, kind: str = "cam") -> Tensor:
        with classifier.session(images.device):
            weights = FocusedPaths(kind, 0.2).weights(Problem.of(classifier, images, target=target))
        assert weights is not None
        return weights

    order = model(x).argsort(1, descending=True)
    own, corner = region(x, order[:, 0]), torch.zeros(COUNT, 1, 32, 32)
    corner[:, :, :10, :10] = 1.0
    print_rows(
        model,
        x,
        order[:, 0],
        {
            "the class itself": own,
            "contrast": region(x, order[:, 0], "contrast"),
            "the second class": region(x, order[:, 1]),
            "another image": own.roll(1, 0),
            "the last class": region(x, order[:, -1]),
            "a corner": corner,
        },
    )
    grids, classes = make_grids(model, shared_models.images("cifar_resnet20", 64))
    cells = [torch.zeros(GRIDS, 1, 64, 64) for _ in range(2)]
    cells[0][..., :32, :32] = cells[1][..., 32:, 32:] = 1.0
    last = model(grids).argsort(1, descending=True)[:, -1]
    print_rows(
        model,
        grids,
        classes[:, 0],
        {
            "the right cell": cells[0],
            "a wrong cell": cells[1],
            "the class itself": region(grids, classes[:, 0]),
            "contrast": region(grids, classes[:, 0], "contrast"),
            "the class of a wrong cell": region(grids, classes[:, 3]),
            "the last class": region(grids, last),
        },
    )


def make_grids(model: torch.nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Grids (GRIDS, 3, 2 H, 2 W) of four images of different predicted classes, and these classes (GRIDS, 4)."""
    predicted, draw = model(images).argmax(1), torch.Generator().manual_seed(0)
    chosen: list[Tensor] = []
    while len(chosen) < GRIDS:
        four = torch.randperm(len(images), generator=draw)[:4]
        chosen += [four] if len(predicted[four].unique()) == 4 else []
    rows = images[torch.stack(chosen)].unflatten(1, (2, 2))
    return rows.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3), predicted[torch.stack(chosen)]


def print_rows(model: torch.nn.Module, x: Tensor, target: Tensor, regions: dict[str, Any]) -> None:
    """Print a row for each region."""
    plain = fringe.attribute(model, x, target=target).diagnostics["path_length"]
    print("| region | mean weight | floor 0.2 is kept | ratio, median | length over the unfocused one |")
    print("|---|---|---|---|---|")
    for name, weights in regions.items():
        found = fringe.attribute(model, x, target=target, method=fringe.FRInGe(focus=weights)).diagnostics
        kept = (found["focus_floor"] == 0.2).nonzero()[:, 0]
        ratio, length = found["focus_length_ratio"][kept], (found["path_length"] / plain)[kept]
        of = f"{len(kept)} of {len(x)}"
        print(f"| {name} | {weights.mean():.2f} | {of} | {ratio.median():.2f} | {length.median():.2f} |")


if __name__ == "__main__":
    main()
