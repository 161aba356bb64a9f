"""What networks answer to images of which everything is replaced: how the blur of metrics was chosen; a table as CSV.

    python experiments/reference.py docs/results/tables

A reference removes the evidence where little of the predicted class's probability is left, and the answer is undecided.
Widths are compared on every second file, from the first on, and judged on the others.
"""

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from fringe._numbers.filters import blur, box_kernel, gaussian_blur
from fringe.data import find_inputs
from fringe.geometry import log_probabilities
from fringe.models import Preprocessing, load_model

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from shared_models import PREPROCESSING, SHARED, model  # pyright: ignore[reportMissingImports]

#: Images of each half.
COUNT = 64
#: Standard deviations of a Gaussian, as shares of the shortest side.
SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)


def networks() -> Iterator[tuple[str, nn.Module, Preprocessing, str]]:
    """The networks that are judged, each with its preprocessing and its folder of images."""
    yield "cifar_resnet20", model("cifar_resnet20"), PREPROCESSING["cifar"], "cifar10"
    yield "mobilenet_v2", model("mobilenet_v2"), PREPROCESSING["mobilenet_v2"], "imagenet"
    lite = load_model("efficientnet_lite0")
    assert lite.preprocessing is not None
    yield "efficientnet_lite0", lite.module, lite.preprocessing, "imagenet"


def references(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What replaces images (B, C, H, W), by name."""
    side = min(x.shape[2:])
    size = max(3, side // 10)
    yield "box of a tenth of the side", blur(x, box_kernel(size + 1 - size % 2), "zeros")
    for share in SHARES:
        yield f"Gaussian, {share:g} of the side", gaussian_blur(x, share * side)
    yield "mean of each channel", x.mean((2, 3), keepdim=True).expand_as(x)
    yield "zeros", torch.zeros_like(x)


@torch.no_grad()
def main() -> None:
    rows: list[dict[str, str]] = []
    for name, module, preprocessing, folder in networks():
        files = list(find_inputs([str(SHARED / "images" / folder)]))
        for half, which in enumerate(("chosen on", "judged on")):
            mine = files[half::2]
            refs = mine[:: len(mine) // COUNT][:COUNT]
            pictures = [ref.open(channels=3, exif="ignore").image for ref in refs]
            x = torch.stack([preprocessing.normalise(preprocessing.pixels(picture)) for picture in pictures])
            target = module(x).argmax(1, keepdim=True)
            for reference, replaced in (("the image itself", x), *references(x)):
                logs = log_probabilities(module(replaced))
                left = logs.gather(1, target).exp().mean()
                entropy = -(logs.exp() * logs).sum(1).mean() / math.log(logs.shape[1])
                rows.append(
                    {
                        **{"table": f"{name}, {which} n = {len(x)}", "reference": reference},
                        **{"probability left": f"{left:.3f}", "entropy, of its maximum": f"{entropy:.2f}"},
                    }
                )
                print(*rows[-1].values(), sep="  ", flush=True)
    with (Path(sys.argv[1]) / "reference.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
