"""Maps that outlive the run that made them, so that a metric thought of later needs no new ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class KeptMap:
    """An image's map ``values`` (C, H, W), and what a :class:`fringe.benchmark.ScoreRow` says of it whatever the
    metric, by name of the field: target, confidence, status, verdict, diagnostics and the passes that it took."""

    values: Tensor
    facts: Mapping[str, Any]


def to_bytes(maps: Mapping[str, KeptMap], seal: str) -> bytes:
    """Maps by image digest as a safetensors file, the facts in its header."""
    from safetensors.torch import save

    facts = {image: kept.facts for image, kept in maps.items()}
    tensors = {image: kept.values.detach().cpu().contiguous() for image, kept in maps.items()}
    return save(tensors, {"facts": json.dumps(facts), "seal": seal})


def from_bytes(content: bytes) -> dict[str, KeptMap]:
    """The maps of a whole file."""
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")  # the format: length of a JSON header, header, numbers
    facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
    return {image: KeptMap(values, _facts(facts[image])) for image, values in load(content).items()}


def _facts(about: Mapping[str, Any]) -> dict[str, Any]:
    """As a row has them: JSON knows no pairs."""
    return {name: list(map(tuple, known)) if name == "diagnostics" else known for name, known in about.items()}
