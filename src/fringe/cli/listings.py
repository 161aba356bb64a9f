"""What there is to choose from: methods and metrics with their settings, the paper's presets, families of models."""

import inspect
import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from fringe.cli.problems import reported

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Only this one.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]

EXAMPLES = {
    "embedded": "embedded:digits",
    "torchvision": "torchvision:resnet18",
    "timm": "timm:resnet18.a1_in1k",
    "hf": "hf:microsoft/resnet-18",
    "file": "models.py:my_network --trust-code --preprocessing imagenet",
    "module": "mypackage.networks:small --trust-code --preprocessing resize=32,mean=0.5,std=0.5",
    "export": "network.pt2 --trust-code --preprocessing imagenet",
}
"""One ``--model`` a family, with the options that it needs."""


def methods(name: Name = None, as_json: Json = False) -> None:
    """List the methods with their settings, or only the one named."""
    with reported():
        from fringe.attribution import METHODS, get_method

        chosen = METHODS if name is None else {name: type(get_method(name))}
        found: list[dict[str, Any]] = [
            {
                "name": key,
                "title": kind.title or key,
                "source": kind.source,
                "summary": _summary(kind),
                "presets": _presets(kind),
                "settings": kind.describe(),
            }
            for key, kind in chosen.items()
        ]
        if as_json:
            typer.echo(json.dumps({"methods": found}, indent=2))
            return
        for method in found:
            _print_head(method, [("source", method["source"])])


def metrics(name: Name = None, as_json: Json = False) -> None:
    """List the metrics with their settings, or only the one named."""
    with reported():
        from fringe.metrics import METRICS, get_metric

        chosen = METRICS if name is None else {name: type(get_metric(name))}
        found: list[dict[str, Any]] = [
            {
                "name": key,
                "title": kind.title,
                "source": kind.source,
                "direction": kind.direction,
                "unit": kind.unit,
                "space": kind.space,
                "needs_method": kind.requires_explainer,
                "summary": _summary(kind),
                "presets": _presets(kind),
                "settings": kind.describe(),
            }
            for key, kind in chosen.items()
        ]
        if as_json:
            typer.echo(json.dumps({"metrics": found}, indent=2))
            return
        better = {"higher": "higher is better", "lower": "lower is better", "none": "neither end is better"}
        for metric in found:
            about = better[metric["direction"]] + (f", in {metric['unit']}" if metric["unit"] else "")
            _print_head(metric, [("reads", about), ("looks at", metric["space"]), ("source", metric["source"])])


def presets(as_json: Json = False) -> None:
    """List the paper's settings: six networks, three variants each."""
    with reported():
        from fringe.attribution import paper_settings, table

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
    """The first paragraph of the docstring, on one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def _presets(kind: Any) -> dict[str, dict[str, Any]]:
    return {name: dict(settings) for name, settings in kind.presets.items()}


def _print_head(entry: dict[str, Any], about: list[tuple[str, str]]) -> None:
    """Name and title, what is known of it, its settings as a table."""
    typer.echo(f"{entry['name']}: {entry['title']}\n{entry['summary']}")
    brief = [(n, _pairs(settings)) for n, settings in _with_settings(entry["presets"])]
    names = [f"{n} ({pairs})" if 0 < len(pairs) < 60 else n for n, pairs in brief]  # the longer ones: fringe presets
    for key, value in (*about, ("presets", ", ".join(names))):
        if value:
            typer.echo(f"  {key}: {value}")
    rows = [(f["name"], _show(f["default"]), f["expected"], f["help"]) for f in entry["settings"]]
    if rows:
        typer.echo()
        _print_table(("setting", "default", "takes", "meaning"), rows)
    typer.echo()


def _with_settings(presets: list[str] | dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return list(presets.items()) if isinstance(presets, dict) else [(name, {}) for name in presets]


def _pairs(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_show(value)}" for key, value in settings.items())


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
