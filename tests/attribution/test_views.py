"""What an attribution shows: text, notebook, figures, tables, and the file that it is saved to."""

import dataclasses
import json
import re
import struct
import sys

import matplotlib.figure
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.text import Text

import fringe
from fringe._strings.formats import number
from fringe.attribution import SENTENCES, Context, tone_of
from fringe.page import page_document, render_page

FAST = fringe.explain("embedded:digits", "embedded:digits:3:6", method="fringe:fast", target="top3")
BARE = fringe.attribute(
    lambda x: torch.stack([x.square().sum((1, 2, 3)), x.sum((1, 2, 3))], 1),
    torch.arange(32.0).view(2, 1, 4, 4) / 32,
    method="ig",
)


def same(a, b):
    """Whether two values are equal, tensors bit for bit, and of one type."""
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.numpy().tobytes() == b.numpy().tobytes()
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_the_text_fits_one_screen():
    text = repr(FAST)
    assert "fringe:fast" in text
    titles = " ".join(one.get_text() for one in FAST[0].plot("overlay").findobj(Text))
    assert "(FRInGe (fast))" in " ".join(titles.split())
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["method", "n", "shape", "verdicts", "residual", "passes"]
    assert "digits-0004" in text
    assert "(1, 32, 32), 3 classes each" in text
    many = fringe.explain("embedded:digits", "embedded:digits:0:30", method=fringe.IntegratedGradients(steps=1))
    assert len(repr(many).splitlines()) <= 24
    assert "and 22 more" in repr(many)
    assert "none" in repr(dataclasses.replace(BARE, completeness_residual=BARE.completeness_residual * torch.nan))


def test_an_index_a_slice_and_a_loop_give_the_rows():
    assert len(FAST) == 3
    assert [one.context.ids for one in FAST] == [("digits-0003",), ("digits-0004",), ("digits-0005",)]
    last = FAST[-1]
    assert same(last.values, FAST.values[2:])
    assert same(last.trajectory, FAST.trajectory[2:])
    assert len(FAST[3:]) == 0
    assert FAST[1:].context.ids == ("digits-0004", "digits-0005")
    assert fringe.Attribution.concat(list(FAST)).context.ids == FAST.context.ids
    with pytest.raises(IndexError, match="there are maps of"):
        FAST[3]


def test_a_notebook_shows_the_picture_and_the_verdict_and_no_markup_of_strangers():
    context = dataclasses.replace(FAST.context, ids=("<script>alert(1)</script>", "b&b", "c"))
    html = dataclasses.replace(FAST, context=context)._repr_html_()
    assert html.count("data:image/png;base64,") == html.count('style="width:200px') == 3
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert "Read with care" in html or "Not checked" in html or "Do not rely" in html
    assert "http" not in html
    assert not re.search(r"(?<!-)color:|background", html)  # the notebook's own colours, dark or light
    assert "data:image/png" in BARE._repr_html_()
    assert FAST[0].plot()._repr_png_().startswith(b"\x89PNG")
    flat = fringe.attribute(torch.nn.Linear(4, 3), torch.rand(2, 4), method="ig")
    assert "<img" not in flat._repr_html_()


@pytest.mark.parametrize("kind", ["overlay", "signed", "path", "profile", "classes"])
def test_every_picture_is_a_figure_of_its_own_or_a_part_of_the_callers(kind):
    assert isinstance(FAST[0].plot(kind), matplotlib.figure.Figure)
    mine = matplotlib.figure.Figure(figsize=(4, 2), dpi=50)
    left, right = mine.subfigures(1, 2)
    assert FAST[0].plot(kind, ax=left) is mine
    assert FAST[0].plot(kind, ax=right.subplots()) is mine


def test_several_images_are_one_sheet_or_one_is_to_be_chosen():
    words = " ".join(text.get_text() for text in FAST.plot().findobj(matplotlib.text.Text))
    assert all(name in words for name in FAST.context.ids)
    with pytest.raises(fringe.InputError, match=r"holds 3 inputs; draw one, as in result\[0\].plot\('path'\)"):
        FAST.plot("path")


