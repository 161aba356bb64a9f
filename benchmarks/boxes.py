"""What the map of a box costs: passes and processor time of SSDlite at 320, as ratios to Integrated Gradients.

    python benchmarks/boxes.py

The weights are random, and the logits of classes are scaled until a box has a probability that is worth explaining.
"""

import time

import torch
from torch import Tensor

import fringe
from fringe.data import find_inputs
from fringe.models import import_torchvision

METHODS = {"ig, 50 steps": fringe.IntegratedGradients(steps=50), "fringe": "fringe", "gradcam": "gradcam"}
#: Spread of the logits.
SPREAD = 3.0


def detector() -> fringe.Detector:
    """SSDlite with random weights and decisive logits."""
    torch.manual_seed(0)
    load = import_torchvision().models.get_model
    net = load("ssdlite320_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=5).eval()
    with torch.no_grad():
        spread = fringe.Detector(net).places.find(torch.rand(1, 3, 320, 320))[2].std()
        for layer in net.head.classification_head.module_list:
            layer[1].weight.mul_(SPREAD / spread)
    return fringe.Detector(net)


def picture() -> Tensor:
    image = next(find_inputs(["embedded:photos:coffee"])).open(channels=3).image.resize((320, 320))
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, 320, 320, 3).movedim(3, 1) / 255


def main() -> None:
    torch.set_num_threads(1)
    net, x, first = detector(), picture(), 0.0
    fringe.explain(net, x, boxes=1, method=fringe.IntegratedGradients(steps=2))  # the first passes take longer
    print("| method | forward and backward passes of a box | processor time, IG = 1 | verdict |\n|---|---:|---:|---|")
    for name, method in METHODS.items():
        began = time.process_time()
        found = fringe.explain(net, x, boxes=2, method=method, telemetry=False, probe=False)
        taken = time.process_time() - began
        first = first or taken
        passes = (found.passes.forward + found.passes.jvp + found.passes.vjp) / len(found)
        print(
            f"| {name} ({taken / len(found):.1f} s) | {passes:.0f} | {taken / first:.2f} | {found.verdict} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
