"""Plans of the shipped digits that are computed in a moment."""

from collections import Counter

from PIL import Image

from fringe import IntegratedGradients
from fringe.bench.experiments._plan import Plan, PlanModel
from fringe.metrics import Insertion, Sparseness
from score_records import records_in

IG = IntegratedGradients(steps=8)


def models(**methods):
    return (PlanModel("digits", "embedded:digits", methods or {"ig": IG}),)


def digits_plan(**changed):
    """IG and the controls on 4 digits, 2 in a unit, by metrics whose order no rounding turns over."""
    known = {
        "name": "digits",
        "data": ("embedded:digits",),
        "models": models(),
        "metrics": {"sparseness": Sparseness(), "insertion": Insertion()},
        "n": 4,
        "shard": 2,
    }
    return Plan(**{**known, **changed})


def small(**changed):
    """IG alone on two images, one in a unit."""
    return digits_plan(**{"controls": False, "n": 2, "shard": 1, **changed})


def done_units(finished):
    """What a run computed: (method, metrics, number of images) of each unit."""
    return Counter((r.task.method, r.task.metrics, len(r.task.images)) for r in finished.log.reports)


def all_rows(store):
    """Every committed row by its name."""
    return {row.key: row for row in records_in(store)}


def picture(path, seed=1, size=(8, 8), kind=None):
    """Draw a grey picture; another seed gives another one."""
    pixels = bytes((seed * 37 + 11 * i + i // 8) % 256 for i in range(size[0] * size[1]))
    Image.frombytes("L", size, pixels).save(path, kind or path.suffix[1:].replace("jpg", "jpeg"))
    return path


def pictures(folder, n=4):
    """A folder of ``n`` pictures, with the classes 0, 1, ..."""
    folder.mkdir()
    for number in range(n):
        picture(folder / f"{number}_picture.png", number)
    return folder


NET = """
import torch
from pathlib import Path

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed({seed})
        self.layer = torch.nn.Linear(192, 4)

    def forward(self, x):
        {before}
        return {answer}

def net():
    return Net()
"""


def net_file(path, answer="self.layer(x.flatten(1))", before="", seed=1, resize="8x8"):
    """Write a network of four classes into a Python file, and give its source."""
    path.write_text(NET.format(answer=answer, before=before, seed=seed))
    return PlanModel("net", f"{path}:net", {"ig": IG}, f"resize={resize},mean=0.5,std=0.5", trust_code=True)
