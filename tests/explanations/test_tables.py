"""What a comparison prints: which scores are bold, and what its marks mean."""

from fringe._tables import Styled
from fringe.explanations._tables import describe_comparison
from fringe.metrics import get_metric


def entry(method: str, value: float, *, better: bool | None) -> dict[str, object]:
    numbers = {"mean": value, "low": value - 0.1, "high": value + 0.1, "n": 8, "flagged": 0}
    flags: dict[str, int] = {}
    return {
        **numbers,
        **{"method": method, "metric": "road", "summary": "mean", "flags": flags, "better_than_controls": better},
    }


def printed(better: bool | None) -> tuple[list[list[str]], str]:
    """The rows and the legend for a best method that a test does or does not tell from the controls."""
    table = [entry("fringe", 0.5, better=better), entry("ig", 0.4, better=False), entry("edge", 0.3, better=None)]
    cost = {"passes": {"forward": 1}, "images": 8, "seconds": 1.0}
    methods = [{"label": e["method"], "control": e["method"] == "edge", **cost} for e in table]
    rows, legend = describe_comparison({"table": table, "methods": methods}, {"road": get_metric("road")})
    return rows.rows, legend


def test_the_best_is_bold_unless_it_is_marked():
    for better in (True, None):
        score = printed(better)[0][0][1]
        assert isinstance(score, Styled)
        assert (score.style, "‡" in score) == ("bold", False)
    marked = printed(False)[0][0][1]
    assert (marked.style, marked.startswith("0.500‡")) == ("", True)


def test_the_mark_is_explained_where_it_stands():
    legend = printed(False)[1]
    assert "‡: not shown to be better than every control, the maps below the line: such a score tells nothing" in legend
