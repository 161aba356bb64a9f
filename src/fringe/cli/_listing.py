"""``fringe methods``, ``metrics``, ``presets`` and ``models``: what there is to choose from."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from fringe._strings.formats import first_paragraph, to_json
from fringe._strings.tables import Table
from fringe.cli._console import exit_on_error, say, show
from fringe.cli._options import AsJson

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one, with its settings.")]

Kind = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Only those that score this kind of input: image, series, volume or tabular."),
]

_KEYS = {"requires_explainer": "needs_method"}
_BETTER = {"higher": "higher is better", "lower": "lower is better", "none": "neither end is better"}


def methods(name: Name = None, as_json: AsJson = False) -> None:
    """List the methods, or show the settings of one."""
    with exit_on_error():
        from fringe.attribution import METHODS, get_method

        chosen = METHODS.values() if name is None else (type(get_method(name)),)
        shown = _shown("methods", [_described(kind, ("source",)) for kind in chosen], as_json=as_json)
        if name is None:
            rows = [(entry["name"], entry["title"], entry["source"]) for entry in shown]
            controls = [row[:2] for row in rows if row[2].startswith("a control")]
            rows = [row for row in rows if row[:2] not in controls]
            forms = [f"written: {form}" for entry in shown if (form := _forms(METHODS[entry["name"]]))]
            more = [Table(("name", "control: a map to compare with"), controls)] if controls else []
            _print_names("methods", ("name", "method", "source"), rows, *more, *forms)
        for entry in () if name is None else shown:
            kind = METHODS[entry["name"]]
            plain = entry if kind.package is None else {**entry, "presets": {}}
            _print_entry(plain, {"source": entry["source"], "written": _forms(kind)})


def _forms(kind: Any) -> str:
    """How a modifier or the methods of another library are written; empty for any other method."""
    from fringe.errors import install_hint, is_installed
    from fringe.settings import settings_of

    if "of" in settings_of(kind):
        return f"{kind.name}:METHOD" + (f", or {kind.name}(NUMBER):METHOD for {kind.number}" if kind.number else "")
    if kind.package is None:
        return ""
    names = ", ".join(f"{kind.name}:{name}" for name in kind.presets)
    return names if is_installed(kind.package) else f"{names} (not installed: {install_hint(kind.package)})"


def metrics(name: Name = None, kind: Kind = None, as_json: AsJson = False) -> None:
    """List the metrics, or show the settings of one."""
    with exit_on_error():
        from fringe.errors import require_choice
        from fringe.metrics import KINDS, METRICS, get_metric

        if kind is not None:
            require_choice("kind", kind, KINDS)
        chosen = METRICS.values() if name is None else (type(get_metric(name)),)
        attributes = ("source", "direction", "unit", "space", "requires_explainer")
        inputs = {one.name: {preset: one.preset(preset).kinds for preset in one.presets} for one in chosen}
        suited = [one for one in chosen if kind is None or any(kind in kinds for kinds in inputs[one.name].values())]
        entries = [{**_described(one, attributes), "inputs": inputs[one.name]} for one in suited]
        shown = _shown("metrics", entries, as_json=as_json)
        if name is None:
            rows = [(e["name"], e["title"], _scale(e), ", ".join(e["inputs"]["paper"])) for e in shown]
            _print_names("metrics", ("name", "metric", "reads", "inputs"), rows)
        for entry in () if name is None else shown:
            usual = entry["inputs"]["paper"]
            others = [f"{preset}: {', '.join(kinds)}" for preset, kinds in entry["inputs"].items() if kinds != usual]
            notes = {"looks at": entry["space"], "inputs": "; ".join([", ".join(usual), *others])}
            _print_entry(entry, {"reads": _scale(entry), **notes, "source": entry["source"]})


def _scale(entry: Mapping[str, Any]) -> str:
    return _BETTER[entry["direction"]] + (f", in {entry['unit']}" if entry["unit"] else "")


def presets(as_json: AsJson = False) -> None:
    """List the paper's settings: six networks, three variants each."""
    with exit_on_error():
        from fringe.attribution import paper_settings, table

        entries = [{"model": m, "variant": v, "settings": paper_settings(m, v)} for m, v in table()]
        names = ("tau", "eta_max", "delta_euc", "damping", "gamma_step", "gamma_prior", "cg_iterations")
        shown = _shown("presets", entries, as_json=as_json)
        rows = [(e["model"], e["variant"], *(_text(e["settings"].get(n, "")) for n in names)) for e in shown]
        show([Table(("--preset", "--variant", *names), rows)] if rows else [])


def models(as_json: AsJson = False) -> None:
    """List the families of models and how each is written."""
    with exit_on_error():
        from fringe.models import LOADERS

        entries = [
            {"family": name, "form": loader.form, "summary": loader.summary, "example": f"--model {loader.example}"}
            for name, loader in LOADERS.items()
        ]
        rows = [(e["form"], e["summary"], e["example"]) for e in _shown("models", entries, as_json=as_json)]
        show([Table(("form", "what it is", "example"), rows)] if rows else [])


def _shown(name: str, entries: Sequence[dict[str, Any]], *, as_json: bool) -> Sequence[dict[str, Any]]:
    """The entries that are printed as text; none after they were printed as a JSON document."""
    if as_json:
        typer.echo(to_json({name: entries}), nl=False)
    return () if as_json else entries


def _described(kind: Any, attributes: Sequence[str]) -> dict[str, Any]:
    """A method or metric: its name, some attributes, the first paragraph of the docstring, presets and settings."""
    return {
        "name": kind.name,
        "title": kind.title or kind.name,
        **{_KEYS.get(attribute, attribute): getattr(kind, attribute) for attribute in attributes},
        "summary": first_paragraph(kind.__doc__),
        "presets": {name: dict(settings) for name, settings in kind.presets.items()},
        "settings": kind.describe(),
    }


def _print_names(command: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *notes: str | Table) -> None:
    if rows:
        show([Table(columns, rows), *notes, f"settings and presets of one: fringe {command} NAME"])


def _print_entry(entry: Mapping[str, Any], notes: Mapping[str, str]) -> None:
    say(f"{entry['name']}: {entry['title']}\n{entry['summary']}")
    names: list[str] = []
    for name, settings in entry["presets"].items():
        values = ", ".join(f"{key}={_text(value)}" for key, value in settings.items())
        names.append(f"{name} ({values})" if 0 < len(values) < 60 else name)  # "fringe presets" shows the longer ones
    lines = [f"  {key}: {value}" for key, value in {**notes, "presets": ", ".join(names)}.items() if value]
    say("\n".join([*lines, ""]))
    rows = [(s["name"], _text(s["default"]), s["expected"], s["help"]) for s in entry["settings"]]
    show([Table(("setting", "default", "takes", "meaning"), rows), ""] if rows else [])


def _text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
