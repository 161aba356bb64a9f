"""Maps that outlive the run that made them, so that a metric thought of later needs no new ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class StoredMap:
    """An image's map ``values`` (C, H, W), and what a :class:`fringe.experiments.ScoreRecord` says of it whatever the
    metric, by name of the field: target, confidence, status, verdict, diagnostics and the passes that it took;
    ``versions`` are those of the libraries that made it."""

    values: Tensor
    facts: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


def to_bytes(maps: Mapping[str, StoredMap], seal: str) -> bytes:
    """Maps by image digest as a safetensors file, the facts in its header."""
    from safetensors.torch import save

    facts = {image: kept.facts for image, kept in maps.items()}
    versions = {image: kept.versions for image, kept in maps.items()}
    tensors = {image: kept.values.detach().cpu().contiguous() for image, kept in maps.items()}
    return save(tensors, {"facts": json.dumps(facts), "versions": json.dumps(versions), "seal": seal})


def from_bytes(content: bytes) -> dict[str, StoredMap]:
    """The maps of a whole file."""
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")  # the format: length of a JSON header, header, numbers
    about = json.loads(content[8 : 8 + length])["__metadata__"]
    facts, versions = json.loads(about["facts"]), json.loads(about.get("versions", "{}"))
    return {image: StoredMap(v, _facts(facts[image]), versions.get(image, {})) for image, v in load(content).items()}


def _facts(about: Mapping[str, Any]) -> dict[str, Any]:
    """As a row has them: JSON knows no pairs."""
    return {name: list(map(tuple, known)) if name == "diagnostics" else known for name, known in about.items()}
