"""The pictures of a run: what stands in them, as it was computed, and readable where single pixels are not."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from safetensors.torch import load_file

from fringe.explanations import explain_images
from fringe.explanations._pictures import contact_cell
from fringe.models import Preprocessing

FILES = ["overlay.png", "profile.png", "signed.png", "trajectory.png"]


@pytest.fixture
def drawn(monkeypatch):
    """Figures by the name of the file that they are written to."""
    figures, write = {}, Figure.savefig

    def remember(figure, path, **options):
        figures[getattr(path, "name", "")] = figure
        write(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    return figures


def words(figure):
    return " ".join(" ".join(text.get_text().split()) for text in figure.findobj(Text) if text.get_text())


def opposite_neighbours(plane):
    """Share of strong neighbours (the upper tenth of |map|) whose signs are opposite."""
    strong = np.abs(plane) >= np.quantile(np.abs(plane), 0.9)
    pairs = [
        (plane[:-1], plane[1:], strong[:-1] & strong[1:]),
        (plane[:, :-1], plane[:, 1:], strong[:, :-1] & strong[:, 1:]),
    ]
    return sum((b & (x * y < 0)).sum() for x, y, b in pairs) / sum(b.sum() for _, _, b in pairs)


def test_pictures_name_class_and_method_and_say_what_to_read(tmp_path, drawn):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"digit_{number}" for number in range(10)))
    list(explain_images(["embedded:digits:3"], tmp_path / "out", classes=str(names)))
    assert {path.name for path in (tmp_path / "out" / "digits-0003").glob("*.png")} == set(FILES)
    for name in FILES:
        assert "digit 3: " in words(drawn[name])
    for name in ("overlay.png", "signed.png", "trajectory.png"):
        assert "(FRInGe)" in words(drawn[name])
    assert "Bright: evidence for or against 'digit 3'." in words(drawn["overlay.png"])
    for name in ("signed.png", "trajectory.png"):
        assert "Red speaks for 'digit 3', blue against it." in words(drawn[name])
    assert any("digits · FRInGe" in words(figure) for figure in drawn.values())  # the contact sheet
    assert "averaged" not in "".join(words(drawn[name]) for name in FILES)  # 32 x 32 pixels


def test_signs_of_a_real_photograph_can_be_read_and_the_file_holds_every_pixel(tmp_path, drawn, shared):
    (result,) = explain_images(
        [str(shared / "images" / "imagenet" / "0022_bald_eagle.jpg")],
        tmp_path,
        model=f"{shared}/models/zoo.py:mobilenet_v1_025",
        trust_code=True,
        preprocessing="resize=146,crop=128,mean=0.5,std=0.5",
        classes=str(shared / "images" / "imagenet_classes.txt"),
        method="fringe",
        preset="fast",
    )
    plane = load_file(result.folder / "attribution.safetensors")["values"].sum(0).numpy()
    shown = np.asarray(drawn["signed.png"].axes[0].images[0].get_array())
    assert opposite_neighbours(plane) > 0.25
    assert opposite_neighbours(shown) < 0.03
    assert shown.sum() == pytest.approx(plane.sum(), rel=0.1)
    assert "averaged over about 3 × 3 pixels for display" in words(drawn["signed.png"])


def test_pictures_name_the_method_and_not_only_the_package_that_computes_it(tmp_path, drawn):
    pytest.importorskip("captum")
    list(explain_images(["embedded:digits:3"], tmp_path, method="captum:occlusion"))
    assert "(Occlusion)" in words(drawn["overlay.png"])
    assert "(Occlusion)" in words(drawn["signed.png"])


def test_a_large_image_is_made_smaller_for_the_sheet_without_losing_a_pixel_of_its_map():
    """1100 x 801 pixels become 550 x 401 squares; every second pixel would leave out this one."""
    values, image = torch.zeros(3, 1100, 801), torch.zeros(3, 1100, 801)
    values[:, 701, 603], image[:, 1099, 800] = 1.0, 1.0
    best = {"class": 3, "name": None, "probability": 0.5}
    record = {"id": "a", "prediction": best, "target": {"class": 1, "name": "one"}, "verdict": "ok"}
    cell = contact_cell({"input": image, "values": values}, record, Preprocessing.parse("unit"))
    assert cell.image.shape == (550, 401, 3)
    assert np.argwhere(cell.values.sum(0)).tolist() == [[350, 301]]
    assert cell.image[549, 400].tolist() == [0.5] * 3  # the last square holds two pixels of the image
    assert cell.pixel == 2
    assert cell.region is None
    assert cell.prediction.text() == "class 3 · 50.0%, explained: one"
