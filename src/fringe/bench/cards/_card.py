"""The page of a card: measurements summarised with their intervals, in HTML, Markdown and JSON."""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fringe._files.disk import write_files
from fringe._strings.formats import number, plain, to_json
from fringe._strings.names import Reference
from fringe._strings.report import Image, Report, Section, html_page, markdown_report, versions_chapter
from fringe._strings.tables import ARROW, Cell, Row, Style, Table
from fringe.attribution import setting_title
from fringe.bench.cards._measure import BLIND, COMPARED, PATH, Card, Measurement, by_text
from fringe.bench.experiments import versions
from fringe.evaluation import ControlTest, Difference, Estimate, Score, ScoreTable, holm, paired, too_few
from fringe.metrics import METRICS, Aggregate, Direction, Metric
from fringe.plots import Contrast, ForestPanel, plot_forest, png_of


@dataclass(frozen=True)
class Line:
    """Summary of one measurement under a metric: mean or median score of the method and of each control, by name,
    with their intervals; and the ``test`` against the controls, None where the method need not beat them."""

    measurement: Measurement
    kind: type[Metric]
    score: Estimate
    controls: Mapping[str, Estimate]
    test: ControlTest | None = None

    @property
    def control(self) -> str:
        """The control that is the hardest to beat, with its score; empty without a test."""
        name = "" if self.test is None else self.test.control.partition(":")[0]
        return name and f"{name} ({number(self.controls[name].value)})"

    @property
    def leads(self) -> bool:
        """Whether the mean difference to that control is in favour of the method; False without a test."""
        difference = math.nan if self.test is None else self.test.difference.value
        return difference > 0 if self.kind.direction == "higher" else difference < 0

    @property
    def title(self) -> str:
        """The metric's title, with the preset."""
        preset = Reference.parse(self.measurement.metric).rest
        return f"{self.kind.title} ({preset.replace('_', ' ')})" if preset else self.kind.title


def summarise_card(card: Card) -> list[Line]:
    """Summarise the measurements by estimates, and by the tests against controls that reports make, which are adjusted
    for the scores of a part."""
    kinds = [METRICS[str(one.settings["metric"])] for one in card.measurements]
    cells, names = dict[tuple[str, str], Score](), {name: name for name in BLIND}
    for part in dict.fromkeys(one.part for one in card.measurements):
        chosen = {f"{i}": one for i, one in enumerate(card.measurements) if one.part == part}
        # a control of the map of the method is one of it alone
        names |= {name: f"{name}:map" for one in chosen.values() for name in one.controls if name not in BLIND}
        scores = {("map", i): one.scores for i, one in chosen.items()}
        scores |= {(names[name], i): column for i, one in chosen.items() for name, column in one.controls.items()}
        words: dict[str, tuple[Direction, Aggregate]] = {
            i: (kinds[int(i)].direction, kinds[int(i)].aggregate) for i in chosen
        }
        groups = {i: {"clusters": one.clusters or None} for i, one in chosen.items()}
        controls = dict.fromkeys(name for name, _ in scores if name != "map") if part in COMPARED else ()
        cells |= ScoreTable(scores, controls, words, card.seed, groups).cells
    return [
        Line(
            one,
            kind,
            *(known.estimate, {name: cells[names[name], i].estimate for name in one.controls}),
            known.test,
        )
        for i, one, kind in zip(map(str, range(len(kinds))), card.measurements, kinds, strict=True)
        for known in [cells["map", i]]
    ]


def failures(card: Card, lines: Sequence[Line]) -> tuple[str, ...]:
    """List failed checks and gates, missing scores, and metrics where a control scores as well, as sentences."""
    said = [f"The {clause}." for clause in card.failures()]
    for scene, gates in card.gates.items():
        broken = [f"{gate.name} is {number(gate.value)}" for gate in gates if not gate.holds]
        said += [f"{scene}: {'; '.join(broken)}, so its numbers prove nothing."] if broken else []
    for line in lines:
        where = f"{line.measurement.subject}, {line.title}"
        missing = len(line.measurement.scores) - line.score.n
        if missing and line.measurement.part != PATH:
            said.append(f"{where}: {missing} of {len(line.measurement.scores)} maps have no score.")
        if line.test is not None and line.test.better is False:
            said.append(f"{where}: {number(line.score.value)}, not shown to be better than the control {line.control}.")
        elif line.test is not None and line.test.better is None and not line.leads:  # others: see verdict
            few = f"{line.test.difference.n} examples are too few for a test"
            said.append(f"{where}: {number(line.score.value)}, and the control {line.control} is not worse; {few}.")
    doubtful = {word: count for word, count in card.verdicts.items() if word not in ("ok", "unchecked")}
    said += [f"{count} of {sum(card.verdicts.values())} maps of digits are {word}." for word, count in doubtful.items()]
    tests = [line.test for line in lines if line.test is not None]
    if not tests:
        none = "No score was compared with a control."
    elif all(test.better for test in tests):
        none = "No failure was seen: every score is better than every control."
    else:
        none = "No failure was seen, but there are too few examples to show it."
    return tuple(said) or (none,)


