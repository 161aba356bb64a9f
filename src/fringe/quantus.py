"""Every method of this library as an explanation function of Quantus, which this module does not import."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fringe.attribution import Attributor, attribute, get_method
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Score
from fringe.errors import InputError, require_choice
from fringe.models import usable_device
from fringe.settings import settings_of

__all__ = ["explain_func"]


def explain_func(
    model: Callable[[Tensor], Any] | Classifier,
    inputs: NDArray[Any] | Tensor,
    targets: NDArray[Any] | Tensor | int | None = None,
    *,
    method: str | Attributor = "fringe",
    device: str | torch.device | None = None,
    score: Score | None = None,
    batch_size: int | Literal["auto"] | None = None,
    seed: int = 0,
    baseline: float | Tensor | None = None,
    space: InputSpace | None = None,
    forward_args: Sequence[Any] | None = None,
    forward_kwargs: Mapping[str, Any] | None = None,
    channels: Literal["each", "sum"] = "each",
    **settings: Any,
) -> NDArray[np.floating[Any]]:
    """Compute signed maps, as Quantus calls an explanation function.

    The network is in evaluation mode afterwards, as after the explanations of Quantus, whose metrics rely on it.
    For instance ``metric(model, x, y, explain_func=explain_func, explain_func_kwargs={"method": "ig", "steps": 20})``.

    Args:
        model: The network, or a :class:`fringe.Classifier`.
        inputs: Images (B, *S), channels first.
        targets: Classes (B,); None for the predicted ones.
        method: Name of a method, or a configured one.
        device: Where the maps are computed; None for the device of the model's weights.
        score: The explained scalar, as for :class:`fringe.Classifier`.
        batch_size: Bound on the images of one pass, as for :class:`fringe.Classifier`.
        seed: Seed of everything that is random.
        baseline: A number or a tensor that replaces the baseline of the method.
        space: The space of valid inputs.
        forward_args: Further positional arguments of the model.
        forward_kwargs: Further keyword arguments of the model.
        channels: ``"sum"`` adds up the channels of images and keeps the axis, (B, 1, H, W), as Quantus' own
            explanations do and some of its metrics expect.
        **settings: Settings of the method.

    Returns:
        Maps (B, *S), or (B, 1, H, W) of summed channels.

    Raises:
        ModelError: For a device that cannot be used.
        InputError: For a setting that the method does not have, and for an invalid argument.
    """
    require_choice("channels", channels, ("each", "sum"))
    if isinstance(network := model.model if isinstance(model, Classifier) else model, nn.Module):
        network.eval()  # and leave it so, as Quantus' own explanations do: its metrics rely on it
    x = inputs if isinstance(inputs, Tensor) else torch.tensor(inputs)
    x, configured = _like_weights(model, x, device), get_method(method)
    for name in settings:
        require_choice(f"{configured.name} setting", name, settings_of(type(configured)))
    classes = "predicted" if targets is None else torch.as_tensor(targets).to(x.device)
    result = attribute(
        model,
        x,
        method=dataclasses.replace(cast(Any, configured), **settings),
        target=_integers(classes) if isinstance(classes, Tensor) else classes,
        score=score,
        batch_size=batch_size,
        seed=seed,
        baseline=baseline,
        space=space,
        forward_args=forward_args,
        forward_kwargs=forward_kwargs,
    )
    maps = result.values.sum(1, keepdim=True) if channels == "sum" else result.values
    return maps.cpu().numpy()


def _like_weights(model: object, x: Tensor, device: str | torch.device | None) -> Tensor:
    """``x`` in the precision and on the device of the model's weights; a device that is given comes first."""
    module = model.module if isinstance(model, Classifier) else model
    weights = module.parameters() if isinstance(module, nn.Module) else iter(())
    first = next((w for w in weights if w.is_floating_point()), None)
    device = None if device is None else usable_device(device)
    if first is not None:
        return x.to(device or first.device, first.dtype)
    return x.to(device or x.device, x.dtype if x.is_floating_point() else torch.get_default_dtype())


def _integers(classes: Tensor) -> Tensor:
    """Classes as integers: Quantus passes on whatever array of labels it was given."""
    integers = classes.to(torch.int64)
    if not torch.equal(integers.to(classes.dtype), classes):
        raise InputError(f"got {classes.tolist()}, expected whole numbers of classes", argument="targets")
    return integers.reshape(-1) if integers.dim() else integers
