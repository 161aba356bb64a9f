"""What there is to choose from: methods with their settings, the paper's presets, and the families of models."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from fringe.cli.problems import reported

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]

EXAMPLES = {
    "embedded": "embedded:digits",
    "torchvision": "torchvision:resnet18",
    "timm": "timm:resnet18.a1_in1k",
    "hf": "hf:microsoft/resnet-18",
    "file": "models.py:my_network --trust-code --preprocessing imagenet",
    "module": "mypackage.networks:small --preprocessing resize=32,mean=0.5,std=0.5",
    "export": "network.pt2 --trust-code --preprocessing imagenet",
}
"""One ``--model`` a family, with the options that it needs."""


def methods(as_json: Json = False) -> None:
    """List the methods and their settings."""
    with reported():
        from fringe.attribution import METHODS

        found: list[dict[str, Any]] = [
            {"name": name, "summary": _summary(kind), "settings": _fields(kind)} for name, kind in METHODS.items()
        ]
        if as_json:
            typer.echo(json.dumps({"methods": found}, indent=2))
            return
        for method in found:
            typer.echo(f"{method['name']}: {method['summary']}\n")
            rows = [(f["name"], _show(f["default"]), f["expected"], f["help"]) for f in method["settings"]]
            _print_table(("setting", "default", "takes", "meaning"), rows)


def presets(as_json: Json = False) -> None:
    """List the paper's settings: six networks, three variants each."""
    with reported():
        from fringe.attribution.presets import paper_settings, table

        found: list[dict[str, Any]] = [{"model": m, "variant": v, "settings": paper_settings(m, v)} for m, v in table()]
        if as_json:
            typer.echo(json.dumps({"presets": found}, indent=2))
            return
        names = ("tau", "eta_max", "delta_euc", "damping", "gamma_step", "gamma_prior", "cg_iterations")
        rows = [(p["model"], p["variant"], *(_show(p["settings"].get(n, "")) for n in names)) for p in found]
        _print_table(("--preset", "--variant", *names), rows)


def models(as_json: Json = False) -> None:
    """List the families of models and how each is written."""
    with reported():
        from fringe.models import LOADERS

        found = [
            {"family": name, "form": loader.form, "summary": loader.summary, "example": f"--model {EXAMPLES[name]}"}
            for name, loader in LOADERS.items()
        ]
        if as_json:
            typer.echo(json.dumps({"models": found}, indent=2))
            return
        _print_table(("form", "what it is", "example"), [(m["form"], m["summary"], m["example"]) for m in found])


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _fields(kind: Any) -> list[dict[str, Any]]:
    from fringe.cli.settings import expected, field_of

    keys = ("low", "high", "log", "choices", "unit", "help")
    return [
        {"name": name, "default": field.default, "expected": expected(kind, name)}
        | {key: field.metadata.get(key) for key in keys}
        for name, field in field_of(kind).items()
    ]


def _show(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    console.width = max(console.width, 132) if not console.is_terminal else console.width
    console.print(table)