def test_a_class_is_chosen_by_its_number():
    second = int(FAST.target[0, 1])
    one = FAST[0].of_class(1)
    drawn = [np.asarray(f.axes[0].images[0].get_array()) for f in (FAST[0].plot(target=second), one.plot())]
    assert np.array_equal(*drawn)
    with pytest.raises(fringe.InputError, match="class 77 is not explained here"):
        FAST[0].plot(target=77)


def test_without_inputs_the_signed_map_is_drawn():
    axes = [result.plot(*kind).axes[0] for result in [BARE[0]] for kind in ((), ("signed",))]
    assert np.array_equal(*(np.asarray(one.images[0].get_array()) for one in axes))


def test_the_sheet_says_what_the_prediction_is_compared_with():
    result = fringe.explain("embedded:digits", "embedded:digits:0:2", method="ig", target=0, contrast=5)
    words = [text.get_text() for text in result.plot().findobj(matplotlib.text.Text)]
    predicted, other = (word for word in words if "%" in word)
    assert predicted.startswith("0 · ")
    assert predicted.endswith("%, not 5")
    assert other.startswith("1 · ")
    assert other.endswith("%, explained: 0, not 5")


def test_pictures_say_what_they_lack():
    for kind in ("overlay", "path", "classes"):
        with pytest.raises(fringe.InputError, match=r"use fringe.explain, or result.with_context"):
            BARE[0].plot(kind)
    with pytest.raises(fringe.InputError, match="telemetry=True"):
        BARE[0].plot("profile")
    with pytest.raises(fringe.InputError, match="target='top5'"):
        FAST[0].of_class(0).plot("classes")
    with pytest.raises(fringe.InputError, match="kind: got 'heat', expected one of overlay"):
        FAST[0].plot("heat")
    context = Context("image", torch.zeros(2, 1, 4, 4), torch.ones(2, 2) / 2, ("a", "b"))
    assert BARE.with_context(context)[1].plot().axes
    with pytest.raises(fringe.InputError, match=r"got inputs of shape \(2, 1, 4, 4\), expected \(1, 1, 4, 4\)"):
        BARE[0].with_context(context)
    with pytest.raises(fringe.InputError, match="ids: got 1 for 2 inputs"):
        dataclasses.replace(context, ids=("a",))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_has_a_row_for_each_input_and_class(library):
    pytest.importorskip(library)
    table = FAST.to_dataframe(library)
    assert len(table) == 9
    assert list(table["class"]) == FAST.target.flatten().tolist()
    assert list(table["id"][:4]) == ["digits-0003"] * 3 + ["digits-0004"]
    assert list(table["completeness_residual"]) == FAST.completeness_residual.flatten().tolist()
    assert list(table["verdict"]) == [verdict for row in FAST.class_verdicts for verdict, _ in row]
    assert len(BARE.to_dataframe(library)) == 2


def test_a_table_without_its_library_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        fringe.InputError, match=r'pandas is not installed; run pip install -c constraints.txt -e "\.\[notebook\]"'
    ):
        FAST.to_dataframe()


def test_a_saved_attribution_comes_back_bit_for_bit(tmp_path):
    for result in (FAST, BARE, FAST[0].of_class(1)):
        path = tmp_path / "result.safetensors"
        result.save(path)
        assert same(fringe.load(path), result)
    nan = dataclasses.replace(BARE, completeness_gap=BARE.completeness_gap * torch.nan)
    nan.save(path)
    assert same(fringe.load(path), nan)


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    path = tmp_path / "result.safetensors"
    BARE.save(path)
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])

    def rewritten(**metadata):
        text = json.dumps({**header, "__metadata__": {**header["__metadata__"], **metadata}}).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    flipped = bytearray(data)
    flipped[-1] ^= 1
    for content, message in (
        (data[:-4], "damaged"),
        (bytes(flipped), "damaged.*checksum"),
        (rewritten(record=header["__metadata__"]["record"].replace("ig", "ik")), "damaged.*checksum"),
        (b"", "no safetensors file"),
        (b"\xff" * 64, "no safetensors file"),
        (rewritten(format="fringe/attribution/2"), "version 2 of the format.*install a newer fringe"),
        (rewritten(format="other/1"), "is no saved attribution"),
    ):
        path.write_bytes(content)
        with pytest.raises(fringe.InputError, match=message):
            fringe.load(path)
    with pytest.raises(FileNotFoundError):
        fringe.load(tmp_path / "absent.safetensors")
    with pytest.raises(fringe.InputError, match="not a regular file"):
        fringe.load(tmp_path)


