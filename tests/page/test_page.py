"""The page of an explanation: the numbers that it stores, what it refuses, and what it never contains."""

import base64
import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest
import torch
from page_toys import MALICE, explained, renamed
from PIL import Image, ImageDraw, ImageFont

import fringe
from fringe.attribution import setting_title
from fringe.page import Document, _render, decode_maps, page_document, render_page, write_animation, write_page
from fringe.page._document import encode_maps


def data(page):
    """The document inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def picture(text):
    with Image.open(io.BytesIO(base64.b64decode(text))) as image:
        return np.asarray(image.convert("RGB"), np.float64) / 255


def block_sums(maps, pool):
    """Sums over squares of pixels, one by one; squares at the edge may be cut."""
    height, width = maps.shape[-2:]
    rows, columns = math.ceil(height / pool), math.ceil(width / pool)
    sums = np.empty((*maps.shape[:-2], rows, columns))
    for i in range(rows):
        for j in range(columns):
            sums[..., i, j] = maps[..., i * pool : (i + 1) * pool, j * pool : (j + 1) * pool].sum((-2, -1))
    return sums


def test_the_outline_of_a_focus_lies_over_both_pictures():
    weights = torch.zeros(2, 1, 8, 8)
    weights[0, :, 2:4, 3:6] = 1.0
    result = dataclasses.replace(explained(), region=weights)
    document = page_document(result, 0)
    points = {tuple(map(float, point.split())) for point in re.findall(r"[ML]([^MLZ]+)", document["region"])}
    assert points == {(x, y) for x in (3.5, 4.5, 5.5) for y in (2, 4)} | {(x, y) for x in (3, 6) for y in (2.5, 3.5)}
    page = render_page(document)
    assert page.count(f'<path d="{document["region"]}"/>') == 4
    assert 'viewBox="0 0 8 8"' in page
    assert "The outline marks the focus" in page
    unfocused = page_document(result, 1)
    assert unfocused["region"] == ""
    assert "The outline marks" not in render_page(unfocused)


class TestDocument:
    def test_it_says_what_the_attribution_says(self):
        result = explained()
        document = page_document(result, 1, details={"seed": 3})
        path, one = result.trajectory[1], result.of_class(2)
        assert document["schema"] == "fringe/explanation/1"
        assert (document["id"], document["model"], document["method"]) == ("image 1", "a model", "fringe")
        assert document["title"] == setting_title(result.settings)
        assert document["title"].startswith("FRInGe, ")
        assert (document["width"], document["height"], document["details"]) == (8, 8, {"seed": 3})
        assert [c["index"] for c in document["classes"]] == result.target[1].tolist()
        third = document["classes"][2]
        assert third["score"] == pytest.approx(float(one.score[1]))
        assert third["endpoint_score"] == pytest.approx(float(one.endpoint_score[1]))
        assert third["residual"] == pytest.approx(float(one.completeness_residual[1]))
        assert (third["verdict"], third["advice"]) == (one.verdict[1], one.advice[1])
        assert document["path"]["entropy"] == pytest.approx(path.points["entropy"].tolist())
        assert document["path"]["largest_entropy"] == pytest.approx(math.log(6))
        assert document["path"]["scores"][2] == pytest.approx(path.points["score"][:, 2].tolist())
        assert [s["step"] for s in document["snapshots"]] == path.snapshot_steps.tolist()
        assert document["passes"] == dataclasses.asdict(result.passes)

    def test_probabilities_at_the_points_are_the_models(self):
        result = explained()
        document = page_document(result, 1)
        from page_toys import network

        with torch.no_grad():
            expected = network(1, 6)(result.trajectory[1].snapshots).softmax(-1)
        shown = [label["index"] for label in document["predictions"]]
        stored = torch.tensor([s["probabilities"] for s in document["snapshots"]])
        torch.testing.assert_close(stored, expected[:, shown], rtol=1e-5, atol=1e-7)

    def test_a_class_without_a_name_has_a_number(self):
        labels = {c["index"]: c["label"] for c in page_document(explained(), 0)["classes"]}
        assert {0: "zero", 1: "class 1", 2: "name 2"}.items() >= {k: labels[k] for k in labels if k < 3}.items()

    def test_a_class_has_the_name_of_the_index_and_the_pictures(self):
        document = page_document(renamed(explained(), class_names=("bald_eagle",) * 6))
        assert {label["label"] for label in document["classes"] + document["predictions"]} == {"bald eagle"}

    @pytest.mark.parametrize(("size", "pool"), [((8, 8), 1), ((113, 40), 2), ((224, 224), 2), ((30, 250), 3)])
    def test_maps_are_exact_to_a_level(self, size, pool):
        """Sums over the channels and squares of pixels, within 1/127 of the largest of their class; no sign flips."""
        result = explained(size=size, channels=3, images=1, target="top3")
        document = page_document(result)
        maps = decode_maps(document)
        expected = block_sums(result.trajectory[0].cumulative.double().sum(2).numpy(), pool)
        assert document["maps"]["pool"] == pool
        assert maps.shape == expected.shape
        assert max(maps.shape[2:]) <= 112
        scale = np.abs(expected).max((0, 2, 3))[:, None, None]
        assert (np.abs(maps - expected) <= scale / 127).all()
        assert (maps * expected >= 0).all()
        assert (np.sign(maps) == np.sign(expected))[
            np.abs(expected) > np.broadcast_to(scale, maps.shape) / 60_000
        ].all()
        assert np.abs(maps[-1] - block_sums(result.values[0].double().sum(1).numpy(), pool)).max() <= scale.max() / 120

    def test_images_are_the_points_of_the_path(self):
        result = explained(channels=3)
        document = page_document(result, 0)
        points = result.trajectory[0].snapshots.clamp(0, 1).permute(0, 2, 3, 1).double().numpy()
        for snapshot, point in zip(document["snapshots"], points, strict=True):
            assert np.abs(picture(snapshot["image"]) - point).max() <= 0.5 / 255 + 1e-9  # small images are exact
            change = np.clip(0.5 + document["gain"] * (point - points[0]), 0, 1)
            assert np.abs(picture(snapshot["change"]) - change).max() <= 0.5 / 255 + 1e-9
        assert document["gain"] * np.quantile(np.abs(points[-1] - points[0]), 0.995) == pytest.approx(0.5)

    def test_pixels_are_denormalised(self):
        result = explained(channels=3)
        scaled = renamed(result, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
        pixels = result.context.inputs[0].permute(1, 2, 0).numpy() * [0.5, 0.6, 0.7] + [0.1, 0.2, 0.3]
        shown = picture(page_document(scaled)["snapshots"][0]["image"])
        assert np.abs(shown - pixels.clip(0, 1)).max() < 0.51 / 255

    def test_one_class_without_a_path(self):
        """Smoothgrad records no path: the page shows the input and the map."""
        result = explained(method=fringe.SmoothGrad(samples=3), target="predicted", images=1)
        document = page_document(result)
        assert (document["path"], len(document["snapshots"]), document["snapshots"][0]["change"]) == (None, 1, None)
        expected = result.values[0].double().sum(0).numpy()
        assert np.abs(decode_maps(document)[0, 0] - expected).max() <= np.abs(expected).max() / 127
        assert document["classes"][0]["endpoint_score"] is None

    @pytest.mark.parametrize("method", ["ig", "guided_ig", fringe.AGI(steps=3)])
    def test_a_path_is_shown_only_if_it_leads_to_the_map(self, method):
        """The path of a mean over several paths is only one of them, and several classes may have a path each."""
        path = page_document(explained(method=method, target="predicted", images=1))["path"]
        assert (path is None) == isinstance(method, fringe.AGI)
        several = page_document(explained(method=method, target="top2", images=1))
        assert several["path"] is None
        expected = explained(method=method, target="top2", images=1).values[0].double().sum(1).numpy()
        assert np.abs(decode_maps(several)[0] - expected).max() <= np.abs(expected).max() / 127

    def test_a_map_that_is_not_finite_is_blank(self):
        result = explained(target="predicted")
        bad = dataclasses.replace(
            result, values=result.values * torch.nan, verdict=("nan_logits",) * 2, trajectory=None
        )
        document = page_document(bad)
        assert document["maps"]["scales"] == [0.0]
        assert document["classes"][0]["sentence"].startswith("There is no map")
        assert "nan logits" in render_page(document)


class TestSchema:
    def test_a_document_survives_json(self):
        document = page_document(explained())
        assert Document.of(json.loads(json.dumps(document, allow_nan=False))).json_data() == document
        assert data(render_page(document)) == document

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"region": "M0 0L1 1<script>"}, "region: String should match pattern"),
            ({"schema": "fringe/explanation/2"}, "schema: Input should be 'fringe/explanation/1'"),
            ({"note": 1}, "note: Extra inputs are not permitted"),
            ({"classes": []}, "classes: List should have at least 1 item"),
            ({"snapshots": []}, "snapshots: List should have at least 1 item"),
            ({"predictions": []}, r"snapshots\[0\].probabilities is 5, expected 0"),
            ({"width": 0}, "width: Input should be greater than or equal to 1"),
        ],
    )
    def test_another_is_refused_with_what_is_wrong(self, change, message):
        document = {**page_document(explained(classes=5)), **change}
        with pytest.raises(fringe.InputError, match=message):
            render_page(document)

    def test_maps_of_another_size_are_refused(self):
        document = page_document(explained())
        for change, message in (({"data": "AAAA"}, "maps.data is 3"), ({"data": "<b>"}, "maps.data: String should")):
            with pytest.raises(fringe.InputError, match=message):
                render_page({**document, "maps": {**document["maps"], **change}})

    def test_an_attribution_without_inputs_is_refused(self):
        result = explained()
        with pytest.raises(fringe.InputError, match="holds no inputs") as caught:
            page_document(dataclasses.replace(result, context=None))
        assert "fringe.explain" in caught.value.hint
        with pytest.raises(fringe.InputError, match="row: got 2 for 2 inputs"):
            page_document(result, 2)
        with pytest.raises(fringe.InputError, match=r"of kind 'series', expected images"):
            page_document(renamed(result, kind="series"))


class TestPage:
    def test_names_are_text_and_nothing_else(self):
        """A file, a class, a model and a setting may be called anything."""
        result = renamed(explained(), ids=(MALICE, MALICE), model=MALICE, class_names=(MALICE,) * 6)
        result = dataclasses.replace(result, settings={"method": MALICE, MALICE: MALICE}, advice=(MALICE,) * 2)
        page = render_page(page_document(result, details={MALICE: [MALICE]}))
        assert "<img" not in page
        assert "\u202e" not in page
        assert page.count("<script") == page.count("</script>") == 2
        assert data(page)["id"].startswith("<img src=x onerror=alert(1)></script>")

    def test_nothing_is_loaded_and_no_other_script_runs(self):
        page = render_page(page_document(explained()))
        text = re.sub(r"[A-Za-z0-9+/=]{100,}", "", page)  # of pictures, in base64, where // means nothing
        assert not re.search(
            r"""(https?:)?//[a-z]|@import|url\(|\bsrc=|\bhref=""", text.replace("http://www.w3.org/2000/svg", "")
        )
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
        assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
        assert "unsafe" not in policy

    def test_numbers_are_in_tables_too(self):
        page = render_page(page_document(explained()))
        document = data(page)
        last = document["snapshots"][-1]
        row = re.search(rf'<th scope="row">{last["step"]}</th>(.*?)</tr>', page)[1]
        assert f">{last['entropy']:.3g}</td>" in row
        assert f">{last['probabilities'][0]:.1%}</td>" in row
        assert document["versions"]["torch"] == str(torch.__version__)
        assert f"<dt>torch version</dt><dd>{torch.__version__}</dd>" in page

    def test_a_path_to_another_reference_does_not_go_to_the_uniform_prediction(self):
        aim, text = (0.5, *[0.1] * 5), "towards the uniform prediction"
        other = explained(method=fringe.FRInGe(tau=0.01, steps=3, reference=aim))
        assert text not in render_page(page_document(other))
        assert text in render_page(page_document(explained()))

    def test_a_photograph_takes_at_most_2_mb(self):
        """Noise, which compresses worst, with five classes and eleven points."""
        page = render_page(page_document(explained(size=(224, 224), channels=3, images=1)))
        document = data(page)
        assert document["maps"]["shape"] == [len(document["snapshots"]), 5, 112, 112]
        assert len(page.encode()) <= 2_000_000

    @pytest.mark.thorough
    def test_large_images_take_no_more(self):
        page = render_page(page_document(explained(size=(600, 500), channels=3, images=1, target="top2")))
        assert len(page.encode()) <= 2_000_000
        assert data(page)["maps"]["shape"][2:] == [100, 84]

    @pytest.mark.parametrize(
        ("side", "words"),
        [(64, "against it.</p>"), (65, "it. Maps are smoothed"), (113, "summed over 2 × 2 pixels, and smoothed")],
    )
    def test_it_says_how_the_map_is_drawn(self, side, words):
        page = render_page(page_document(explained(size=(8, side), target="predicted", images=1)))
        assert words in " ".join(page.split())

    def test_a_page_is_written_in_one_call(self, tmp_path):
        result = explained()
        assert fringe.write_page(result, tmp_path / "page.html", row=1) == tmp_path / "page.html"
        assert data((tmp_path / "page.html").read_text(encoding="utf-8")) == page_document(result, 1)
        with pytest.raises(OSError, match="No such file"):
            write_page(result, tmp_path / "absent" / "page.html")
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]

    def test_colours_are_those_of_the_figures(self):
        """The script holds stops of matplotlib's maps: diverging ones, and the part of inferno that overlays use."""
        from matplotlib import colormaps

        page = render_page(page_document(explained()))
        for name, colour_map, low, high in (("signed", "RdBu_r", 0.0, 1.0), ("strength", "inferno", 0.35, 0.95)):
            stops = re.findall(r"#([0-9a-f]{6})", re.search(rf"{name}: \[(.*?)\]", page)[1])
            for at, stop in zip(np.linspace(low, high, len(stops)), stops, strict=True):
                rgb = np.array([int(stop[i : i + 2], 16) / 255 for i in (0, 2, 4)])
                assert np.abs(rgb - colormaps[colour_map](at)[:3]).max() < 0.05, (name, stop)


