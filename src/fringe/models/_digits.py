"""The embedded classifier: a small convolutional network for handwritten digits, 77 KB of weights.

It lets every part of the library run on a fresh machine without a download. ``scripts/train_digits.py``
trains it on the images shipped with ``fringe.data``.
"""

from importlib import resources

from safetensors.torch import load
from torch import Tensor, nn

from fringe.models._base import seeded
from fringe.models._preprocessing import Preprocessing

WEIGHTS_FILE = "digits.safetensors"
DIGIT_NAMES = tuple("0123456789")

#: The 8x8 scans are enlarged to 32x32 here, so that a relevance map has more than 64 pixels. The numbers
#: are the mean and spread of the enlarged training images, rounded.
DIGIT_PREPROCESSING = Preprocessing(resize=(32, 32), crop=None, mean=(0.3,), std=(0.35,), channels=1)


def _stage(width_in: int, width_out: int) -> list[nn.Module]:
    # Average pooling, because the scans have wide flat areas: the maximum of equal values has no definite
    # gradient, and the arbitrary winner would show in a relevance map.
    return [
        nn.Conv2d(width_in, width_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(),
        nn.AvgPool2d(2),
    ]


class DigitNet(nn.Module):
    """Three convolution stages, the mean over the remaining plane, and a linear layer.

    Maps normalised images ``(N, 1, 32, 32)`` to logits ``(N, 10)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stage(1, 16), *_stage(16, 32), *_stage(32, 48))
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def digit_net() -> DigitNet:
    """Build the trained network, on the CPU, in evaluation mode."""
    with seeded(0):  # weights that are replaced at once would be drawn from the caller's generator
        net = DigitNet()
    net.load_state_dict(load(resources.files("fringe.models").joinpath(WEIGHTS_FILE).read_bytes()))
    return net.eval()
