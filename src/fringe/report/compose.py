"""From results to all that a report says."""

from collections.abc import Sequence
from dataclasses import dataclass

from fringe.experiments import Results, Store
from fringe.report.content import Content, Part, Section
from fringe.report.grid import Bench
from fringe.report.problems import problems
from fringe.report.protocol import again, facts, protocol, read_commands, settings, versions
from fringe.report.sections import cost_section, curve_section, difference_section, map_section
from fringe.report.tables import Table


@dataclass(frozen=True)
class Scene:
    """What a report is made of: the results in their ``store``, a table a model, and where maps come from; None for
    no maps."""

    store: Store
    results: Results
    tables: tuple[Table, ...]
    bench: Bench | None


def compose(scene: Scene, commands: Sequence[str] = ()) -> Content:
    """A part a model, one for what went wrong and one for the settings; ``commands`` tell how the run was made."""
    results = scene.results
    models = ", ".join(results.models)
    return Content(
        title=f"Attribution methods on {models}",
        facts=facts(results),
        protocol=protocol(results),
        parts=(
            *(_model(scene, table, place) for place, table in enumerate(scene.tables)),
            problems(results, scene.tables, scene.store),
            settings(results),
        ),
        versions=versions(results),
        again=again(results),
        commands=(*commands, *read_commands(results, scene.store.root.name)),
    )


def _model(scene: Scene, table: Table, place: int) -> Part:
    prefix = f"{place + 1}-" if len(scene.tables) > 1 else ""
    return Part(
        table.model,
        (
            Section("Scores", table=table),
            difference_section(table, prefix),
            curve_section(scene.results, table, prefix),
            map_section(scene.results, table, scene.bench, prefix),
            cost_section(scene.results, table),
        ),
    )
