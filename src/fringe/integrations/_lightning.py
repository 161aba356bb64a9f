"""A callback of Lightning that explains some images while a network is trained."""

from typing import Any

from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fringe.attribution import Attributor
from fringe.errors import InputError, first_line, require_integer, warn_caller
from fringe.explanations import explain
from fringe.integrations._trackers import log_explanations


class ExplainCallback(Callback):  # pyright: ignore[reportUntypedBaseClass]
    """Explain images at the end of validation, and log the explanations with the trainer's loggers.

    The fit is the same as without it: weights, gradients, modes and random numbers stay as they are. Without a logger,
    files are written into the folder ``explanations`` of the trainer's root folder. An error of the first explanation
    ends the fit; a later one is a warning.

    Args:
        images: Model inputs (B, *S); None takes the first inputs of the first validation batch.
        every: Number of epochs between two explanations.
        n: Number of images that are taken from the batch.
        method: Name of a method, or a configured one.
        name: What the names of everything that is logged begin with.
        **options: Further arguments of :func:`fringe.explain`, such as ``classes`` or ``preprocessing``.

    Raises:
        InputError: If ``every`` or ``n`` is no positive integer.
    """

    def __init__(
        self,
        images: Tensor | None = None,
        *,
        every: int = 1,
        n: int = 8,
        method: str | Attributor = "fringe",
        name: str = "explanations",
        **options: Any,
    ):
        super().__init__()
        require_integer("every", every)
        require_integer("n", n)
        self.images, self.every, self.n, self.method, self.name, self.options = images, every, n, method, name, options
        self._has_run = False

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.images is None and batch_idx == dataloader_idx == 0:
            inputs = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
            if not isinstance(inputs, Tensor):
                message = f"the validation batch is a {type(batch).__name__} that does not begin with a tensor"
                raise InputError(message, argument="images", hint="pass ExplainCallback(images=...)")
            self.images = inputs[: self.n].detach().cpu().clone()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        is_due = trainer.sanity_checking or (trainer.current_epoch + 1) % self.every == 0
        if self.images is None or not is_due or not trainer.is_global_zero:
            return
        try:
            inputs = self.images.to(pl_module.device, pl_module.dtype)
            result = explain(pl_module, inputs, method=self.method, **self.options)
            for to in [] if trainer.sanity_checking else trainer.loggers or [trainer.default_root_dir]:
                log_explanations(result, to, step=trainer.global_step, name=self.name)
        except Exception as error:
            if not self._has_run:
                raise
            warn_caller(f"no explanation at step {trainer.global_step}: {first_line(error)}")
        self._has_run = True
