"""What the checks of a contract report, and how a table of them is run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fringe.errors import FringeError, InputError

T = TypeVar("T")


@dataclass(frozen=True)
class CheckResult:
    """One check: its ``name``, whether it ``passed``, and in ``detail`` the numbers it was judged by."""

    name: str
    passed: bool
    detail: str


class ContractError(FringeError, AssertionError):
    """A method or metric breaks its contract. The message lists the failures; ``results`` holds every check."""

    def __init__(self, message: str, results: list[CheckResult]):
        super().__init__(message)
        self.results = results


class Broken(Exception):
    """Raised by a check: the contract does not hold, for the reason given."""


def run_checks(
    what: str,
    subject: T,
    checks: Mapping[str, Callable[[T], str]],
    skip: Collection[str],
    expected_failures: Mapping[str, str],
) -> list[CheckResult]:
    """Run each check on ``subject``; raises ContractError if one fails that is not expected to, or passes that is."""
    for argument, names in (("skip", skip), ("expected_failures", expected_failures)):
        unknown = sorted(set(names) - set(checks))
        if unknown:
            raise InputError(f"{argument}: no check is called {', '.join(unknown)}; known: {', '.join(checks)}")
    results = [_run(name, check, subject) for name, check in checks.items() if name not in skip]
    surprises = [r for r in results if r.passed == (r.name in expected_failures)]
    if surprises:
        head = f"{what} breaks its contract in {len(surprises)} of {len(results)} checks:"
        lines = [f"  {r.name}: {_tell(r, expected_failures)}" for r in surprises]
        raise ContractError("\n".join((head, *lines)), results)
    return results


def _run(name: str, check: Callable[[T], str], subject: T) -> CheckResult:
    try:
        return CheckResult(name, True, check(subject))
    except Broken as broken:
        return CheckResult(name, False, str(broken))
    except Exception as error:  # what one check meets must not hide what the others find
        return CheckResult(name, False, f"{type(error).__name__}: {error}")


def _tell(result: CheckResult, expected: Mapping[str, str]) -> str:
    if result.passed:
        return f"passed, though it was expected to fail ({expected[result.name]}); take it off the list"
    return result.detail


def refuse(condition: bool, detail: str) -> None:
    """The contract is broken if ``condition`` holds."""
    if condition:
        raise Broken(detail)


def agree(what: str, found: Tensor, expected: Tensor, tolerance: float, least: float = 0.0) -> str:
    """Refuse numbers further apart than ``tolerance`` times the largest of them, or times ``least`` if that is more."""
    refuse(found.shape != expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    error = distance(found, expected, least)
    refuse(
        not error <= tolerance, f"{what} differ by {error:.1e} of the largest number, where {tolerance:.0e} is allowed"
    )
    return f"{what} agree within {error:.1e}"


def distance(found: Tensor, expected: Tensor, least: float = 0.0) -> float:
    """Largest difference over the largest number, ``least`` at least; infinite where only one of two is a number."""
    a, b = found.detach().double(), expected.detach().double()
    if bool((torch.isfinite(a) != torch.isfinite(b)).any()):
        return float("inf")
    a, b = a.nan_to_num(), b.nan_to_num()
    apart = float((a - b).abs().max()) if a.numel() else 0.0
    return apart / max(float(torch.maximum(a.abs(), b.abs()).max()), least) if apart else 0.0