def verdict(lines: Sequence[Line]) -> str:
    """Count the scores that are better than every control, those that are not shown to be, and those that have too few
    examples to show it; empty where none was compared."""
    tests = [line.test for line in lines if line.test is not None]
    better = Counter(test.better for test in tests)
    lost = f"; {better[False]} are not shown to be" if better[False] else ""
    undecided = f"; {better[None]} have too few examples to show it" if better[None] else ""
    return f"{better[True]} of {len(tests)} scores are better than every control{lost}{undecided}." if tests else ""


def _not_measured(card: Card) -> tuple[str, ...]:
    """List what was not measured, and why, as sentences."""
    return tuple(f"{what}: {why.rstrip('.')}." for what, why in by_text(card.skipped.items()))


def describe_card(card: Card) -> list[str | Table]:
    """Describe a card in text: scores of the method and of controls, checks, cost, and failures."""
    lines = summarise_card(card)
    parts = [line.measurement.part for line in lines]
    rows: list[Row] = [(*_score(line), line.measurement.chance, line.score.n, line.control) for line in lines]
    rules = [index for index, (part, following) in enumerate(pairwise(parts)) if part != following]
    counts = " + ".join(f"{count:.0f} {name}" for name, count in card.passes.items() if count)
    states = Counter(check.state for check in card.checks)
    not_applicable = states.pop("does not apply", 0)
    others = f"; {not_applicable} more do not apply" if not_applicable else ""
    text = [said] if (said := verdict(lines)) else []
    text += [f"checks: {states['holds']} of {states.total()} hold{others}"] if card.checks else []
    text.append(f"cost of a map: {counts or ('no passes' if card.passes else 'not measured')}")
    text += ["where it fails:", *(f"  {sentence}" for sentence in failures(card, lines))]
    missing = [f"  {sentence}" for sentence in _not_measured(card)]
    table = Table(("on", "metric", "score", "chance", "n", "hardest control"), rows, rules=rules)
    return [table, *text, *(["not measured:"] if missing else []), *missing]


def _score(line: Line) -> Row:
    """The first cells of a measurement: on what, under which metric, and the score with its interval."""
    styles: Mapping[bool | None, Style] = {True: "checked", False: "fair", None: ""}
    median = ", median" * (line.kind.aggregate == "median")
    metric = f"{line.title}{median} {ARROW[line.kind.direction]}".strip()
    score = Cell(line.score.value, ends=(line.score.low, line.score.high), style=styles[line.test and line.test.better])
    return line.measurement.subject, metric, score


def card_report(card: Card, command: str = "") -> Report:
    """Build the page of a card, independent of the output format; ``command`` is the one that made the card."""
    lines = summarise_card(card)
    names = {"forward": "forward passes", "vjp": "backward passes (VJP)", "jvp": "forward-mode passes (JVP)"}
    costs: list[Row] = [(name, float(card.passes[key])) for key, name in names.items() if key in card.passes]
    costs += [("seconds on this machine", card.seconds)] if math.isfinite(card.seconds) else []
    short = (
        Section("Where it fails", (said,) if (said := verdict(lines)) else (), lines=failures(card, lines)),
        *([Section("What it is", (card.summary,))] if card.summary else []),
        *([Section("What it assumes", lines=card.assumptions)] if card.assumptions else []),
        Section(
            "What a map costs", table=Table(("what", "per image"), costs or [("not measured", None)], "Cost of a map")
        ),
        *([Section("What was not measured", lines=_not_measured(card))] if card.skipped else []),
    )
    parts = list(dict.fromkeys(line.measurement.part for line in lines))
    figure = _forest(card, lines)
    sections = [_scores(part, [line for line in lines if line.measurement.part == part]) for part in parts]
    if figure is not None:
        sections.append(Section("The method minus each control", images=(figure,)))
    failed, tried = len(card.failed_checks()), sum(check.state != "does not apply" for check in card.checks)
    setting = setting_title(card.settings) if card.settings else card.label
    header = {"method": card.label, "setting": setting, "source": card.source or "not stated", "made": card.made}
    header |= {"checks": f"{failed} of {tried} fail"} if card.checks else {}
    settings = ", ".join(f"{name}={value}" for name, value in card.settings.items() if name != "method")
    reading = (
        "Numbers are means, or medians where the column says so, with the 95% bootstrap interval over examples (those "
        "that share pixels are drawn together); n is the number of examples with a score. The maps edge, random and "
        "uniform know nothing of the model: a score says little where it does not beat them on the same examples. A "
        "method beats its controls with p < .05: the greatest p of the sign-flip test against each of them, adjusted "
        "after Holm for the scores of a part.",
        f"Examples are drawn by the seed {card.seed}. Settings of the method: {settings or 'none'}.",
    )
    again = "The command, which gives the same numbers on the same machine:" if command else ""
    chapters = {"In short": short, "Measurements": tuple(sections), "Checks": tuple(_checks(card))}
    return Report(
        f"Card of {card.label}",
        header,
        (
            *(Section(title, sections=part) for title, part in chapters.items() if part),
            Section("Protocol", reading),
            versions_chapter(versions(), again, (command,) if command else ()),
        ),
    )


