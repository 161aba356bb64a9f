"""How far rounding alone moves a map: the last table of docs/conjugate-gradients.md.

    python benchmarks/rounding.py

The same image is explained twice, the second time with its entries changed by one part in 1e15 (float64) or 1e7
(float32), below the last digit of either; reported is the relative change of the map, the median over images.
"""

import argparse
import dataclasses

import torch

import fringe
import shared_models

PAPER = dataclasses.replace(fringe.FRInGe.preset("resnet50"), tau=5e-3)
FULL = dataclasses.replace(fringe.FRInGe.preset("full_metric"), tau=5e-3)
SETTINGS = {
    "paper (ResNet-50 preset), textbook CG": dataclasses.replace(PAPER, reorthogonalise=False),
    "the same, textbook CG, K = 5": dataclasses.replace(PAPER, reorthogonalise=False, cg_iterations=5),
    "the same, orthogonal residuals": PAPER,
    "the same, orthogonal, spectral": dataclasses.replace(PAPER, preconditioner="spectral"),
    "`fringe:full_metric` with textbook CG": dataclasses.replace(FULL, reorthogonalise=False),
    "`fringe:full_metric`": FULL,
}


def change(model: torch.nn.Module, x: torch.Tensor, method: fringe.FRInGe, size: float) -> float:
    jitter = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x.dtype)
    first = fringe.attribute(model, x, method=method)
    second = fringe.attribute(model, x * (1.0 + size * jitter), method=method, target=first.target)
    difference = (first.values - second.values).flatten(1).norm(dim=1)
    return (difference / first.values.flatten(1).norm(dim=1)).median().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar_resnet20")
    parser.add_argument("--images", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x = shared_models.images(arguments.model, arguments.images)
    print("| setting | float64, input changed by 1e-15 | float32, input changed by 1e-7 |\n|---|---|---|")
    for label, method in SETTINGS.items():
        moved = [
            change(shared_models.model(arguments.model).to(dtype), x.to(dtype), method, size)
            for dtype, size in ((torch.float64, 1e-15), (torch.float32, 1e-7))
        ]
        print(f"| {label} | {moved[0]:.1e} | {moved[1]:.1e} |", flush=True)


if __name__ == "__main__":
    main()
