"""What all tests share: one thread unless asked, reproducible property tests, and where real models and images lie."""

import os
import warnings
from pathlib import Path

import hypothesis
import pytest
import torch

from browser import browser, visit  # noqa: F401 - fixtures
from small_figures import small_figures  # noqa: F401 - a fixture

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("FRINGE_SHARED", REPOSITORY.parent / "shared"))

#: Files whose tests share what takes many seconds to make: with ``--dist loadgroup`` one process runs each group.
TOGETHER = (
    *("app/test_app_browser.py", "app/test_server.py", "page/test_page_browser.py", "text/test_text_classifier.py"),
    *("explanations/test_explanations.py", "explanations/test_notebook.py"),
    *("bench/experiments/test_ray.py", "bench/report/test_page.py", "detection/test_detector_families.py"),
    *("test_docs.py", "test_gpu_benchmark.py", "test_how_to.py"),
)

hypothesis.settings.register_profile("fringe", deadline=None, derandomize=True, database=None, print_blob=False)
hypothesis.settings.load_profile("fringe")


def pytest_configure(config):
    if "OMP_NUM_THREADS" not in os.environ:  # `make portable` asks for two
        torch.set_num_threads(1)


def pytest_runtest_setup(item):
    """Undo what a test would have from those before it in its process, which are others each time: the random numbers
    that they drew, and warnings of what they left open, which the collector gives amid a test that takes any for an
    error."""
    torch.default_generator.manual_seed(0)
    warnings.filterwarnings("ignore", category=ResourceWarning)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    groups = {REPOSITORY / "tests" / name: name.partition("/")[0] for name in TOGETHER}
    for item in items:
        if item.path in groups:
            item.add_marker(pytest.mark.xdist_group(groups[item.path]))
    if SHARED.is_dir():
        return
    skip = pytest.mark.skip(reason=f"no real models and images at FRINGE_SHARED={SHARED}")
    for item in items:
        if "shared" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish(session):
    """Say so where pytest-xdist cannot make groups: version 3.8 cannot with pytest 9.2, and nothing tells."""
    if getattr(session.config.option, "loadgroup", False):
        assert all("@" in item.nodeid for item in session.items if item.get_closest_marker("xdist_group"))


@pytest.fixture(scope="session")
def shared():
    """The folder of real models and images; a test that asks for it is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no real models and images at FRINGE_SHARED={SHARED}")
    return SHARED
