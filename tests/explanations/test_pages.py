"""The pages of a run: one of each input, an index that links them, and results that do not depend on them."""

import html
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fringe
from command_line import picture
from fringe.explanations import Explanation, explain_images
from fringe.explanations._pictures import contact_cell
from fringe.models import load_model
from fringe.page import decode_maps

pytestmark = pytest.mark.usefixtures("small_figures")

QUICK = ("tau=0.05", "steps=8")
IG = {"method": "ig", "set": ("steps=4",)}
ONE, TWO = ["embedded:digits:3"], ["embedded:digits:3:5"]


def explain(out, inputs=ONE, **options):
    return list(explain_images(inputs, out, **{"set": QUICK, **options}))


def document(folder):
    page = (folder / "explanation.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def links(out):
    page = (out / "index.html").read_text(encoding="utf-8")
    return [html.unescape(link) for link in re.findall(r'<a href="([^"]*)"', page)]


def reused(results):
    return [result.reused for result in results]


def test_the_pages_do_not_touch_the_results(tmp_path):
    """The map, the record and the verdict are those of the explained class alone, to the last bit."""
    with_pages, without = explain(tmp_path / "a", TWO), explain(tmp_path / "b", TWO, figures=False)
    for one, other in zip(with_pages, without, strict=True):
        mine, theirs = (load_file(r.folder / "attribution.safetensors") for r in (one, other))
        assert torch.equal(mine["values"], theirs["values"])
        differ = {name for name in other.record if one.record[name] != other.record[name]}
        assert differ - {"seconds"} == {"cost", "files", "checksum", "options"}  # which may be equal
        passes = [result.record["cost"]["passes"] for result in (one, other)]
        assert passes[0]["forward"] >= passes[1]["forward"]  # each class halves the segments that it needs
        assert passes[0]["vjp"] > passes[1]["vjp"]


def test_a_page_shows_the_result_and_the_record(tmp_path):
    (result,) = explain(tmp_path)
    page, record = document(result.folder), result.record
    assert page["id"] == record["id"]
    first = page["classes"][0]
    assert (first["index"], first["verdict"]) == (record["target"]["class"], record["verdict"])
    assert first["advice"] == record["advice"]
    assert [c["index"] for c in page["classes"]] == [c["class"] for c in record["top"]]
    values = result.load()["values"].double().sum(0).numpy()
    assert np.abs(decode_maps(page)[-1, 0] - values).max() <= np.abs(values).max() / 120
    assert page["details"]["model"] == record["model"]["spec"]
    assert page["details"]["seed"] == 0
    with Image.open(result.folder / "path.webp") as image:
        assert image.n_frames == len(page["snapshots"]) == 9


def test_the_other_classes_are_explained_too(tmp_path):
    """Each as a call for it alone explains it (exactly so by the trapezoid rule: of the adaptive one the first decides
    on the points); a target comes first, also where it is not probable."""
    (result,) = explain(tmp_path, target=7, top=3, set=(*QUICK, "halvings=0"))
    page = document(result.folder)
    assert page["classes"][0]["index"] == result.record["target"]["class"] == 7
    assert len(page["classes"]) == 3
    for k, one in enumerate(page["classes"]):
        method = fringe.FRInGe(tau=0.05, steps=8, halvings=0)
        alone = fringe.explain("embedded:digits", "embedded:digits:3", method=method, target=one["index"])
        values = alone.values[0].double().sum(0).numpy()
        assert np.abs(decode_maps(page)[-1, k] - values).max() <= np.abs(values).max() / 120
        assert one["verdict"] == alone.verdict[0]


def test_a_method_whose_classes_share_no_path_explains_one(tmp_path):
    (result,) = explain(tmp_path, **IG)
    assert len(document(result.folder)["classes"]) == 1


def test_the_index_links_every_page_and_names_what_failed(tmp_path):
    names = ["a <b>&.png", "index.html.png", "50% #1?.png"]
    for seed, name in enumerate(names):
        picture(tmp_path / name, seed=seed)
    (tmp_path / "broken.png").write_bytes(b"no image")
    paths = [str(tmp_path / name) for name in [*names, "broken.png"]]
    results = explain(tmp_path / "out", paths, model="embedded:digits", **IG)
    done = [result for result in results if isinstance(result, Explanation)]
    assert len(done) == 3
    index = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    from urllib.parse import unquote

    targets = [tmp_path / "out" / unquote(link) for link in links(tmp_path / "out")]
    assert targets == [result.folder / "explanation.html" for result in done]
    assert all(path.is_file() for path in targets)
    assert "<b>&" not in index
    assert results[3].reason_to_share.startswith("'broken.png': not an image")
    assert results[3].reason_to_share in html.unescape(index)
    assert str(tmp_path) not in index
    assert str(tmp_path) not in (results[0].folder / "explanation.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["index"] == "index.html"


def test_a_result_without_a_page_is_completed(tmp_path):
    """Of an earlier version: its folder is intact, but lists no page. It is computed again, and its map stays equal."""
    from fringe._files.records import digest

    explain(tmp_path, TWO, **IG)
    folder = tmp_path / "digits-0003"
    before = load_file(folder / "attribution.safetensors")["values"]
    record = json.loads((folder / "explanation.json").read_text())
    for name in ("explanation.html", "path.webp"):
        (folder / name).unlink()
        del record["files"][name]
    del record["options"]["top"], record["checksum"]
    (folder / "explanation.json").write_text(json.dumps({**record, "checksum": digest(record)}))
    assert reused(explain(tmp_path, TWO, figures=False, **IG)) == [True, True]
    assert reused(explain(tmp_path, TWO, **IG)) == [False, True]
    assert (folder / "explanation.html").is_file()
    after = load_file(folder / "attribution.safetensors")["values"]
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_more_classes_in_the_page_are_computed_and_the_same_are_not(tmp_path):
    explain(tmp_path, top=2)
    assert reused(explain(tmp_path, top=2)) == [True]
    assert reused(explain(tmp_path, top=4)) == [False]
    assert len(document(tmp_path / "digits-0003")["classes"]) == 4
    assert reused(explain(tmp_path, top=40)) == [False]  # of ten
    assert reused(explain(tmp_path, top=10)) == [True]


def test_no_pages_without_figures(tmp_path):
    explain(tmp_path, figures=False, **IG)
    assert not list(tmp_path.rglob("*.html"))
    assert json.loads((tmp_path / "summary.json").read_text())["index"] is None


def test_where_the_path_depends_on_the_class_a_page_shows_one_class(tmp_path):
    """With a focus that is the class's, several classes would have another path, and so another map than without."""
    focused = {"set": ("focus=cam",), "inputs": ["embedded:digits:3:4"]}
    (shown,), (bare,) = explain(tmp_path / "a", **focused), explain(tmp_path / "b", figures=False, **focused)
    mine, theirs = (load_file(result.folder / "attribution.safetensors")["values"] for result in (shown, bare))
    assert torch.equal(mine, theirs)
    (one,) = document(shown.folder)["classes"]
    assert "; focused with floor 0." in one["advice"]
    tensors, recipe = shown.load(), load_model("embedded:digits").preprocessing
    assert tensors["region"].shape == (1, 32, 32)
    assert (tensors["region"].min(), tensors["region"].max()) == (0, 1)
    assert (contact_cell(tensors, shown.record, recipe).region == tensors["region"][0].numpy()).all()
    assert shown.record["diagnostics"]["focus_found"] == 1.0
