"""A fixture that puts figures of a square inch in place of those of results, comparisons and reports.

A drawn image takes a second of processor time, a report some. How figures look is asked in tests/plots; a test that
asks whether a command draws them calls ``undo`` first.
"""

import pytest


@pytest.fixture
def small_figures():
    from fringe import plots
    from fringe.attribution import Attribution
    from fringe.bench.cards import _card
    from fringe.bench.report import _build
    from fringe.explanations import _pictures
    from fringe.plots._style import new_figure

    patches: list[tuple[object, str]] = [(Attribution, "plot"), (_pictures, "signed_map"), (_card, "plot_forest")]
    patches += [(plots, name) for name in ("comparison_grid", "contact_sheet")]  # imported where they are called
    patches += [(_build, name) for name in ("plot_agreement", "plot_curves", "plot_forest")]
    with pytest.MonkeyPatch.context() as patch:
        for place, name in patches:
            patch.setattr(place, name, lambda *_, **__: new_figure(1, 1))
        yield patch
