"""What trackers of training runs store of an attribution, and how each of them takes it."""

import importlib
import io
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image

from fringe._files.disk import write_files
from fringe._strings.formats import to_csv
from fringe._strings.tables import Table
from fringe.attribution import Attribution
from fringe.errors import InputError, require_integer
from fringe.page import page_document, render_page
from fringe.plots import png_of


@dataclass(frozen=True)
class Artifacts:
    """What a tracker stores of an attribution.

    Attributes:
        pictures: PNG files by the name of the input.
        pages: HTML pages by the name of the input, each a whole file; only images have them.
        rows: The rows of :meth:`fringe.Attribution.to_dataframe`.
        scalars: The share of inputs whose verdict is ``ok``, and the means of the probability of the explained class
            and of the completeness residual, where they are known.
    """

    pictures: Mapping[str, bytes]
    pages: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    scalars: Mapping[str, float]

    @staticmethod
    def of(result: Attribution, details: Mapping[str, Any] | None = None) -> "Artifacts":
        """Draw the pictures and write the pages.

        Args:
            result: An attribution with context, as :func:`fringe.explain` returns it.
            details: Further facts, which the pages list.

        Returns:
            The artifacts. Names of inputs are made names of files.

        Raises:
            InputError: If the attribution has no context.
        """
        context = result.context
        if context is None:
            hint = "use fringe.explain, or result.with_context(...)"
            raise InputError("the attribution holds no inputs", argument="result", hint=hint)
        names = [re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "input" for name in context.ids]
        while len({*names}) < len(names):
            names = [name if names.count(name) == 1 else f"{name}-{i}" for i, name in enumerate(names)]
        is_shown = context.kind == "image" and context.inputs.dim() == 4 and context.inputs.shape[1] in (1, 3)
        documents = [page_document(result, i, details=details) for i in range(len(names)) if is_shown]
        rows = result.to_records()
        numbers = {"probability": "mean_probability", "completeness_residual": "mean_residual"}
        columns = {title: [row[name] for row in rows] for name, title in numbers.items()}
        scalars = {title: fmean(column) for title, column in columns.items() if all(map(math.isfinite, column))}
        return Artifacts(
            pictures={name: png_of(result[i].plot()) for i, name in enumerate(names)},
            pages=dict(zip(names, map(render_page, documents), strict=False)),
            rows=rows,
            scalars={"share_ok": fmean(row["verdict"] == "ok" for row in rows), **scalars},
        )

    @property
    def images(self) -> dict[str, Image.Image]:
        """The pictures, opened."""
        return {name: Image.open(io.BytesIO(png)).convert("RGB") for name, png in self.pictures.items()}

    def write(self, folder: str | Path) -> Path:
        """Write pictures, pages and ``explanations.csv`` into a folder.

        Args:
            folder: The folder; files of the same names are replaced.

        Returns:
            The folder.

        Raises:
            OSError: If it cannot be written.
        """
        files = {f"{name}.png": png for name, png in self.pictures.items()}
        files |= {f"{name}.html": page.encode() for name, page in self.pages.items()}
        write_files(Path(folder), {**files, "explanations.csv": to_csv(self.rows).encode()})
        return Path(folder)


def log_explanations(result: Attribution, to: Any, *, step: int | None = None, name: str = "explanations") -> None:
    """Log an attribution to a tracker: pictures, pages, a table and numbers.

    Args:
        result: An attribution with context, as :func:`fringe.explain` returns it.
        to: A folder; a ``SummaryWriter`` of TensorBoard; the run that ``mlflow.start_run()`` or ``wandb.init()``
            returns; or a logger of Lightning. Trackers that cannot show pages store them in the folder of their files.
        step: Number of the training step; None if there is none.
        name: What the names of everything begin with.

    Raises:
        InputError: If the attribution has no context, or the tracker is not known.
        OSError: If a file cannot be written.
    """
    if step is not None:
        require_integer("step", step, 0)
    folder = name if step is None else f"{name}/step-{step:08d}"
    logger: Any = to if hasattr(to, "log_metrics") and hasattr(to, "experiment") else None  # of Lightning
    tracker = to if logger is None else logger.experiment
    package = type(tracker).__module__.partition(".")[0]
    is_writer = hasattr(tracker, "add_image") and hasattr(tracker, "add_text")
    if logger is None and not (is_writer or isinstance(to, (str, os.PathLike)) or package in ("mlflow", "wandb")):
        hint = (
            "pass a folder, a SummaryWriter, the run that mlflow.start_run() or wandb.init() returns, or a logger of "
            "Lightning; Artifacts.of(result) has the files for any other"
        )
        raise InputError(f"got {type(to).__name__}, which is no known tracker", argument="to", hint=hint)
    artifacts = Artifacts.of(result, None if step is None else {"training step": step})
    scalars = {f"{name}/{key}": value for key, value in artifacts.scalars.items()}
    if is_writer:
        _log_tensorboard(artifacts, tracker, step, name)
        artifacts.write(Path(getattr(tracker, "log_dir", None) or tracker.logdir) / folder)
    elif package == "wandb":
        data = {**scalars, **_wandb_media(artifacts, name)}
        tracker.log(data, step=step) if logger is None else logger.log_metrics(data, step)
    elif package == "mlflow":
        client = importlib.import_module("mlflow").MlflowClient() if logger is None else tracker
        _log_mlflow(artifacts, client, tracker.info.run_id if logger is None else logger.run_id, step, name, folder)
    elif logger is not None:
        logger.log_metrics(scalars, step)
        artifacts.write(Path(logger.log_dir or logger.save_dir or ".") / folder)
    else:
        artifacts.write(Path(to) / folder)


def _log_tensorboard(artifacts: Artifacts, writer: Any, step: int | None, name: str) -> None:
    for key, image in artifacts.images.items():
        writer.add_image(f"{name}/{key}", np.asarray(image), step, dataformats="HWC")
    for key, value in artifacts.scalars.items():
        writer.add_scalar(f"{name}/{key}", value, step)
    columns = ("id", "class", "name", "probability", "completeness_residual", "verdict")  # few, as they are wide there
    table = Table(columns, [[row[column] for column in columns] for row in artifacts.rows])
    writer.add_text(f"{name}/table", table.markdown(), step)


def _wandb_media(artifacts: Artifacts, name: str) -> dict[str, Any]:
    wandb = importlib.import_module("wandb")
    columns = list(artifacts.rows[0])
    return {
        f"{name}/pictures": [wandb.Image(image, caption=key) for key, image in artifacts.images.items()],
        f"{name}/table": wandb.Table(columns=columns, data=[list(row.values()) for row in artifacts.rows]),
        # as it is: what would be injected, its security policy refuses
        **{f"{name}/pages/{key}": wandb.Html(page, inject=False) for key, page in artifacts.pages.items()},
    }


def _log_mlflow(artifacts: Artifacts, client: Any, run: str, step: int | None, name: str, folder: str) -> None:
    with tempfile.TemporaryDirectory() as files:
        client.log_artifacts(run, artifacts.write(files), folder)
    for key, value in artifacts.scalars.items():
        client.log_metric(run, f"{name}/{key}", value, step=step)
