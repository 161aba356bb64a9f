"""The numbers of cards, frozen: of methods that are verified, with and without reference images, and of a run.

``python tests/contract/test_golden_cards.py`` writes the file anew, as that of the other outputs is.
"""

import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from golden_runs import as_json, benchmarked
from test_golden_outputs import changed, differences, shortened

from fringe import IntegratedGradients
from fringe._strings.formats import plain
from fringe.bench.cards import card_of_run, verify

NUMBERS = Path(__file__).parent / "golden_cards.json"

CARDS = {
    "ig": lambda: verify(IntegratedGradients(steps=5), n=9, seed=1, scenes=("difull", "patch_and"), checks=False),
    "expected_gradients": lambda: verify("expected_gradients", n=2, scenes=("colour_counter",), checks=False),
    "run": lambda: card_of_run(benchmarked(), "ig"),
}
#: What depends on the machine or the day.
CHANGING = ("seconds", "made")


def numbers(name):
    """The scores as what is near, all else as what is exact."""
    card = json.loads(json.dumps(plain(dataclasses.asdict(CARDS[name]()))))
    measurements = {f"{one['subject']}, {one['metric']}": one for one in card.pop("measurements")}
    parts = ("scores", "controls", "chance")
    near = {key: {part: one.pop(part) for part in parts} for key, one in measurements.items()}
    near = {key: one for key, one in near.items() if not key.endswith(":rounding")}  # which is that of the machine
    for one in near.values():
        one["scores"] = dict(enumerate(one["scores"]))
        one["controls"] = {control: dict(enumerate(scores)) for control, scores in one["controls"].items()}
    card = {key: value for key, value in card.items() if key not in CHANGING}
    card["checks"] = {check["name"]: check["passed"] for check in card["checks"]}
    return json.loads(json.dumps({"near": near, "exact": {**card, "measurements": measurements}}))


@cache
def golden():
    return json.loads(NUMBERS.read_text())


@pytest.mark.parametrize("name", ["ig", "run", pytest.param("expected_gradients", marks=pytest.mark.thorough)])
def test_a_card_has_the_numbers_that_it_had(name):
    mine, stored = numbers(name), golden()[name]
    assert [*changed(mine["exact"], stored["exact"]), *differences(mine["near"], stored["near"])] == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    frozen = {name: numbers(name) for name in CARDS}
    frozen = {name: {"near": shortened(said["near"]), "exact": said["exact"]} for name, said in frozen.items()}
    NUMBERS.write_text(as_json(frozen) + "\n")
