"""A benchmark run as a data set of the Hugging Face hub: its scores as tables, and its report as the card."""

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

from fringe._files.disk import write_files
from fringe.bench.experiments import Store, read_results
from fringe.bench.report import write_report
from fringe.errors import install_hint

__all__ = ["push_to_hub", "write_dataset"]

#: What the hub reads at the head of a card: the tables of the data set, and words to find it by.
_HEAD = """---
pretty_name: {title}
tags:
- attribution
- explainability
- fringe-xai
configs:
- config_name: scores
  data_files: scores.csv
  default: true
- config_name: summary
  data_files: summary.csv
---

"""


def write_dataset(run: Store | str | Path, out: str | Path, *, plan: str | None = None, **options: Any) -> Path:
    """Write the folder of a data set: the report of a run, with ``README.md`` as its card.

    It holds scores and names of images, but no image and no map.

    Args:
        run: Folder of the run.
        out: Folder of the data set.
        plan: The plan; needed if the run holds several.
        **options: Further fields of :class:`fringe.bench.report.ReportSpec`, such as ``allow_partial``.

    Returns:
        The folder.

    Raises:
        InputError: If there is no such run or plan, or images of it are not computed yet.
        OSError: If a file cannot be written.
    """
    folder = Path(out)
    name = read_results(run, plan).manifest.name
    chosen: dict[str, Any] = {"grid": False, **options}
    write_report(run, folder, plan=name, **chosen)
    card = (folder / "report.md").read_text(encoding="utf-8")
    title = json.dumps(card.splitlines()[0].removeprefix("# "))  # as a string of YAML
    write_files(folder, {"README.md": (_HEAD.format(title=title) + card).encode()})
    (folder / "report.md").unlink()
    return folder


def push_to_hub(
    run: Store | str | Path,
    repo_id: str,
    *,
    plan: str | None = None,
    private: bool = True,
    **options: Any,
) -> str:
    """Upload a run to the Hugging Face hub as a data set, which is made if it does not exist.

    The access token is that of ``hf auth login``, or of the environment variable ``HF_TOKEN``.

    Args:
        run: Folder of the run.
        repo_id: Name of the data set, ``"OWNER/NAME"``.
        plan: The plan; needed if the run holds several.
        private: Whether a new data set is private.
        **options: Further fields of :class:`fringe.bench.report.ReportSpec`, such as ``allow_partial``.

    Returns:
        The address of the commit.

    Raises:
        ModuleNotFoundError: If ``huggingface_hub`` is not installed.
        InputError: As for :func:`write_dataset`.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        message = f"push_to_hub needs huggingface_hub, which is not installed; {install_hint('hub')}"
        raise ModuleNotFoundError(message, name=error.name) from error
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(run, folder, plan=plan, **options)
        api = hub.HfApi()
        api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo_id, repo_type="dataset", folder_path=folder, commit_message="Upload a benchmark run"
        )
    return str(done.commit_url)