def test_a_kind_that_is_no_part_of_an_attribution_is_not_made(tmp_path):
    @dataclasses.dataclass
    class Popen:
        args: str

    fringe.Attribution.save(Popen("rm"), tmp_path / "x.safetensors")  # pyright: ignore[reportArgumentType]
    with pytest.raises(fringe.InputError, match="damaged"):
        fringe.load(tmp_path / "x.safetensors")


def test_the_class_that_a_map_is_compared_with_is_named_wherever_the_map_is(tmp_path):
    names = [f"embedded:digits:{i}" for i in range(3)]
    against = torch.tensor([[8, 9], [9, 8], [8, 9]])
    result = fringe.explain("embedded:digits", names, method="ig", target=[[0, 1]] * 3, contrast=against)
    assert result.contrast.tolist() == [[8, 9], [9, 8], [8, 9]]
    first, second = result.context.class_label(int(result.target[1, 0])), result.context.class_label(9)
    label = f"{first}, not {second}"
    one = result[1].of_class(0)
    assert one.contrast.tolist() == [9]
    assert one.labels(0) == (label,)
    assert label in repr(one)
    assert label in one._repr_html_()
    for kind in ("overlay", "signed"):
        assert label in " ".join(" ".join(text.get_text() for text in one.plot(kind).findobj(Text)).split())
    assert label in " ".join(text.get_text().replace("\n", " ") for text in result.plot().findobj(Text))
    assert result.to_dataframe()["contrast"].tolist() == [8, 9, 9, 8, 8, 9]
    one.save(tmp_path / "map")
    assert fringe.load(tmp_path / "map").contrast.tolist() == [9]
    assert type(result).concat([result[:1], result[1:]]).contrast.tolist() == result.contrast.tolist()
    assert f'<q id="name">{label}</q>' in render_page(page_document(result, 1))
    shown = page_document(result, 1)
    assert shown["classes"][0]["label"] == label
    assert second in [entry["label"] for entry in shown["predictions"]]


@pytest.mark.parametrize("verdict", SENTENCES)
def test_a_verdict_has_the_colour_of_its_sentence_on_a_sheet(verdict):
    """Brown for what is to be read with care, as on a page: red would say that the map is wrong. Never green, which
    would say that it is right, and the method that promises nothing has no colour."""
    several = dataclasses.replace(FAST[:2].of_class(0), verdict=(verdict,) * 2)
    texts = [text for text in several.plot("signed").findobj(Text) if text.get_text() == verdict.replace("_", " ")]
    assert len(texts) == 2
    red, green, blue = to_rgb(texts[0].get_color())
    colours = {
        "checked": blue > 1.2 * green > 1.2 * red,
        "fair": red > green > 2 * blue,
        "bad": red > 2 * green,
        "plain": max(red, green, blue) - min(red, green, blue) < 0.15,
    }
    assert colours[tone_of(verdict)]


def test_no_verdict_promises_more_than_the_sum():
    right = "whether the map marks the right parts of the input"
    assert [name for name, (_, text) in SENTENCES.items() if right in text.partition("ot checked: ")[2]] == [
        "ok",
        "unchecked",
    ]
    for _, text in SENTENCES.values():
        assert not re.search(r"\b(complete|accurate|correct|reliable)\b", text)


def rows_of_a_table(**options):
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Linear(4, 3)
    net.weight.data = torch.randn(3, 4, generator=generator)
    rows = torch.randn(6, 4, generator=generator)
    return fringe.explain(net.eval(), rows, kind="tabular", features=list("abcd"), method="ig", **options)


def words_of(figure):
    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_many_rows_of_a_table_are_a_swarm():
    result = rows_of_a_table(target=1)
    drawn = result.plot()
    assert "class 1: evidence in 6 rows" in words_of(drawn)
    assert "speaks for 'class 1'" in words_of(drawn)
    several = rows_of_a_table(target="top2")
    assert f"{len(set(several.target[:, 0].tolist()))} classes: evidence in 6 rows" in words_of(several.plot())
    every = rows_of_a_table(target=[[0, 1]] * 6)
    assert "class 1: evidence in 6 rows" in words_of(every.plot("beeswarm", target=1))
    assert "evidence in 1 rows" in words_of(result[0].plot("beeswarm"))
    with pytest.raises(fringe.InputError, match=r"holds 6 inputs; draw one, as in result\[0\].plot\('bars'\)"):
        result.plot("bars")
    with pytest.raises(fringe.InputError, match="class 2 is not explained here"):
        every.plot("beeswarm", target=2)


