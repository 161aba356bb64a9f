"""What can go wrong at the door, each with the argument, what came, and what to do."""


class FringeError(ValueError):
    """Base of the errors that name a wrong argument."""


class ModelOutputError(FringeError):
    """The model's output cannot be read as logits (B, C)."""


class TargetError(FringeError):
    """The target does not name one class an image."""


class InputError(FringeError):
    """The inputs cannot be explained as they are."""


class NotDifferentiableError(FringeError):
    """The output does not depend differentiably on the input."""
