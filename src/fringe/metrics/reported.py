"""What a method said of its own path, as a metric."""

import torch

from fringe.errors import InputError
from fringe.geometry import geometry_dtype
from fringe.metrics.base import EvaluatedMaps, Scores


def reported(explained: EvaluatedMaps, name: str) -> Scores:
    """The diagnostic ``name`` (B,) of the maps; NaN, flagged ``undefined``, where the method has none."""
    maps = explained.values
    dtype = geometry_dtype(maps.device)
    found = explained.diagnostics.get(name)
    if found is None:
        values = torch.full((len(maps),), torch.nan, dtype=dtype, device=maps.device)
    elif found.shape != maps.shape[:1]:
        raise InputError(f"diagnostics[{name!r}]: got shape {tuple(found.shape)}, expected ({len(maps)},)")
    else:
        values = found.detach().to(maps.device, dtype)
    return Scores(values, flags={"undefined": torch.isnan(values)})
