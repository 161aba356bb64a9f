"""What one more halving of a segment does: passes, verdicts and sums of FRInGe with four and with eight pieces.

    python benchmarks/depth.py                                       # ResNet-20, 40 images, the predicted class
    python benchmarks/depth.py --model efficientnet_lite0 --images 20 --offset 1 --classes 5    # of the extra photo

Images are spread evenly over the folder of the model; an --offset of half their distance takes others. Verdicts are of
maps: several for an image of several classes.
"""

import argparse
from collections import Counter

import torch
from torch import Tensor, nn

import fringe
import shared_models
from fringe.data import find_inputs
from fringe.models import load_model


def network(name: str, count: int, offset: int) -> tuple[nn.Module, Tensor]:
    """A network and its images (count, 3, H, W)."""
    if name != "efficientnet_lite0":
        return shared_models.model(name), shared_models.images(name, count, offset)
    model, refs = load_model(name), list(find_inputs([str(shared_models.SHARED / "images" / "imagenet")]))
    chosen = [ref.open(channels=3, exif="ignore").image for ref in refs[offset :: len(refs) // count][:count]]
    return model.module, model.prepare(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar_resnet20")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--classes", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, images = network(arguments.model, arguments.images, arguments.offset)
    head = "passes | verdicts | largest residual | changed maps | largest change"
    print(f"| {arguments.model}, n = {len(images)} | {head} |")
    print("|---|---|---|---|---|---|")
    before = list[Tensor]()
    for depth in (2, 3):
        passes, verdicts, residuals, maps = 0, Counter[str](), list[float](), list[Tensor]()
        for x in images.split(1):
            target = model(x).topk(arguments.classes, 1).indices
            found = fringe.attribute(model, x, method=fringe.FRInGe(halvings=depth), target=target)
            passes += found.passes.forward + found.passes.jvp + found.passes.vjp
            verdicts.update(verdict for verdict, _ in (found.class_verdicts or (((found.verdict[0], ""),),))[0])
            residuals.append(float(found.completeness_residual.max()))
            maps += found.values[0].flatten(1).unbind()
        pairs = list(zip(before, maps, strict=False))
        changes = [float((b - a).norm() / a.norm()) for a, b in pairs]
        words = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.items())
        changed = f"{sum(c > 0 for c in changes)} of {len(changes)} | {max(changes):.3f}" if changes else "– | –"
        print(
            f"| {2**depth} pieces | {passes / len(images):.0f} | {words} | {max(residuals):.3f} | {changed} |",
            flush=True,
        )
        before = maps


if __name__ == "__main__":
    main()
