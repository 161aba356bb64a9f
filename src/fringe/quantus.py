"""Every method of this library as an explanation function of Quantus, which this module does not import."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fringe._checks import require_choice
from fringe.attribution import Attributor, attribute, get_method
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Score
from fringe.errors import InputError


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
    """Signed maps (B, *S) of ``inputs`` (B, *S), channels first, for the classes ``targets`` (B,).

    What Quantus calls: ``metric(model, x, y, explain_func=explain_func, explain_func_kwargs={"method": "ig", "steps":
    20})``. The keywords are those of :func:`fringe.attribute`; what else is given are ``settings`` of the method.
    Inputs go to ``device``, or to where the model's weights are, in their precision. Without targets, the predicted
    classes are explained. ``channels="sum"`` adds up the channels of images and keeps the axis, (B, 1, H, W), as
    Quantus' own explanations do and some of its metrics expect. Raises InputError for a setting that the method does
    not have.
    """
    require_choice("channels", channels, ("each", "sum"))
    x = inputs if isinstance(inputs, Tensor) else torch.tensor(inputs)
    x = _like_weights(model, x, device)
    classes = "predicted" if targets is None else torch.as_tensor(targets).to(x.device)
    found = attribute(
        model,
        x,
        method=_configured(method, settings),
        target=_whole(classes) if isinstance(classes, Tensor) else classes,
        score=score,
        batch_size=batch_size,
        seed=seed,
        baseline=baseline,
        space=space,
        forward_args=forward_args,
        forward_kwargs=forward_kwargs,
    )
    maps = found.values.sum(1, keepdim=True) if channels == "sum" else found.values
    return maps.cpu().numpy()


def _like_weights(model: object, x: Tensor, device: str | torch.device | None) -> Tensor:
    """``x`` with the precision and place of the model's weights; a place that was named comes first."""
    module = model.module if isinstance(model, Classifier) else model
    weights = module.parameters() if isinstance(module, nn.Module) else iter(())
    first = next((w for w in weights if w.is_floating_point()), None)
    if first is not None:
        return x.to(device or first.device, first.dtype)
    return x.to(device or x.device, x.dtype if x.is_floating_point() else torch.get_default_dtype())


def _whole(classes: Tensor) -> Tensor:
    """Classes as integers: Quantus hands on whatever array of labels it was given."""
    whole = classes.to(torch.int64)
    if not torch.equal(whole.to(classes.dtype), classes):
        raise InputError(f"targets: got {classes.tolist()}, expected whole numbers of classes")
    return whole.reshape(-1) if whole.dim() else whole


def _configured(method: str | Attributor, settings: dict[str, Any]) -> Attributor:
    chosen = get_method(method)
    known = [f.name for f in dataclasses.fields(cast(Any, chosen))]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InputError(f"{name}: the method {chosen.name!r} has no such setting{hint} It has: {', '.join(known)}")
    return dataclasses.replace(cast(Any, chosen), **settings)
