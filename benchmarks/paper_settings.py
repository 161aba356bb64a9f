"""How far the maps of the paper's text, of its authors' release and of the default are from each other: docs/paper.md.

    python benchmarks/paper_settings.py                                # ResNet-20, 16 images
    python benchmarks/paper_settings.py --model mobilenet_v1_025 --images 6

Pearson correlations of maps, the median over images. The last column is the correlation with the same setting in double
precision: what rounding alone changes.
"""

import argparse
import warnings

import torch
from torch import Tensor

import fringe
import shared_models

SETTINGS = ("paper", "released", "fringe", "fringe_b", "ig")


def correlation(a: Tensor, b: Tensor) -> float:
    """The median over images of the correlation of two maps (B, *S)."""
    a, b = (x.double().flatten(1) - x.double().flatten(1).mean(1, keepdim=True) for x in (a, b))
    return torch.nn.functional.cosine_similarity(a, b).median().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar_resnet20")
    parser.add_argument("--images", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="a kernel of 5 taps")
    model, x = shared_models.model(arguments.model), shared_models.images(arguments.model, arguments.images)
    double = shared_models.model(arguments.model).double()
    maps, rows = dict[str, Tensor](), list[str]()
    for setting in SETTINGS:
        found = fringe.attribute(model, x, method=setting)
        again = fringe.attribute(double, x.double(), method=setting, target=found.target)
        maps[setting], passes = found.values, found.passes
        others = [f"{correlation(found.values, maps[name]):.2f}" for name in SETTINGS if name in maps]
        others += ["–"] * (len(SETTINGS) - len(others))
        each = (passes.forward + passes.jvp + passes.vjp) / len(x)
        rows.append(
            f"| `{setting}` | {' | '.join(others)} | {each:.0f} | {correlation(found.values, again.values):.2f} |"
        )
    print(f"| {arguments.model}, n = {len(x)} | {' | '.join(f'`{name}`' for name in SETTINGS)} | passes | float64 |")
    print("|---" * (len(SETTINGS) + 3) + "|")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
