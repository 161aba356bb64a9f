"""Fixtures that put figures of a square inch in place of those of results, comparisons and reports.

A drawn image takes a second of processor time, a report some. How figures look is asked in tests/plots, and that
commands write them in tests/cli; a test here that asks for one itself calls ``undo`` first.
"""

import pytest


def _replace(patch: pytest.MonkeyPatch) -> None:
    from fringe import plots
    from fringe.attribution import Attribution
    from fringe.bench.cards import _card
    from fringe.bench.report import _build
    from fringe.explanations import _pictures
    from fringe.plots._style import new_figure

    def small(*_, **__):
        return new_figure(1, 1)

    patch.setattr(Attribution, "plot", small)
    patch.setattr(_pictures, "signed_map", small)
    for name in ("comparison_grid", "contact_sheet"):  # imported where they are called
        patch.setattr(plots, name, small)
    for name in ("plot_agreement", "plot_curves", "plot_forest"):
        patch.setattr(_build, name, small)
    patch.setattr(_card, "plot_forest", small)


@pytest.fixture
def small_figures():
    """For one test."""
    with pytest.MonkeyPatch.context() as patch:
        _replace(patch)
        yield patch


@pytest.fixture(scope="module")
def small_figures_of_module():
    """For all tests and fixtures of a module."""
    with pytest.MonkeyPatch.context() as patch:
        _replace(patch)
        yield patch
