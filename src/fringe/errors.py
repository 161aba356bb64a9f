"""Errors: each names the argument, what came, and what to do."""


class FringeError(ValueError):
    """Base class of the errors of this library.

    Args:
        message: What is wrong: what came, and what is expected.
        argument: Name of the argument, in terms of the Python interface; the command line shows its flag instead.
        hint: What to do, as a clause without a full stop.
    """

    def __init__(self, message: str = "", *, argument: str | None = None, hint: str | None = None):
        super().__init__(message)
        self.message, self.argument, self.hint = message, argument, hint

    def __str__(self) -> str:
        text = self.message if self.argument is None else f"{self.argument}: {self.message}"
        return text if self.hint is None else f"{text}; {self.hint}"


class ModelOutputError(FringeError):
    """The model's output cannot be read as logits (B, C)."""


class TargetError(FringeError):
    """The target does not name one class an image."""


class InputError(FringeError):
    """The inputs cannot be explained as they are."""


class NotDifferentiableError(FringeError):
    """The output does not depend differentiably on the input."""


class TransientError(FringeError):
    """Trouble that may pass, such as a full disk or a share that is away. Nothing is lost: the same call goes on where
    it stopped."""


def is_transient(error: BaseException) -> bool:
    """Whether the system, its memory or the device failed, and not the data, the model or the method.

    What was raised ``from`` such an error counts as well, but for an OSError without an error number: decoders raise it
    on bad data.
    """
    if isinstance(error, (OSError, TransientError)) or is_out_of_memory(error) or is_device_error(error):
        return True
    cause = error.__cause__
    if isinstance(cause, OSError):
        return cause.errno is not None
    return cause is not None and is_transient(cause)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory, of the machine or of a device, ran out."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def is_device_error(error: BaseException) -> bool:
    """Whether an accelerator failed. What the process asks of it afterwards fails, too, whatever is asked."""
    import torch

    if is_out_of_memory(error):
        return False
    kinds = getattr(torch, "AcceleratorError", ())  # torch before 2.8 has none
    return isinstance(error, kinds) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _DEVICE_FAILED)
    )


_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "_STATUS_ALLOC_FAILED")
_DEVICE_FAILED = ("CUDA error:", "CUDA driver error:", "HIP error:", "_EXECUTION_FAILED", "CUDNN_STATUS_INTERNAL_ERROR")
