"""What the verdict of a method is worth, in a report of a run with scenes."""

from fringe.experiments import MARGIN, ReliabilityBin, ReliabilityFit, VerdictReliability
from fringe.plots import method_title, png_of
from fringe.report._render import Image, Section, SimpleTable

#: The record beside the report.
FILE = "reliability.json"
_READING = (
    "Maps of scenes in which every path method is right by a theorem, and of networks whose gates fail, do not count. "
    "The intervals (95 %) resample examples that share pixels together, and the networks of a scene."
)


def reliability_sections(one: VerdictReliability, method: str) -> tuple[Section, ...]:
    """Return how many maps are right by verdict, and how probabilities did on scenes that were left out."""
    title = f"What the verdict of {method} is worth"
    skipped = f" {one.skipped} maps without a score, or without anything to explain, do not count." * (one.skipped > 0)
    return (
        Section(title, (one.right, _READING + skipped), simple=verdict_table(one, method)),
        _fit_section(one.reported, "by verdict, residual, end-point KL and tracking error", method, one),
        *(() if one.stable is None else (_fit_section(one.stable, "with the stability, too", method, one),)),
    )


def verdict_table(one: VerdictReliability, method: str) -> SimpleTable:
    """Return the share of right maps by verdict."""
    rows = [
        (share.verdict, _spread(share.right, share.low, share.high), str(share.maps), str(share.clusters))
        for share in one.shares
    ]
    right = sum(count for _, count in one.scenes.values())
    rows.append(("any", f"{right / one.maps:.2f}" if one.maps else "—", str(one.maps), ""))
    head = ("verdict", "share of right maps", "n", "clusters")
    return SimpleTable(f"Right maps of {method} by verdict", head, tuple(rows), frozenset({1, 2, 3}))


def _fit_section(fit: ReliabilityFit, given: str, method: str, one: VerdictReliability) -> Section:
    title = f"Probability that a map is right, {given}"
    judged = fit.judgement
    if judged is None:
        counts = ", ".join(f"{scene} {right} of {maps}" for scene, (maps, right) in one.scenes.items())
        return Section(title, (f"There is no such probability: {fit.faults}. Right maps: {counts or 'none'}.",))
    rows = tuple(_row(scene, judged.scenes[scene]) for scene in judged.scenes)
    head = ("left-out scene", "n", "predicted", "share of right maps", "in order")
    skill = f"{judged.skill:+.3f} [{judged.skill_low:+.3f}, {judged.skill_high:+.3f}]".replace("-", "−")
    text = (
        "A logistic model is fitted to all scenes but one, and predicts that one. It is in order where the prediction "
        f"is at most {MARGIN:g} outside of the interval of the share.",
        f"Gain in the Brier score over the share of right maps in the other scenes: {skill}, {judged.maps} maps.",
        _answer(fit),
    )
    name = f"reliability{'-stability' * (fit is one.stable)}"
    caption = "Predicted probability and share of right maps, of scenes that were left out."
    image = Image(name, caption, png_of(judged.plot(method_title(method))))
    simple = SimpleTable(f"Predictions for scenes that were left out, {given}", head, rows, frozenset({1, 2, 3}))
    return Section(title, text, simple=simple, images=(image,))


def _answer(fit: ReliabilityFit) -> str:
    if fit.holds:
        return (
            f"It holds on scenes that it was not fitted on. {FILE} holds the model; it may be printed with a verdict."
        )
    return f"It does not hold on scenes that it was not fitted on, and may not be printed with a verdict: {fit.faults}."


def _row(scene: str, each: ReliabilityBin) -> tuple[str, ...]:
    share = _spread(each.observed, each.low, each.high)
    return scene, str(each.maps), f"{each.predicted:.2f}", share, "yes" if each.holds else "no"


def _spread(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