def write_card(card: Card, folder: str | Path, command: str = "") -> tuple[Path, ...]:
    """Write a card as one HTML page, as Markdown with its figure, and as JSON.

    Args:
        card: The measurements.
        folder: Output folder; created if it does not exist.
        command: The command that made them.

    Returns:
        The files, the page first.

    Raises:
        InputError: If they cannot be written.
    """
    report = card_report(card, command)
    content = {
        "card.html": html_page(report).encode(),
        "card.md": markdown_report(report).encode(),
        "card.json": to_json(plain({"command": command, **dataclasses.asdict(card)})).encode(),
        **{f"figures/{image.name}.png": image.png for image in report.images},
    }
    return write_files(Path(folder), content)


def _scores(part: str, lines: Sequence[Line]) -> Section:
    names = list(dict.fromkeys(name for line in lines for name in line.controls))
    has_chance = any(math.isfinite(line.measurement.chance) for line in lines)
    is_compared = any(line.test is not None for line in lines)
    columns = ("on", "metric", "score", "n", *names, *["chance"] * has_chance, *["beats controls"] * is_compared)
    rows: list[Row] = [
        (
            *_score(line),
            line.score.n,
            *(line.controls[name].value if name in line.controls else None for name in names),
            *[line.measurement.chance] * has_chance,
            *[line.test and line.test.better] * is_compared,
        )
        for line in lines
    ]
    tests = [line.test for line in lines if line.test is not None]
    few = too_few(max((test.difference.signs for test in tests), default=0), len(tests))
    return Section(part, table=Table(columns, rows, part, notes=few))


def _checks(card: Card) -> list[Section]:
    sections: list[Section] = []
    if card.checks:
        rows = [
            (check.name.replace("_", " "), check.state, check.detail.removeprefix(f"{check.state}: "))
            for check in card.checks
        ]
        text = "Each check is a theorem or a part of the contract of methods, on small built-in networks."
        table = Table(("check", "result", "what was seen"), rows, "Checks")
        sections.append(Section("Theorems and contract", (text,), table))
    if any(card.gates.values()):
        rows = [
            (scene, gate.name, gate.value, gate.bounds("≥", "≤"), "holds" if gate.holds else "FAILS")
            for scene, gates in card.gates.items()
            for gate in gates
        ]
        text = "A scene knows its answer only if its network meets these conditions."
        table = Table(("scene", "condition", "measured", "required", "result"), rows, "Gates")
        sections.append(Section("Conditions of the scenes", (text,), table))
    return sections


def _forest(card: Card, lines: Sequence[Line]) -> Image | None:
    """Plot paired differences from every control: mass inside for the scenes, and every intervention."""
    drawn = [line for line in lines if line.kind.direction != "none"]
    parts = ("Interventions", "Scores")
    chosen = [line for line in drawn if line.measurement.metric == "mass_inside" or line.measurement.part in parts]
    pairs = [(line, name) for line in chosen for name in line.measurement.controls]
    differences = [_difference(line, name, card.seed) for line, name in pairs]
    adjusted = holm([one.p for one in differences])
    panels: list[ForestPanel] = []
    for line in chosen:
        of, rows = line.measurement, zip(pairs, differences, adjusted, strict=True)
        contrasts = tuple(
            Contrast(name, one.value, one.low, one.high, p)
            for (other, name), one, p in rows
            if other is line and one.n > 1 and math.isfinite(one.value)
        )
        if contrasts:
            title = of.subject if of.part == "Localisation" else line.title
            panels.append(ForestPanel(title, contrasts, line.kind.direction, line.kind.unit))
    if not panels:
        return None
    caption = (
        f"{card.label} minus each control on the same examples, with the 95% bootstrap interval; the side on which "
        f"the method is better is shaded; p is adjusted for all {len(pairs)} comparisons. "
        "Scenes: mass inside the truth."
    )
    figure = plot_forest(panels, reference=card.label, title=f"{card.label} against its controls")
    return Image("controls", caption, png_of(figure))


def _difference(line: Line, control: str, seed: int) -> Difference:
    """Score of the method minus that of a control, on the same examples."""
    one, summary = line.measurement, line.kind.aggregate
    return paired(one.scores, one.controls[control], seed=seed, summary=summary, clusters=one.clusters or None)