class TestAnimation:
    def test_it_has_a_frame_for_each_point(self, tmp_path):
        result = explained()
        with Image.open(write_animation(result, tmp_path / "path.webp")) as image:
            assert (image.format, image.n_frames) == ("WEBP", len(result.trajectory[0].snapshots))
            frames = []
            for number in range(image.n_frames):
                image.seek(number)
                frames.append(np.asarray(image.convert("L"), np.float64))
        right = [frame[30:250, frame.shape[1] // 2 + 10 : -20] for frame in frames]
        assert np.abs(right[-1] - right[0]).mean() > 3  # the map grows

    def test_the_outline_of_a_focus_lies_over_both_pictures(self):
        """A square of a quarter of the image: its sides are dark in each frame, and were not without a focus."""
        weights = torch.zeros(2, 1, 8, 8)
        weights[0, :, 2:6, 2:6] = 1.0
        plain = explained()
        for number in range(2):
            changed = []
            for result in (plain, dataclasses.replace(plain, region=weights)):
                frames = _render.animation(Document.of(page_document(result, number)))
                with Image.open(io.BytesIO(frames)) as image:
                    changed.append(np.asarray(image.convert("L"), np.float64))
            unlike = np.abs(changed[1] - changed[0]) > 60
            sides = [unlike[:, : unlike.shape[1] // 2], unlike[:, unlike.shape[1] // 2 :]]
            for side in sides:
                rows, columns = np.nonzero(side)
                if number:  # this image has none
                    assert not len(rows)
                else:  # 256 pixels for eight, half a pixel beyond the four
                    assert np.ptp(rows) == pytest.approx(128, abs=12)
                    assert np.ptp(columns) == pytest.approx(128, abs=12)
                    assert not side[rows.min() + 20 : rows.max() - 20, columns.min() + 20 : columns.max() - 20].any()

    def test_without_a_path_it_is_one_picture(self, tmp_path):
        result = explained(method=fringe.SmoothGrad(samples=3), target="predicted", images=1)
        with Image.open(write_animation(result, tmp_path / "path.webp")) as image:
            assert image.n_frames == 1

    def test_a_long_name_and_a_wide_image_fit(self, tmp_path):
        result = renamed(explained(size=(12, 70), channels=3, images=1), class_names=("a very long name " * 9,) * 6)
        with Image.open(write_animation(result, tmp_path / "path.webp")) as image:
            assert image.size[0] == 2 * 256 + 36

    def test_a_narrow_image_leaves_room_for_the_words(self, tmp_path):
        """As long as the words of the entropy are at 12 pixels a letter's height, and those above them twice."""
        result = explained(size=(70, 6), channels=3, images=1)
        words = ImageFont.load_default(12).getlength("entropy of the prediction: 100% of the largest")
        with Image.open(write_animation(result, tmp_path / "path.webp")) as image:
            assert image.size[0] >= words + 24
            frame = np.asarray(image.convert("L"), np.float64)
        assert (frame[:, -6:] > 240).all()  # nothing is cut at the edge

    def drawn(self, result, maps, pool, monkeypatch):
        """The pictures of these maps in the frames of an animation."""
        document = {**page_document(result), "maps": encode_maps(maps, pool).model_dump(mode="json")}
        frame, drawn = _render._frame, []
        monkeypatch.setattr(_render, "_frame", lambda *a: drawn.append(np.asarray(a[2][1], float)) or frame(*a))
        _render.animation(Document.of(document))
        return drawn

    def test_a_map_of_one_pixel_is_seen(self, monkeypatch):
        """A quantile of such a map is zero."""
        result = explained(size=(24, 30), target="predicted", images=1)
        maps = np.zeros(decode_maps(page_document(result)).shape)
        maps[1:, :, 20, 4] = np.linspace(0.1, 1.0, len(maps) - 1)[:, None]
        drawn = self.drawn(result, maps, 1, monkeypatch)
        coloured = [picture.max(-1) - picture.min(-1) for picture in drawn]
        assert coloured[0].max() == 0
        assert coloured[1].max() < 0.3 * coloured[-1].max()
        down, across = np.unravel_index(coloured[-1].argmax(), coloured[-1].shape)
        assert (int(down * 24 / drawn[-1].shape[0]), int(across * 30 / drawn[-1].shape[1])) == (20, 4)

    def test_the_map_lies_where_its_pixels_are(self, monkeypatch):
        """Three rows of pixels are two rows of squares: the upper one is two thirds of the image, not a half."""
        result = explained(size=(3, 113), target="predicted", images=1)
        maps = np.zeros(decode_maps(page_document(result)).shape)
        maps[:, :, 0] = 1.0
        rows = self.drawn(result, maps, 2, monkeypatch)[-1]
        assert rows.shape[:2] == (7, 256)
        coloured = (rows.max(-1) - rows.min(-1)).mean(1)
        assert coloured[4] > coloured[1]  # its middle lies above two thirds
        assert coloured[6] < 0.3 * coloured[1]


@pytest.mark.parametrize("text", ["abc", "w" * 80, "iiiiWWWW" * 30, "W" * 30 + "i" * 300, ""])
@pytest.mark.parametrize("width", [0, 5, 33, 611.5])
def test_a_name_in_an_animation_is_cut_where_it_ends(text, width, monkeypatch):
    """Letter by letter from the end gives the same, in a time that grows with the square of the length."""
    draw, font = ImageDraw.Draw(Image.new("RGB", (9, 9))), ImageFont.load_default(15)
    cut = text
    while cut and draw.textlength(f"{cut}...", font) > width:
        cut = cut[:-1]
    expected = text if draw.textlength(text, font) <= width else f"{cut}..."
    assert _render._fitted(draw, text, font, width) == expected
    measured = list[int]()
    real = ImageDraw.ImageDraw.textlength
    monkeypatch.setattr(ImageDraw.ImageDraw, "textlength", lambda d, t, f: (measured.append(len(t)), real(d, t, f))[1])
    _render._fitted(draw, "w" * 100_000, font, width)
    assert len(measured) <= 12
    assert max(measured) <= width + 4
