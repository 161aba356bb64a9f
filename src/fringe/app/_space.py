"""The app as a Space of the Hugging Face hub: the files of its repository."""

import importlib.metadata
import json
import pprint
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fringe
from fringe._files.disk import write_files
from fringe.app._spec import AppSpec
from fringe.errors import DISTRIBUTION

_README = """---
title: {title}
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
---

Choose an image, and see which pixels speak for the answer of the network. Made with {distribution} {version}.
"""
_APP = '''"""The app of this Space. GRADIO_SERVER_NAME and GRADIO_SERVER_PORT say where it listens."""

import os

# the proxy before the app is the only one that reaches it, and says that people come by https
os.environ["FORWARDED_ALLOW_IPS"] = "*"

import fringe.app

fringe.app.launch(
    host=os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0"),
    port=int(os.environ.get("GRADIO_SERVER_PORT", "7860")),
    allow_remote=True,
    **{options},
)
'''


def write_space(
    folder: str | Path, *, title: str = "What did the network see?", extras: str | Sequence[str] = (), **options: Any
) -> Path:
    """Write the files of a Space that shows the app: ``README.md``, ``app.py`` and ``requirements.txt``.

    Weights and samples that ``options`` name as files are to be copied into the folder, under the same relative paths.

    Args:
        folder: The folder; files of these names are replaced.
        title: Title of the Space.
        extras: One or several further extras of this library that the models need, such as ``photo`` or ``vision``.
        **options: Fields of :class:`AppSpec`, as for :func:`launch`; the Space chooses the address.

    Returns:
        The folder.

    Raises:
        InputError: If an option is unknown or has an invalid value.
        OSError: If a file cannot be written.
    """
    chosen = AppSpec(**options).model_dump(mode="json", exclude_defaults=True)
    given = {name: value for name, value in chosen.items() if name not in ("host", "port", "allow_remote")}
    given = {"frame_ancestors": ["https://huggingface.co"], **given}
    text = pprint.pformat(given, width=100, indent=4).replace("\n", "\n    ")
    title = json.dumps(title, ensure_ascii=False)
    facts = {"title": title, "distribution": DISTRIBUTION, "version": fringe.__version__}
    parts = dict.fromkeys(("app", *([extras] if isinstance(extras, str) else extras)))
    needed = f"{DISTRIBUTION}[{','.join(parts)}]=={fringe.__version__}\n"
    files = {
        "README.md": _README.format(gradio=importlib.metadata.version("gradio"), **facts),
        "app.py": _APP.replace("{options}", text),
        "requirements.txt": needed,
    }
    write_files(Path(folder), {name: content.encode() for name, content in files.items()})
    return Path(folder)