def test_a_row_of_a_table_is_a_waterfall_between_its_scores():
    result = rows_of_a_table(target=[[0, 1]] * 6)[2]
    score, start = result.score[0, 1].item(), result.endpoint_score[0, 1].item()
    text = words_of(result.plot("waterfall", target=1))
    assert f"From the score {number(start)} at the end of the path (below) to {number(score)} of this input" in text
    none = dataclasses.replace(result, endpoint_score=result.endpoint_score * torch.nan)
    with pytest.raises(fringe.InputError, match="kind: the bars of ig add up to no change of the score; draw 'bars'"):
        none.plot("waterfall")


def test_an_array_with_names_has_the_maps_of_each_input_and_class():
    pytest.importorskip("xarray")
    array = FAST.to_xarray()
    assert array.dims == ("image", "class", "channel", "y", "x")
    np.testing.assert_array_equal(array.values, FAST.values.numpy())
    one = array.sel(image=FAST.context.ids[1]).isel({"class": 0})
    np.testing.assert_array_equal(one.values, FAST.values[1, 0].numpy())
    assert int(one.target) == int(FAST.target[1, 0])
    assert one.target_name.item() == FAST.context.class_label(int(one.target))
    assert one.verdict.item() == FAST[1].of_class(0).verdict[0]
    assert float(one.score) == float(FAST.score[1, 0])
    assert array.attrs["model"] == FAST.context.model
    bare = BARE.to_xarray()
    assert bare.dims == ("image", "class", "channel", "y", "x")
    assert bare.shape[1] == 1
    table = rows_of_a_table()
    assert table.to_xarray().dims == ("input", "class", "feature")
    np.testing.assert_array_equal(table.to_xarray().sel(feature="c").values[:, 0], table.values[:, 2].numpy())
    both = fringe.attribute(lambda a, b: torch.cat([a, b], 1), (torch.rand(2, 3), torch.rand(2, 4)), method="ig")
    with pytest.raises(fringe.InputError, match=r"maps of several tensors, see result.maps"):
        both.to_xarray()


def test_an_array_with_names_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(fringe.InputError, match=r"xarray is not installed; .*\[xarray\]"):
        BARE.to_xarray()


def test_the_verdict_stands_on_the_slice_of_a_volume():
    volume = torch.linspace(-1, 1, 64).view(1, 1, 4, 4, 4)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    result = fringe.explain(network, volume, kind="volume", method="ig")
    assert f"{result.verdict[0]}: {result.advice[0]}" in " ".join(words_of(result.plot()).split())


def test_several_tensors_are_drawn_one_below_the_other():
    def model(image, facts, number):
        return torch.cat([image.sum((2, 3)), facts.square(), number[:, None]], 1)

    given = {"image": torch.rand(2, 1, 4, 5), "facts": torch.rand(2, 3), "number": torch.rand(2)}
    result = fringe.attribute(model, given, method="ig", target=[[0, 2], [0, 2]])
    text = words_of(result[1].plot(target=2))
    sums = [number(float(m[1, 1].sum()), signed=True) for m in result.maps.values()]
    assert all(f"{name}: {total}" in text for name, total in zip(given, sums, strict=True))
    drawn = result[1].plot(target=0).findobj(matplotlib.image.AxesImage)[0]
    np.testing.assert_allclose(np.asarray(drawn.get_array()), result.maps["image"][1, 0, 0].numpy())
    assert result._repr_html_().count('style="width:480px') == 2  # its words are read
    unnamed = fringe.attribute(model, tuple(given.values()), method="ig", target=0)
    assert "tensor 2: " in words_of(unnamed[0].plot())
    with pytest.raises(fringe.InputError, match="kind: got 'overlay', expected one of parts"):
        unnamed[0].plot("overlay")
    with pytest.raises(fringe.InputError, match=r"got dict, .*texts .* tokenizer=; .*goes to fringe.attribute"):
        fringe.explain(model, given)
