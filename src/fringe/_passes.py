"""What an explanation costs."""

from dataclasses import dataclass


@dataclass
class PassCounts:
    """Passes through the network, counted in images: a call on a batch of 8 counts 8."""

    forward: int = 0
    jvp: int = 0
    vjp: int = 0

    def since(self, before: "PassCounts") -> "PassCounts":
        return PassCounts(self.forward - before.forward, self.jvp - before.jvp, self.vjp - before.vjp)
