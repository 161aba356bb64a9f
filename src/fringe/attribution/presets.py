"""The paper's hyper-parameters (its table "Hyperparameter configurations"), read from the table shipped beside this
file: six networks, three variants each."""

import csv
import difflib
from functools import cache
from importlib import resources
from typing import Any

from fringe.errors import InputError

_FIELDS = ("tau", "eta_max", "delta_euc", "damping", "gamma_step", "gamma_prior", "cg_iterations")


@cache
def table() -> dict[tuple[str, str], dict[str, str]]:
    """The table's rows by (model, variant); a dash of the paper is an empty string."""
    text = resources.files("fringe.attribution").joinpath("presets.csv").read_text(encoding="utf-8")
    return {(row["model"], row["variant"]): row for row in csv.DictReader(text.splitlines())}


def preset_names() -> tuple[str, ...]:
    """The networks that the paper tuned."""
    return tuple(dict.fromkeys(model for model, _ in table()))


def paper_settings(model: str, variant: str) -> dict[str, Any]:
    """Fields of ``FRInGe`` for a row of the table.

    Where the table has a dash: no smoothing is gamma = 0, no Euclidean cap is None. The Euclidean variant names only
    eta_max; its number of steps is then that of the same network's full setting, and no other bound applies.
    """
    if (model, variant) not in table():
        names = [*preset_names(), *dict.fromkeys(v for _, v in table())]
        near = difflib.get_close_matches(model, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(
            f"preset: no setting for model {model!r}, variant {variant!r}{hint} Models: {', '.join(preset_names())}; "
            f"variants: {', '.join(dict.fromkeys(v for _, v in table()))}"
        )
    row = table()[model, variant]
    settings: dict[str, Any] = {"solve": "natural", "delta_euc": None, "preconditioner": "blur"}
    settings |= {name: float(row[name]) for name in _FIELDS if row[name]}
    if "cg_iterations" in settings:
        settings["cg_iterations"] = int(settings["cg_iterations"])
    if variant != "fringe":
        settings |= {"gamma_step": 0.0, "gamma_prior": 0.0}
    if variant == "euclidean":
        settings |= {"tau": float(table()[model, "fringe"]["tau"]), "solve": "gradient", "kl_bound": False}
    return settings
