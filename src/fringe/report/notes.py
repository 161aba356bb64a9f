"""The sentences below a table: what its numbers and marks mean, and how often a score came with a flag."""

from collections import Counter

from fringe.experiments import LEVEL, RESAMPLES
from fringe.report.tables import Table, TableCell

INCOMPLETE = "†"


def incomplete(cell: TableCell) -> bool:
    """Whether images of a cell were not computed."""
    return cell.missing > 0


def count(cell: TableCell) -> str:
    """``n=64``, or ``n=60 of 64`` where images have no score."""
    return f"n={cell.n}" if cell.n == cell.wanted else f"n={cell.n} of {cell.wanted}"


def reading(table: Table) -> list[str]:
    """How to read the numbers and marks of a table."""
    means = [column.title for column in table.columns if column.summary == "mean"]
    medians = [column.title for column in table.columns if column.summary == "median"]
    interval = f"mean ± half the width of the {LEVEL:.0%} bootstrap interval over images"
    interval = f"{interval} ({RESAMPLES} resamples, seed {table.seed})"
    spread = "median ± half-IQR, (Q3 − Q1) / 2"
    if means and medians:
        lines = [f"Values: {interval}; for {_listed(medians)}: {spread}."]
    else:
        lines = [f"Values: {interval if means else spread}."]
    lines.append("n: images with a score. ↑: higher is better, ↓: lower is better.")
    lines.append(
        "Bold and underlined: the best method of a metric. Bold: its interval overlaps the best one's, which describes "
        "and tests nothing. Controls know nothing of the model and do not compete."
    )
    if table.comparisons:
        lines.append(
            f"*, **, ***: differs from {table.reference} on the same images with p < .05, .01, .001 (sign-flip test of "
            f"the paired differences, adjusted after Holm for the {table.comparisons} comparisons of this table)."
        )
    if any(incomplete(cell) for row in table.rows for cell in row.cells):
        lines.append(f"{INCOMPLETE}: incomplete, images of this cell were not computed.")
    return lines


def flag_lines(table: Table) -> list[str]:
    """Which flags are up how often: one line for the methods' scores and one for the controls'."""
    lines: list[str] = []
    for who, controls in (("methods", False), ("controls", True)):
        found = table.flags(controls=controls)
        if found:
            lines.append(f"Flagged scores of the {who}: {_counted(found)}.")
    return lines or ["No score is flagged."]


def _counted(found: Counter[tuple[str, str]]) -> str:
    """``zero_map 8 (Sparseness 4, Infidelity 4)``."""
    by_flag: dict[str, list[tuple[str, int]]] = {}
    for (flag, title), number in found.items():
        by_flag.setdefault(flag, []).append((title, number))
    parts = [
        f"{flag} {sum(n for _, n in metrics)} ({', '.join(f'{title} {n}' for title, n in metrics)})"
        for flag, metrics in by_flag.items()
    ]
    return "; ".join(parts)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
