"""A real notebook, executed from its first cell to its last, with the outputs that a reader sees."""

import os
import re

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytestmark = pytest.mark.thorough

CELLS = [
    "import fringe\n"
    'result = fringe.explain("embedded:digits", "embedded:digits:3", method="fringe:fast", progress=True)\n'
    "result",
    'result.plot("path")',
    'fringe.compare("embedded:digits", "embedded:digits:0:2", ["fringe:fast", "ig"], ["sparseness"])',
    "print(sorted(n for n in get_ipython().complete('result.')[1] if '._' in n))",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    folder = tmp_path_factory.mktemp("notebook")
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def data(cell, kind):
    """The outputs of a cell in one format."""
    return [output["data"][kind] for output in cell if kind in output.get("data", {})]


def test_three_lines_lead_from_nothing_to_a_picture(outputs):
    html = "".join(data(outputs[0], "text/html"))
    assert "data:image/png;base64," in html
    assert "digits-0003" in html
    assert "Attribution" in data(outputs[0], "text/plain")[-1]


def test_progress_is_a_bar_that_ends_full_and_stays_in_the_notebook(outputs):
    bar = "".join(output["text"] for output in outputs[0] if output.output_type == "stream")
    assert re.search(r"100%\|#+\| (\d+)/\1 \[", bar.rpartition("\r")[2])
    assert "Warning" not in bar


def test_a_figure_is_shown_although_pyplot_was_never_imported(outputs):
    assert data(outputs[1], "image/png")


def test_a_comparison_is_a_table_and_a_picture(outputs):
    (html,) = data(outputs[2], "text/html")
    assert "<table>" in html
    assert "data:image/png;base64," in html


def test_tab_completion_shows_public_names_alone(outputs):
    assert outputs[3][0]["text"].strip() == "[]"
