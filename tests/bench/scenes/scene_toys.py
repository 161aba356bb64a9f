"""Networks that learn the tasks of scenes in a second, in place of those that take a minute."""

from torch import nn


class SmallNet(nn.Module):
    """Two convolutions and the mean over the plane: enough for coloured marks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.layers(x).amax((2, 3)))


class Dense(nn.Sequential):
    """Two layers for a digit and a null block."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64 * 32, 64), nn.ReLU(), nn.Linear(64, 10))
