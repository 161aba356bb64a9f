"""A segmentation network as a classifier of one region."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fringe.errors import InputError, ModelOutputError


class Region(nn.Module):
    """A segmentation network with logits (B, C, H, W) as a classifier of a region: the mean logits (B, C) in a mask.

    Its map says why the network sees class k, and no other class, in this region:

    .. math:: z_k = \\sum_{hw} m_{hw} Z_{khw} / \\sum_{hw} m_{hw}

    Args:
        model: Returns logits (B, C, H, W), a mapping that holds them as ``"out"`` (torchvision) or ``"logits"``, or an
            object with ``.logits`` (transformers).
        mask: The region (H, W): true or false, or weights that are not negative. A mask of another size is averaged, or
            repeated, to the size of the logits. None: every call gives its masks, one for each image, as in
            ``fringe.attribute(Region(model), inputs, forward_kwargs={"mask": masks})`` with ``masks`` (B, H, W).

    Raises:
        InputError: If the mask is empty or has another form.
    """

    def __init__(self, model: Callable[..., Any], mask: Tensor | None = None):
        super().__init__()
        self.model = model
        self.training = getattr(model, "training", False)  # a function has none, nor has a frozen script
        if mask is not None:
            mask = _weights(mask[0] if mask.dim() == 3 and len(mask) == 1 else mask)
            if mask.dim() != 2:
                raise InputError(
                    f"got shape {tuple(mask.shape)}, expected (H, W)",
                    argument="mask",
                    hint='masks of single images are forward arguments, forward_kwargs={"mask": masks}',
                )
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor, *args: Any, mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Compute the mean logits of the region.

        Args:
            x: Images (B, *S).
            *args: Further arguments of the model.
            mask: Regions (B, H, W) of these images, or (H, W), instead of the region's own.
            **kwargs: Further arguments of the model.

        Returns:
            Logits (B, C).

        Raises:
            InputError: If there is no mask, or one is empty.
            ModelOutputError: If the model returns no logits (B, C, H, W).
        """
        region = cast("Tensor | None", self.mask) if mask is None else _weights(mask)
        if region is None:
            raise InputError("this region has none", argument="mask", hint='pass forward_kwargs={"mask": masks}')
        logits = _dense_logits(self.model(x, *args, **kwargs), len(x))
        region = region.to(logits).expand(len(x), *region.shape[-2:])[:, None]
        if region.shape[-2:] != logits.shape[-2:]:
            region = F.interpolate(region, logits.shape[-2:], mode="area")
        return (logits * region).sum((-2, -1)) / region.sum((-2, -1))


def _weights(mask: Tensor) -> Tensor:
    """The mask as numbers, checked: finite, not negative, and not zero everywhere."""
    values = mask.detach()
    values = values if values.is_floating_point() else values.float()
    if values.dim() < 2 or not bool((torch.isfinite(values) & (values >= 0)).all()):
        message = f"got shape {tuple(values.shape)}, expected weights (H, W) that are finite and not negative"
        raise InputError(message, argument="mask")
    if not bool((values.sum((-2, -1)) > 0).all()):
        raise InputError("it is empty", argument="mask", hint="choose at least one pixel")
    return values


def _dense_logits(output: Any, batch: int) -> Tensor:
    logits = output
    if isinstance(output, Mapping):
        table = cast(Mapping[str, Any], output)
        logits = table.get("out", table.get("logits"))
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 4 or len(logits) != batch:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(output).__name__
        raise ModelOutputError(f"its output is {what}, expected logits ({batch}, C, H, W)", argument="model")
    return logits
