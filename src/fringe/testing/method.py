"""The contract of attribution methods."""

from collections.abc import Callable, Collection, Mapping

import torch

from fringe.attribution import Attributor, get_method
from fringe.testing import method_conduct, method_maps, settings
from fringe.testing.result import CheckResult, run_checks
from fringe.testing.trial import Trial

ATTRIBUTOR_CHECKS: Mapping[str, Callable[[Trial], str]] = {
    "settings_frozen": lambda trial: settings.frozen(trial.method),
    "settings_explained": lambda trial: settings.explained(trial.method),
    "settings_recorded": lambda trial: settings.recorded(trial.method, "method", trial.method.name),
    "presets": lambda trial: settings.constructed(type(trial.method), trial.method.presets),
    "kind": method_maps.kind,
    "finite": method_maps.finite,
    "constant_model": method_maps.constant_model,
    "unread_inputs": method_maps.unread_inputs,
    "affine_score": method_maps.affine_score,
    "completeness": method_maps.completeness,
    "refinement": method_maps.refinement,
    "no_way_to_go": method_maps.no_way_to_go,
    "tables": method_maps.tables,
    "batch_of_one": method_conduct.batch_of_one,
    "order": method_conduct.order,
    "batch_size": method_conduct.batch_size,
    "repeatable": method_conduct.repeatable,
    "callers_tensors": method_conduct.callers_tensors,
    "callers_model": method_conduct.callers_model,
    "random_generators": method_conduct.random_generators,
    "passes": method_conduct.passes,
    "bad_images": method_conduct.bad_images,
    "telemetry": method_conduct.telemetry,
}
"""The checks by name; each says in its docstring what it asks."""


def check_attributor(
    method: str | Attributor,
    *,
    skip: Collection[str] = (),
    expected_failures: Mapping[str, str] = {},
    device: str | torch.device = "cpu",
) -> list[CheckResult]:
    """Try a configured method, or a registered one by name, on every check of the contract.

    It explains images (2, 8, 8) and rows (6,) of small built-in networks, about fifty times: cheap settings make that
    seconds. ``skip`` names checks to leave out; ``expected_failures`` maps those that are known to fail to the reason,
    and one that passes all the same is reported. Returns what each check found; raises ContractError, which lists
    every failure with its numbers.
    """
    chosen = get_method(method)
    trial = Trial(chosen, torch.device(device))
    return run_checks(f"method {chosen.name!r}", trial, ATTRIBUTOR_CHECKS, skip, expected_failures)
