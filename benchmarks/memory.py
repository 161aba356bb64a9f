"""Memory of a call: the most bytes of tensors alive at once, and how they grow with batch, side, classes and maps.

    python benchmarks/memory.py

Counted are the tensors themselves, so numbers do not depend on the machine. A small network keeps activations below the
maps. An exponent is that of a power law between the two sizes of a row: 1 means twice the bytes for twice the size.
"""

import math
import sys
from pathlib import Path

import torch
from torch import nn

import fringe

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "attribution"), str(TESTS)]

from attribution_toys import LiveBytes  # noqa: E402 (found through the line above)

#: The last halves nearly all segments: what waits to be halved counts, too.
METHODS: dict[str, str | fringe.FRInGe] = {
    **{name: name for name in ("ig", "smoothgrad", "gradcam", "fringe")},
    "fringe, all halved": fringe.FRInGe(quadrature_rtol=1e-5),
}
USUAL = {"batch": 16, "side": 64, "classes": 128, "maps": 1}
#: The two sizes of each row; the others are the usual ones.
ROWS = {"batch": (32, 64), "side": (64, 128), "classes": (128, 512), "maps": (32, 100)}


def network(classes: int) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.Softplus(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return nn.Sequential(body, nn.Linear(64, classes)).eval()


def peak(method: str | fringe.FRInGe, batch: int, side: int, classes: int, maps: int) -> tuple[int, float]:
    """The most bytes alive in a call, and this over the bytes of the maps that it returns."""
    model, x = network(classes), torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(1))
    target = torch.arange(maps).expand(batch, -1) if maps > 1 else 0
    with LiveBytes() as live:
        result = fringe.attribute(model, x, method=method, target=target)
    return live.peak, live.peak / result.values.nbytes


def main() -> None:
    torch.set_num_threads(1)
    for title, method in METHODS.items():
        for name, sizes in ROWS.items():
            usual = USUAL | ({"batch": 1} if name == "maps" else {})
            (small, _), (large, ratio) = (peak(method, **(usual | {name: size})) for size in sizes)
            exponent = math.log(large / small) / math.log(sizes[1] / sizes[0])
            text = f"{large / 2**20:7.1f} MiB, {ratio:5.2f} x its maps, exponent {exponent:5.2f}"
            print(f"{title:18s} {name:8s} {sizes[0]:4d} -> {sizes[1]:4d}: {text}", flush=True)


if __name__ == "__main__":
    main()
