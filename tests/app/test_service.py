"""What the app lets people ask for, without a web server: the list of models, the limits, and the results."""

import csv
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image, ImageFile

import fringe
from fringe.app import AppSpec, _service
from fringe.app._jobs import StoppedError, reason
from fringe.app._service import Service, load_models
from fringe.attribution import METHODS
from fringe.errors import InputError
from fringe.metrics import METRICS, USUAL_METRICS
from fringe.models import LoadedModel, load_model

pytestmark = pytest.mark.usefixtures("small_figures")


def load(*models, class_names=None, **options):
    return load_models(AppSpec(model=models, **options), class_names)


@pytest.fixture
def make_service(tmp_path):
    def make(models=None, **options):
        return Service(models or load(), tmp_path / "app", AppSpec(**options))

    return make


@pytest.fixture
def digit(make_service):
    """A service, and the file of its first sample."""
    service = make_service()
    return service, service.sample_file(0)


def explain(service, file, model="digits", method="ig", owner="a"):
    *_, last = service.explain(owner, lambda *_: None, file, model, method)
    return last


def compare(service, file, one, two, model="digits", owner="a"):
    (only,) = service.compare(owner, lambda *_: None, file, model, one, two)
    return only


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Integrated Gradients and SmoothGrad on the first sample."""
    service = Service(load(), tmp_path_factory.mktemp("app"), AppSpec())
    return compare(service, service.sample_file(0), "ig", "smoothgrad")


def scores(result):
    """The scores of a comparison, by method and metric."""
    with result.files[0].open() as file:
        return {(row["method"], row["metric"]): row for row in csv.DictReader(file)}


def said(call, *arguments):
    """What people read of the error of a call."""
    with pytest.raises(Exception) as error:
        call(*arguments)
    return reason(error.value)


def test_the_models_are_those_of_the_list_and_nothing_is_loaded_by_a_name_from_outside(digit):
    service, file = digit
    for name in ("embedded:digits", "torchvision:resnet18@random", "os:system", "", "nothing"):
        with pytest.raises(InputError, match="this model is not in the list; choose one of the list"):
            explain(service, file, name)
        with pytest.raises(InputError, match="this model is not in the list"):
            compare(service, file, "ig", "fringe", name)
    assert list(service.models) == ["digits"]


def test_methods_that_need_other_images_are_not_offered(digit):
    service, file = digit
    assert list(service.methods)[:3] == ["fringe", "fringe:fast", "fringe:focused"]
    assert {"ig", "guided_ig", "smoothgrad"} <= set(service.methods)
    for name in ("expected_gradients", "geoig_knn", "ig2", "fringe:nothing", "nothing"):
        with pytest.raises(InputError, match="this method is not in the list"):
            explain(service, file, method=name)


@pytest.mark.parametrize("method", ["ig", "fringe:focused"])
def test_an_explanation_is_a_page_and_three_files_with_the_map_of_the_library(digit, method):
    service, file = digit
    result = explain(service, file, method=method)
    assert [path.suffix for path in result.files] == [".html", ".npz", ".png"]
    page = result.files[0].read_text(encoding="utf-8")
    document = re.search(r"<script[^>]*application/json[^>]*>(.*?)</script>", page, re.DOTALL)
    assert json.loads(document[1])["schema"].startswith("fringe/explanation/")
    assert "digits-0000" in page
    expected = fringe.explain("embedded:digits", "embedded:digits:0", method=method).values[0].numpy()
    with np.load(result.files[1]) as arrays:
        np.testing.assert_allclose(arrays["values"], expected, atol=1e-6)
        assert arrays["input"].shape == (1, 32, 32)
        assert float(arrays["probabilities"].sum()) == pytest.approx(1, abs=1e-5)
    with Image.open(result.files[2]) as picture:
        assert picture.format == "PNG"


def test_the_first_picture_is_a_fast_one_of_the_predicted_class(digit):
    """It takes fewer passes than the map that was asked for, and gives way to it."""
    service, file = digit
    passes = [0]
    service.models["digits"].module.register_forward_pre_hook(lambda *_: passes.append(passes.pop() + 1))
    taken, pages, said = [], [], []
    for result in service.explain("a", lambda *_: None, file, "digits", "fringe"):
        taken.append(passes.pop())
        passes.append(0)
        pages.append(result.files[0].read_text(encoding="utf-8"))
        said.append(result.next)
    assert said == ["By FRInGe, fast. FRInGe comes next.", ""]
    assert taken[0] < taken[1]
    assert [len(re.findall('name="class" value=', page)) for page in pages] == [0, 5]
    assert [path.exists() for path in result.files] == [True] * 3
    for method in ("fringe:fast", "fringe:focused", "ig"):
        assert len(list(service.explain("a", lambda *_: None, file, "digits", method))) == 1


def test_a_stop_during_the_first_picture_ends_both(digit):
    service, file = digit
    held = Stop(service, "a", lambda passes: passes == 5)
    with pytest.raises(StoppedError):
        list(service.explain("a", lambda *_: None, file, "digits", "fringe"))
    assert held.passes == 5


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_a_comparison_has_the_scores_of_the_library(make_service, output):
    loaded = load_model("embedded:digits")
    if output == "probabilities":
        module = torch.nn.Sequential(loaded.module, torch.nn.Softmax(dim=1)).eval()
        loaded = replace(loaded, module=module, output=output)
    service = make_service({"digits": loaded}, samples=("embedded:digits:0",))
    file = service.sample_file(0)
    found = scores(compare(service, file, "ig", "blur_ig"))["ig", "insertion"]["score"]
    classifier, x = fringe.Classifier(loaded.module, output=output), loaded.prepare([Image.open(file)])
    metrics = {"insertion": _service.METRICS["insertion"]}
    expected = fringe.compare(classifier, x, ["ig"], metrics, controls=False).rows[0].scores["insertion"]
    assert float(found) == pytest.approx(float(expected.values))


def test_a_comparison_has_control_maps_and_says_which_look_at_the_model(digit, compared):
    result = compare(*digit, "fringe:fast", "ig")
    controls = ["zero", "random", "uniform", "edge", "diffusion"]
    controls += ["power(1.5):fringe:fast", "centre_prior:fringe:fast"]
    assert list(dict.fromkeys(name for name, _ in scores(result))) == ["fringe:fast", "ig", *controls]
    assert [path.suffix for path in result.files] == [".csv", ".npz", ".png"]
    said = "Zero, random, uniform and edge do not look at the model"
    own = "power and centre_prior are a method's own map"
    assert f"{said}; diffusion follows a path that ignores it; {own}" in result.html
    assert (
        f"{said}; {own}, made sharper or moved to the centre, and count for that method alone. A score" in compared.html
    )
    assert '<th scope="row">Integrated Gradients</th>' in compared.html  # as the list of methods calls it


def test_the_scores_of_a_comparison_are_few_quick_and_explained(compared):
    """At most half of the passes of a comparison's own defaults, or passes that all maps share; the two that pass the
    test of scores come first."""
    assert list(dict.fromkeys(metric for _, metric in scores(compared))) == list(_service.METRICS)
    assert list(_service.METRICS)[:2] == list(USUAL_METRICS)[:2]
    for name, metric in _service.METRICS.items():
        if name != "occlusion_agreement":
            assert metric.planned_passes <= METRICS[name.partition(":")[0]]().planned_passes / 2, name
        assert f"<li><strong>{metric.title}</strong>: " in compared.html


def test_a_score_that_is_not_better_than_every_control_is_marked(compared):
    rows, marked = scores(compared), []
    for method, title in (("ig", "Integrated Gradients"), ("smoothgrad", METHODS["smoothgrad"].title)):
        cells = re.search(rf"{title}</th>(.*?)</tr>", compared.html)[1].split("</td>")
        for metric, cell in zip(_service.METRICS, cells, strict=False):
            sign = -1 if "deletion" in metric else 1
            score = float(rows[method, metric]["score"])
            controls = {name for (name, _), row in rows.items() if row["control"] == "true"}
            theirs = {name: float(text) for name in controls if (text := rows[name, metric]["score"])}
            own = {name: value for name, value in theirs.items() if name.endswith(f":{method}") and value != score}
            best = max(sign * value for name, value in theirs.items() if ":" not in name or name in own)
            marked.append("‡" in cell)
            assert marked[-1] == (not sign * score > best)
    assert sorted(set(marked)) == [False, True]
    assert "‡: not shown to be better than every control" in compared.html
    assert "better than those of all its controls: there, the better of the two methods is bold." in compared.html


def test_a_method_that_fails_in_a_comparison_is_said_without_words_for_programmers(digit, monkeypatch, caplog):
    def attribute(*_):
        raise InputError("got 3, expected torch.float32", argument="quadrature")

    monkeypatch.setattr(METHODS["blur_ig"], "attribute", attribute)
    html = compare(*digit, "ig", "blur_ig").html
    assert "This method failed for this image and model. The terminal of the app shows more." in html
    assert "torch" not in html
    assert "blur_ig failed in a comparison of the app: quadrature: got 3" in caplog.text


def test_a_class_without_a_name_has_its_number(make_service):
    service = make_service(load(class_names=[""] * 10))
    assert "for class 3" in compare(service, service.sample_file(3), "ig", "blur_ig").html


def test_the_same_method_twice_or_no_image_is_refused(digit):
    assert said(compare, *digit, "ig", "ig") == "Both methods are the same; choose two different ones."
    assert said(explain, digit[0], None) == "No image is chosen; drop one into the field, or pick a sample."


def scans(path):
    """A JPEG of thousands of scans."""
    Image.new("RGB", (16, 16)).save(path, progressive=True, format="JPEG")
    data = path.read_bytes()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 6000 + b"\xff\xd9"


def truncated(path):
    Image.effect_noise((64, 64), 80).save(path, format="JPEG")
    return path.read_bytes()[:1000]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no image", "This file: not an image of the formats .*"),
        (b"", "This file: is empty; choose another image."),
        (truncated, r"This file: cannot be decoded \(image file is truncated.*\); choose another image\."),
        (scans, "This file: has 6010 scans, more than 100; choose another image."),
    ],
)
def test_a_bad_file_is_refused_and_its_folder_is_not_named(digit, tmp_path, content, message):
    file = tmp_path / "secret-folder" / "photo.png"
    file.parent.mkdir()
    file.write_bytes(content(file) if callable(content) else content)
    text = said(explain, digit[0], file)
    assert re.fullmatch(message, text)
    assert "secret-folder" not in text


def test_an_image_of_too_many_pixels_is_refused_by_its_header(make_service, tmp_path):
    Image.new("L", (11, 10)).save(tmp_path / "large.png")
    text = said(explain, make_service(max_pixels=100), tmp_path / "large.png")
    assert text == "This file: 11x10 is more than 100 pixels; choose another image."


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"])
def test_decoding_an_image_ends_at_the_time_limit(make_service, tmp_path, monkeypatch, kind):
    """The time is up when the decoder reads first."""
    Image.new("L", (8, 8)).save(tmp_path / "a", format=kind)
    clock = [0.0]
    monkeypatch.setattr(_service, "find_inputs", lambda _: [])
    service = make_service(time_limit=1.0)
    monkeypatch.setattr("fringe.app._jobs.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    real = _service.open_image

    def late(*args, **options):
        clock[0] = 1.5
        return real(*args, **options)

    monkeypatch.setattr(_service, "open_image", late)
    with pytest.raises(StoppedError, match="Stopped at the limit of 1 s"):
        explain(service, tmp_path / "a")


def test_a_model_that_keeps_the_size_of_an_image_has_a_limit_as_well(make_service, tmp_path, monkeypatch):
    monkeypatch.setattr(_service, "MAX_INPUT_PIXELS", 2000)
    service = make_service(load(preprocessing="unit,channels=1,mean=0,std=1"))
    for size, text in {
        (50, 41): "The model would get 50 x 41 pixels, more than 2000; shrink the image.",
        (4, 4): "The model cannot take an image of 4 x 4 pixels; try another image or model.",
    }.items():
        Image.new("L", size).save(tmp_path / "image.png")
        assert said(explain, service, tmp_path / "image.png") == text


MORE = "; choose another model. The terminal of the app shows more."
OTHER = "; try another image or model."


@pytest.mark.parametrize("call", [explain, compare])
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return z.softmax(1)", f"The output of this model cannot be read as one score for each class{MORE}"),
        ("return z * float('nan')", f"The model's scores for this image are no finite numbers{OTHER}"),
        ("return z.detach()", f"This model has no gradients that the method can use{MORE}"),
        ("raise ValueError('1')", f"The model cannot take an image of 8 x 8 pixels{OTHER}"),
        ("raise torch.OutOfMemoryError('')", "There is not enough memory for this image, model and method."),
    ],
)
def test_what_is_wrong_is_said_of_the_field_that_people_see(make_service, tmp_path, call, code, message):
    (tmp_path / "net.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        f"        z = x.flatten(1)[:, :4]\n        {code}\n"
    )
    models = load(f"{tmp_path / 'net.py'}:Net", preprocessing="resize=8,mean=0,std=1", trust_code=True)
    Image.effect_noise((8, 8), 80).save(tmp_path / "image.png")
    methods = ("net.Net", "ig") if call is explain else ("ig", "fringe", "net.Net")
    assert said(call, make_service(models), tmp_path / "image.png", *methods) == message


def test_a_model_of_two_classes_is_explained_for_both_and_its_path_reaches_no_page(make_service, tmp_path):
    (tmp_path / "secret.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))\n"
    )
    models = load(f"two={tmp_path / 'secret.py'}:net", trust_code=True, preprocessing="unit,channels=1")
    service = make_service(models, samples=("embedded:digits:0",))
    page = explain(service, service.sample_file(0), "two", "fringe:fast").files[0].read_text(encoding="utf-8")
    assert len(re.findall('name="class" value=', page)) == 2
    assert "two" in page
    assert str(tmp_path) not in page
    assert "secret" not in page


class Stop:
    """Stops the job of an owner at the first pass through the model for which ``when`` is true; counts the passes."""

    def __init__(self, service, owner, when):
        self.service, self.owner, self.when, self.passes = service, owner, when, 0
        self.hook = service.models["digits"].module.register_forward_pre_hook(self.note)

    def note(self, *_):
        self.passes += 1
        if self.when(self.passes):
            self.service.jobs.stop(self.owner)


@pytest.mark.parametrize(("call", "methods"), [(explain, ("digits", "ggig")), (compare, ("ig", "guided_ig"))])
def test_stop_ends_the_computation_within_a_pass_and_the_next_one_runs(digit, call, methods):
    held = Stop(digit[0], "a", lambda passes: passes == 5)
    with pytest.raises(StoppedError, match=r"Stopped\. Nothing is computed any more\."):
        call(*digit, *methods)
    assert held.passes == 5
    assert explain(*digit, owner="b").files


def test_scores_are_stopped_as_well(digit):
    """A metric has no progress of its own: the next pass through the model is what notices."""
    service, file = digit
    shown = []
    held = Stop(service, "a", lambda _: "scores" in shown[-1])

    def show(_, what):
        shown.append(what)
        held.passes = 0

    with pytest.raises(StoppedError):
        next(service.compare("a", show, file, "digits", "ig", "smoothgrad"))
    assert held.passes == 1


def test_the_time_limit_ends_a_computation(make_service):
    service = make_service(time_limit=0.2)
    service.models["digits"].module.register_forward_pre_hook(lambda *_: time.sleep(0.01))
    with pytest.raises(StoppedError, match=r"Stopped at the limit of 1 s\. A quick method"):
        explain(service, service.sample_file(0), method="ggig")


def test_the_time_limit_holds_for_the_decoding_of_an_image(make_service, monkeypatch):
    def slow(*_, **__):
        time.sleep(0.3)
        return Image.new("RGB", (8, 8))

    service = make_service(time_limit=0.2)
    file = service.sample_file(0)
    with monkeypatch.context() as patch:
        patch.setattr(_service, "open_image", slow)
        with pytest.raises(StoppedError, match="Stopped at the limit"):
            explain(service, file)
    service.jobs.seconds = 60.0
    assert explain(service, file).files


def test_files_of_an_owner_are_replaced_and_forgotten(digit):
    service, file = digit
    first, other, second = (explain(service, file, owner=owner) for owner in "aba")
    assert [result.files[0].exists() for result in (first, other, second)] == [False, True, True]
    compared = compare(service, file, "ig", "blur_ig")  # has buttons on the page, too, in a tab of its own
    assert all(path.exists() for path in (*second.files, *compared.files))
    service.forget("a")
    assert [result.files[0].exists() for result in (other, second, compared)] == [True, False, False]


def test_an_owner_who_leaves_while_files_are_written_leaves_none(digit, monkeypatch, tmp_path):
    def leave(*arguments):
        digit[0].forget("a")
        return page(*arguments)

    page = _service.page_text
    monkeypatch.setattr(_service, "page_text", leave)
    with pytest.raises(StoppedError):
        explain(*digit)
    assert not [path for path in (tmp_path / "app").rglob("*") if path.is_file() and path.parent.name != "samples"]


def test_a_picture_of_a_comparison_tells_two_settings_of_a_method_apart(digit, monkeypatch, small_figures):
    small_figures.undo()
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    compare(*digit, "fringe", "fringe:fast")
    texts = [text.get_text() for figure in figures for text in figure.findobj(Text)]
    assert {"FRInGe", "FRInGe (fast)"} <= set(texts)
    assert any(text.startswith("digits · ") for text in texts)  # the model's name in the list


def test_names_of_files_are_safe_names(digit, tmp_path):
    evil = tmp_path / "<img src=x onerror=alert(1)>.png"
    evil.write_bytes(digit[1].read_bytes())
    result = explain(digit[0], evil)
    assert result.files[0].name == "img_src_x_onerror_alert_1.html"
    assert "<img src=x" not in result.html


def test_samples_are_digits_for_the_digits_model_and_what_is_given_otherwise(make_service, tmp_path):
    assert [sample.title for sample in make_service().samples[:3]] == ["digit 0", "digit 1", "digit 2"]
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (5, 4)).save(folder / "0284_my_photo.png")
    (folder / "broken.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="sample left out"):
        service = make_service(samples=(str(folder),))
    assert [sample.title for sample in service.samples] == ["my photo"]
    models = {"other": replace(load_model("embedded:digits"), spec="other")}
    assert make_service(models).samples == ()
    models = {"photo": replace(next(iter(models.values())), spec="efficientnet_lite0")}
    assert [sample.title for sample in make_service(models).samples] == ["coffee", "cat"]
    with pytest.warns(UserWarning, match="of 26 samples the first 24 are offered"):
        assert len(make_service(samples=("embedded:digits:0:26",)).samples) == 24


def test_two_models_of_one_name_are_told_apart_by_the_person_who_starts():
    with pytest.raises(InputError, match="two models are called 'digits'; write digits-2=embedded:digits"):
        load("embedded:digits", "embedded:digits")
    assert list(load("embedded:digits", "second=embedded:digits")) == ["digits", "second"]


class Squares(torch.nn.Module):
    """A detector with a box for each square of 8 pixels, of two labels; with ``decisive`` weights some are likely."""

    def __init__(self, decisive):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Conv2d(3, 2, 8, 8)
        self.layer.weight.data *= decisive
        self.layer.bias.data.fill_(-1.0)

    def forward(self, x):
        logits = self.layer(x)
        rows, columns = (torch.arange(size) * 8.0 + 4 for size in logits.shape[-2:])
        centres = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).flatten(1).expand(len(x), -1, -1)
        return torch.cat([centres, torch.full_like(centres, 8.0), logits.flatten(2).sigmoid()], 1).movedim(1, 2)


def detector(decisive):
    net = fringe.Detector(Squares(decisive).eval(), read="yolo")
    recipe = fringe.models.Preprocessing.parse("resize=48x64")
    return LoadedModel("squares", net, recipe, ("nut", "bolt"), "0" * 64, "squares", "auto")


@pytest.fixture
def photo(tmp_path):
    file = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3)).astype(np.uint8)).save(file)
    return str(file)


def test_a_detector_of_the_list_shows_the_boxes_that_it_predicts(make_service, photo):
    loaded = detector(8.0)
    result = explain(make_service({"squares": loaded}), photo, "squares")
    expected = fringe.explain(loaded, photo, method="ig")
    assert len(expected) > 1
    with np.load(result.files[1]) as arrays:
        np.testing.assert_allclose(arrays["values"], expected.values.numpy(), atol=1e-6)
        np.testing.assert_allclose(arrays["boxes"], expected.context.boxes.numpy(), atol=1e-4)
    page = result.files[0].read_text(encoding="utf-8")
    assert len(re.findall(r"<script[^>]*application/json", page)) == len(expected)
    assert 'class="boxes"' in page


def test_a_detector_that_is_certain_of_nothing_shows_its_most_certain_box(make_service, photo):
    loaded = detector(0.1)
    with pytest.raises(InputError, match="no predicted box has a probability"):
        fringe.explain(loaded, photo, method="ig")
    with np.load(explain(make_service({"squares": loaded}), photo, "squares").files[1]) as arrays:
        assert len(arrays["values"]) == len(arrays["boxes"]) == 1


def test_a_detector_that_predicts_no_box_at_all_says_so(make_service, photo):
    """In the words of the call; not as a model that cannot take the image."""
    loaded = detector(8.0)
    none = fringe.Detector(loaded.module.model, read=lambda y: (y[:, :0, :4], y[:, :0, 4:]))
    service = make_service({"squares": replace(loaded, module=none)})
    for call in (
        lambda: explain(service, photo, "squares"),
        lambda: compare(service, photo, "ig", "smoothgrad", "squares"),
    ):
        with pytest.raises(InputError, match="the detector predicts no box at all; give another image"):
            call()


def test_a_comparison_of_a_detector_is_that_of_its_most_certain_box(make_service, photo):
    loaded = detector(8.0)
    result = compare(make_service({"squares": loaded}), photo, "ig", "smoothgrad", "squares")
    with np.load(result.files[1]) as arrays:
        expected = fringe.explain(loaded, photo, method="ig", boxes=1).values[0].numpy()
        np.testing.assert_allclose(arrays["ig"], expected, atol=1e-6)
        assert {"box", "box_centre", "box_edge"} <= set(arrays)
