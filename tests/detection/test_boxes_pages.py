"""Boxes on pages, in runs of the command line, and in a browser."""

import json
import re

import numpy as np
import pytest
import torch
from detection_toys import NAMES, Grid, explained
from matplotlib.text import Text
from PIL import Image

import fringe
from fringe.explanations import ExplainSpec, explain_images
from fringe.page import page_document, render_page


@pytest.fixture(scope="module")
def result():
    return explained(boxes=3, method="fringe", telemetry=5)


def test_one_page_holds_all_boxes_of_a_photograph(result, tmp_path):
    text = fringe.write_page(result, tmp_path / "boxes.html", row=1).read_text(encoding="utf-8")
    documents = [json.loads(found) for found in re.findall(r'id="data">(.*?)</script>', text, re.S)]
    assert [one["id"] for one in documents] == ["image-0#2", "image-0#1", "image-0#3"]
    assert text.count("<template>") == 2
    links = [(box["link"], box["here"]) for box in documents[0]["boxes"]]
    assert links == [("#box-2", False), ("#box-1", True), ("#box-3", False)]
    sides = [box["sides"] for box in documents[2]["boxes"]]
    np.testing.assert_allclose(sides, result.context.boxes.tolist(), atol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["boxes.html"]


def test_a_page_says_what_becomes_of_the_box(result):
    document = page_document(result, 0)
    seen = float(result.diagnostics["box_seen"][0])
    assert "overlaps by 100% with this one" in document["box_words"]
    words = "a place" if seen >= 0.5 else "no place"
    assert f"{words} of the network still finds the object there" in document["box_words"]
    assert "in this box?" in render_page(document)
    boxes = document["snapshots"][-1]["box"]
    np.testing.assert_allclose(boxes, result.trajectory[0].boxes[-1].tolist(), atol=1e-4)


def test_a_link_of_a_box_leads_nowhere_else(result):
    document = page_document(result, 0)
    document["boxes"][0]["link"] = "javascript:alert(1)"
    with pytest.raises(fringe.InputError, match="link"):
        render_page(document)


@pytest.mark.parametrize("view", ["overlay", "signed"])
def test_the_box_is_drawn_in_pixels_of_the_input(result, view):
    figure = result[0].plot(view)
    lines = [line for axes in figure.axes for part in axes.collections for line in part.get_paths()]
    left, top, right, bottom = (side - 0.5 for side in result.context.boxes[0].tolist())
    corners = {(left, top), (right, top), (right, bottom), (left, bottom)}
    assert any({tuple(point) for point in line.vertices.tolist()} == corners for line in lines)
    assert any("the explained box" in text.get_text() for text in figure.findobj(Text))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Explains two photographs with a detector in a file of the user."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        Image.fromarray(generator.integers(0, 256, (96, 128, 3)).astype(np.uint8)).save(f"{name}.png")
    net = Grid().float()
    torch.save(net.state_dict(), "net.pt")

    def go(**options):
        from fringe.models import LoadedModel, Preprocessing, state_digest

        detector = fringe.Detector(net, read="yolo")
        loaded = LoadedModel(
            module=detector,
            spec="net.py:make",
            architecture="grid",
            digest=state_digest(detector),
            preprocessing=Preprocessing.parse("resize=48x64"),
            class_names=tuple(NAMES),
        )
        monkeypatch.setattr("fringe.explanations._base.load_model", lambda *args, **kwargs: loaded)
        spec = ExplainSpec(model="net.py:make", method="ig", figures=False, **options)
        return list(explain_images(["a.png", "b.png"], "out", spec))

    return go


def test_a_run_has_a_result_for_each_box_and_goes_on(run):
    results = run(boxes="2")
    assert [one.record["id"] for one in results] == ["a-1", "a-2", "b-1", "b-2"]
    assert all(not one.reused for one in results)
    for one in results:
        np.testing.assert_allclose(np.divide(one.record["box"], 2), one.record["box_on_input"], atol=1e-4)
    assert all(one.reused for one in run(boxes="2"))
    with pytest.raises(fringe.InputError, match="holds results of other settings"):
        run(boxes="3")


def test_boxes_of_a_run_are_those_of_a_call(run):
    first = run(boxes="1")[0]
    x = np.asarray(Image.open("a.png"))
    detector = fringe.Detector(Grid().float(), read="yolo")
    alone = fringe.explain(detector, x, boxes=1, method="ig", preprocessing="resize=48x64", classes=NAMES)
    torch.testing.assert_close(first.load()["values"], alone.values[0])
    np.testing.assert_allclose(first.record["box"], alone.context.boxes[0].tolist(), atol=1e-3)


def test_a_photograph_without_such_a_box_is_a_failure_with_its_reason(run):
    results = run(boxes="500,500,510,510")
    assert [type(one).__name__ for one in results] == ["Failure", "Failure"]
    assert all("no prediction overlaps with" in one.reason for one in results)


@pytest.mark.thorough
def test_a_click_in_a_browser_chooses_a_box(result, tmp_path, browser):
    page, faults = browser.new_page(), []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(fringe.write_page(result, tmp_path / "boxes.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    for k in (2, 3, 1):
        page.locator(f"nav.classes a[href='#box-{k}']").click()
        page.wait_for_function("k => document.querySelector('.lead em').textContent === `image-0#${k}`", arg=k)
        page.wait_for_selector("body[data-ready]")
        assert page.locator("nav.classes b").count() == 1
        document = page_document(result, k - 1)
        assert page.locator("#sentence").inner_text() == document["classes"][0]["sentence"]
        page.keyboard.press("ArrowLeft")
        assert f"Step {document['snapshots'][-2]['step']} of" in page.locator("#status").inner_text()
    assert faults == []
    page.close()
