"""Write the shipped digits and train the classifier embedded in the package (half a minute on one core).

    python scripts/train_digits.py --data     # once: scikit-learn's copy of the scans -> fringe/data
    python scripts/train_digits.py            # weights -> fringe/models, prints the test accuracy

The same machine and versions give the same file to the bit: one thread, one seeded generator.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file as save_tensors
from torch import Tensor, nn

import fringe.data._images as shipped
from fringe.data import digits_samples
from fringe.models._digits import DIGIT_PREPROCESSING, WEIGHTS_FILE, DigitNet

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "fringe"
SEED = 20
EPOCHS = 60
BATCH = 64
PEAK_RATE = 4e-3


def write_data() -> None:
    """Store scikit-learn's scans with a split that keeps the share of every class."""
    from sklearn.datasets import load_digits  # needed for this step only
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    train, test = train_test_split(np.arange(len(bunch.target)), test_size=0.2, random_state=0, stratify=bunch.target)
    arrays = {
        "images": bunch.images.astype(np.uint8),
        "labels": bunch.target.astype(np.uint8),
        "train": np.sort(train).astype(np.uint16),
        "test": in_turns(test, bunch.target).astype(np.uint16),
    }
    save_arrays(arrays, PACKAGE / "data" / shipped.FILE)


def in_turns(indices: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Order ``indices`` 0, 1, ..., 9, 0, 1, ..., so that the first few of a split show different digits."""
    ordered = np.sort(indices)
    turn = [np.sum(labels[ordered[:i]] == labels[k]) for i, k in enumerate(ordered)]
    return ordered[np.lexsort((labels[ordered], turn))]


def tensors(split: shipped.Split) -> tuple[Tensor, Tensor]:
    """Pixels ``(n, 1, 32, 32)`` in [0, 1] and labels ``(n,)``."""
    samples = digits_samples(split)
    return torch.stack([DIGIT_PREPROCESSING.pixels(s.image) for s in samples]), torch.tensor([s.label for s in samples])


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate by up to 10 degrees, scale by up to 10 %, shift by up to 3 pixels, change contrast, add noise.

    The noise keeps the network from resting on single pixels, which would show as speckle in its maps.
    """
    n = len(pixels)
    angle, scale, dx, dy, contrast = (torch.rand(5, n, generator=generator) * 2 - 1).unbind()
    angle, scale = angle * math.radians(10), 1 + 0.1 * scale
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    rows = [torch.stack([cos, -sin, dx * 3 / 16], -1), torch.stack([sin, cos, dy * 3 / 16], -1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(pixels.shape), align_corners=False)
    moved = F.grid_sample(pixels, grid, align_corners=False) * (1 + 0.2 * contrast)[:, None, None, None]
    return moved + 0.08 * torch.randn(moved.shape, generator=generator)


def train(net: nn.Module, pixels: Tensor, labels: Tensor, generator: torch.Generator) -> None:
    """Adam with decoupled decay and a one-cycle rate; labels smoothed, so that certainty stays below 1."""
    optimiser = torch.optim.AdamW(net.parameters(), lr=PEAK_RATE, weight_decay=1e-2)
    steps = EPOCHS * math.ceil(len(labels) / BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps)
    net.train()
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(labels), generator=generator).split(BATCH):
            x = DIGIT_PREPROCESSING.normalise(augment(pixels[batch], generator))
            loss = F.cross_entropy(net(x), labels[batch], label_smoothing=0.03)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
            total += loss.item() * len(batch)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3d}  loss {total / len(labels):.4f}")


def accuracy(net: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    """The share of labels that get the largest logit."""
    with torch.no_grad():
        return (net(DIGIT_PREPROCESSING.normalise(pixels)).argmax(1) == labels).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", action="store_true", help="write the shipped scans and stop")
    if parser.parse_args().data:
        write_data()
        return
    torch.set_num_threads(1)
    torch.manual_seed(SEED)  # initial weights
    net, generator = DigitNet(), torch.Generator().manual_seed(SEED)
    train(net, *tensors("train"), generator)
    net.eval()
    print(f"train accuracy {accuracy(net, *tensors('train')):.4f}")
    print(f"test accuracy  {accuracy(net, *tensors('test')):.4f}")
    save_tensors(net.state_dict(), PACKAGE / "models" / WEIGHTS_FILE)


if __name__ == "__main__":
    main()
