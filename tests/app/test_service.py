"""What the app lets people ask for, without a web server: the list of models, the limits, and the results."""

import json
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image

import fringe
from fringe.app import Limits, Service, _service, load_models
from fringe.app._blocks import _follow
from fringe.app._fragments import comparison
from fringe.app._worker import reason
from fringe.attribution import METHODS
from fringe.errors import InputError, ModelError
from fringe.models import load_model


@pytest.fixture
def make_service(tmp_path):
    services = []

    def make(models=None, samples=None, **limits):
        folder = tmp_path / f"app-{len(services)}"
        services.append(Service(models or load_models(["embedded:digits"]), folder, Limits(**limits), samples))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture
def digit(make_service):
    """A service, and the file of its first sample."""
    service = make_service()
    return service, service.sample_file(0)


def ended(job):
    assert job.wait(60)
    return job


def test_the_models_are_those_of_the_list_and_nothing_is_loaded_by_a_name_from_outside(digit):
    service, file = digit
    for name in ("embedded:digits", "torchvision:resnet18@random", "os:system", "", "nothing"):
        with pytest.raises(InputError, match="this model is not in the list; choose one of the list"):
            service.explain("a", file, name, "ig")
        with pytest.raises(InputError, match="this model is not in the list"):
            service.compare("a", file, name, ("ig", "fringe"))
    assert list(service.models) == ["digits"]


def test_methods_that_need_other_images_are_not_offered(digit):
    service, file = digit
    assert list(service.methods)[:2] == ["fringe", "fringe:preview"]
    assert {"ig", "guided_ig", "smoothgrad"} <= set(service.methods)
    for name in ("expected_gradients", "geoig_knn", "ig2", "fringe:paper", "nothing"):
        with pytest.raises(InputError, match="this method is not in the list"):
            service.explain("a", file, "digits", name)


@pytest.mark.parametrize("method", ["fringe:preview", "ig", "smoothgrad"])
def test_an_explanation_is_a_page_and_three_files(digit, method):
    service, file = digit
    result = ended(service.explain("a", file, "digits", method)).result
    assert [path.suffix for path in result.files] == [".html", ".npz", ".png"]
    assert result.files[0].read_text(encoding="utf-8") == result.page
    with np.load(result.files[1]) as arrays:
        assert arrays["input"].shape == (1, 32, 32)
        assert arrays["values"].shape[-3:] == (1, 32, 32)
        assert float(arrays["probabilities"].sum()) == pytest.approx(1, abs=1e-5)
    with Image.open(result.files[2]) as picture:
        assert picture.format == "PNG"
    assert "digits-0000" in result.page


def test_the_map_is_that_of_the_library(digit):
    service, file = digit
    result = ended(service.explain("a", file, "digits", "ig")).result
    expected = fringe.explain("embedded:digits", "embedded:digits:0", method="ig").values[0].numpy()
    with np.load(result.files[1]) as arrays:
        np.testing.assert_allclose(arrays["values"], expected, atol=1e-6)


def test_a_comparison_has_the_scores_of_the_library_and_of_blind_maps(digit):
    service, file = digit
    result = ended(service.compare("a", file, "digits", ("fringe:preview", "ig"))).result
    assert [row.label for row in result.comparison.rows] == [
        "fringe:preview",
        "ig",
        "zero",
        "random",
        "uniform",
        "edge",
        "diffusion",
    ]
    loaded = load_model("embedded:digits")
    x = torch.stack([loaded.preprocessing.normalise(loaded.preprocessing.pixels(Image.open(file)))])
    expected = fringe.compare(loaded.module, x, ["ig"], ["insertion"], controls=False).rows[0].scores["insertion"]
    assert float(result.comparison.rows[1].scores["insertion"].values) == pytest.approx(float(expected.values))
    assert [path.suffix for path in result.files] == [".csv", ".npz", ".png"]
    assert len(result.files[0].read_text().splitlines()) == 1 + 7 * 4
    said = "Controls do not look at the model"
    assert f"{said}; only diffusion runs it" in comparison(result)
    other = ended(service.compare("a", file, "digits", ("ig", "smoothgrad"))).result
    assert f"{said}. A score" in comparison(other)
    assert "<th scope='row'>Integrated Gradients</th>" in comparison(other)  # as the list of methods calls it


def test_a_score_that_is_not_better_than_every_control_is_marked(digit):
    service, file = digit
    result = ended(service.compare("a", file, "digits", ("ig", "smoothgrad"))).result
    html = comparison(result)
    rows = result.comparison.rows
    marked = []
    for row in [row for row in rows if not row.control]:
        cells = re.search(rf"{result.titles[row.label]}</th>(.*?)</tr>", html)[1].split("</td>")
        for (label, metric), cell in zip(result.comparison.metrics.items(), cells, strict=False):
            sign = 1 if metric.direction == "higher" else -1
            best = max(sign * other.scores[label].values[0] for other in rows if other.control)
            marked.append("‡" in cell)
            assert marked[-1] == (not sign * row.scores[label].values[0] > best)
    assert len(marked) == 8
    assert any(marked)
    assert not all(marked)
    assert "‡: not better than every control." in html


def test_a_method_that_fails_in_a_comparison_is_said_without_words_for_programmers(digit, monkeypatch, caplog):
    service, file = digit

    def attribute(*_):
        raise InputError("got 3, expected torch.float32", argument="quadrature")

    monkeypatch.setattr(METHODS["blur_ig"], "attribute", attribute)
    html = comparison(ended(service.compare("a", file, "digits", ("ig", "blur_ig"))).result)
    assert "This method failed for this image and model. The terminal of the app shows more." in html
    assert "torch" not in html
    assert "blur_ig failed in a comparison of the app: quadrature: got 3" in caplog.text


def test_an_image_is_decoded_by_the_thread_that_computes_within_its_limit(make_service, monkeypatch):
    decoding, free = threading.Event(), threading.Event()

    def slow(*_, **__):
        decoding.set()
        free.wait(60)
        return Image.new("RGB", (8, 8))

    service = make_service(time_limit=0.2)
    file = service.sample_file(0)
    monkeypatch.setattr(_service, "open_image", slow)
    first = service.explain("a", file, "digits", "ig")
    assert decoding.wait(60)
    second = service.explain("b", file, "digits", "ig")  # is not held up, and waits
    assert service.worker.status(second).ahead == 1
    assert not first.wait(0.3)
    free.set()
    assert ended(first).state == "expired"


def test_an_image_of_thousands_of_scans_is_refused_in_words(digit, tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.jpg", progressive=True)
    data = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 6000 + b"\xff\xd9")
    said = reason(ended(digit[0].explain("a", tmp_path / "a.jpg", "digits", "ig")).error)
    assert said == "This file: has 6010 scans, more than 100; choose another image."


def test_a_press_is_answered_before_anything_is_done(digit):
    updates = _follow(digit[0], lambda: pytest.fail("not yet"), str)
    assert "Beginning" in next(updates)[0]


def test_a_comparison_reads_a_model_of_probabilities_as_such(make_service):
    loaded = load_model("embedded:digits")
    module = torch.nn.Sequential(loaded.module, torch.nn.Softmax(dim=1)).eval()
    service = make_service({"digits": replace(loaded, module=module, output="probabilities")})
    file = service.sample_file(0)
    result = ended(service.compare("a", file, "digits", ("ig", "blur_ig"))).result
    classifier, x = fringe.Classifier(module, output="probabilities"), loaded.prepare([Image.open(file)])
    expected = fringe.compare(classifier, x, ["ig"], ["insertion"], controls=False).rows[0].scores["insertion"]
    assert float(result.comparison.rows[0].scores["insertion"].values) == pytest.approx(float(expected.values))


def test_a_class_without_a_name_has_its_number(make_service):
    service = make_service(load_models(["embedded:digits"], class_names=[""] * 10))
    result = ended(service.compare("a", service.sample_file(3), "digits", ("ig", "blur_ig"))).result
    assert result.target == "class 3"


def test_the_same_method_twice_is_refused(digit):
    service, file = digit
    with pytest.raises(InputError, match="both methods are the same"):
        service.compare("a", file, "digits", ("ig", "ig"))


def test_nothing_chosen(digit):
    with pytest.raises(InputError, match="no image is chosen; drop one into the field, or pick a sample"):
        digit[0].explain("a", None, "digits", "ig")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no image", "This file: not an image of the formats"),
        (b"", "This file: is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "This file: not an image of the formats|This file: cannot be decoded"),
    ],
)
def test_a_bad_file_is_refused_and_its_folder_is_not_named(digit, tmp_path, content, message):
    file = tmp_path / "secret-folder" / "photo.png"
    file.parent.mkdir()
    file.write_bytes(content)
    error = ended(digit[0].explain("a", file, "digits", "ig")).error
    text = reason(error)
    assert re.match(message, text)
    assert "secret-folder" not in text


def test_an_image_of_too_many_pixels_is_refused_by_its_header(make_service, tmp_path):
    service = make_service(max_pixels=100)
    Image.new("L", (11, 10)).save(tmp_path / "large.png")
    error = ended(service.explain("a", tmp_path / "large.png", "digits", "ig")).error
    assert reason(error) == "This file: 11x10 is more than 100 pixels; choose another image."


def test_a_truncated_file_is_refused_in_words(digit, tmp_path):
    Image.effect_noise((64, 64), 80).save(tmp_path / "image.jpg")
    (tmp_path / "image.jpg").write_bytes((tmp_path / "image.jpg").read_bytes()[:1000])
    error = ended(digit[0].explain("a", tmp_path / "image.jpg", "digits", "ig")).error
    assert re.fullmatch(
        r"This file: cannot be decoded \(image file is truncated.*\); choose another image\.", reason(error)
    )


def test_a_model_that_keeps_the_size_of_an_image_has_a_limit_as_well(make_service, tmp_path):
    models = load_models(["embedded:digits"], preprocessing="unit,channels=1,mean=0,std=1")
    service = make_service(models, max_input_pixels=2000)
    Image.new("L", (50, 41)).save(tmp_path / "image.png")
    job = ended(service.explain("a", tmp_path / "image.png", "digits", "ig"))
    assert reason(job.error) == "The model would get 50 x 41 pixels, more than 2000; shrink the image."


def test_a_model_that_cannot_take_the_image_says_so(make_service, tmp_path):
    models = load_models(["embedded:digits"], preprocessing="unit,channels=1,mean=0,std=1")
    Image.new("L", (4, 4)).save(tmp_path / "tiny.png")
    job = ended(make_service(models).explain("a", tmp_path / "tiny.png", "digits", "ig"))
    assert reason(job.error) == "The model cannot take an image of 4 x 4 pixels; try another image or model."


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ('ValueError("not square")', "The model cannot take an image of 8 x 8 pixels; try another image or model."),
        ('torch.OutOfMemoryError("")', "There is not enough memory for this image, model and method."),
    ],
)
def test_whatever_the_model_raises_for_the_image_is_said(make_service, tmp_path, raised, said):
    code = f"import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        raise {raised}\n"
    (tmp_path / "net.py").write_text(code)
    models = load_models([f"{tmp_path / 'net.py'}:Net"], preprocessing="resize=8,mean=0,std=1", trust_code=True)
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    job = ended(make_service(models).explain("a", tmp_path / "image.png", "Net", "ig"))
    assert reason(job.error) == said


MORE = "; choose another model. The terminal of the app shows more."


@pytest.mark.parametrize("what", ["explain", "compare"])
@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("z.softmax(1)", f"The output of this model cannot be read as one score for each class{MORE}"),
        ("z * float('nan')", "The model's scores for this image are no finite numbers; try another image or model."),
        ("z.detach()", f"This model has no gradients that the method can use{MORE}"),
    ],
)
def test_what_is_wrong_is_said_of_the_field_that_people_see(make_service, tmp_path, what, output, said):
    code = (
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        f"        z = x.flatten(1)[:, :4]\n        return {output}\n"
    )
    (tmp_path / "net.py").write_text(code)
    models = load_models([f"{tmp_path / 'net.py'}:Net"], preprocessing="resize=8,mean=0,std=1", trust_code=True)
    Image.effect_noise((8, 8), 80).save(tmp_path / "image.png")
    methods = "ig" if what == "explain" else ("ig", "fringe")
    job = ended(getattr(make_service(models), what)("a", tmp_path / "image.png", "Net", methods))
    assert reason(job.error) == said


def test_a_model_of_two_classes_is_explained_for_both(make_service, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))\n"
    )
    models = load_models([f"two={tmp_path / 'net.py'}:net"], trust_code=True, preprocessing="unit,channels=1")
    service = make_service(models, samples=["embedded:digits:0"])
    job = ended(service.explain("a", service.sample_file(0), "two", "fringe:preview"))
    assert job.state == "done", reason(job.error)
    assert len(re.findall('name="class" value=', job.result.page)) == 2


class Held:
    """Counts the passes through the model of a service, and holds the first of the worker for which ``when`` is true
    until it is let go."""

    def __init__(self, service, when):
        self.worker, self.when, self.passes = service.worker, when, 0
        self.reached, self.free = threading.Event(), threading.Event()
        service.models["digits"].module.register_forward_pre_hook(self.note)

    def note(self, *_):
        self.passes += 1
        job = self.worker._running
        if job is not None and not self.reached.is_set() and self.when(self.passes, job.status()):
            self.reached.set()
            self.free.wait(60)


@pytest.mark.parametrize("what", ["explain", "compare"])
def test_stop_ends_the_computation_within_a_pass_and_the_next_one_runs(digit, what):
    service, file = digit
    held = Held(service, lambda passes, status: passes == 5)
    methods = "ggig" if what == "explain" else ("ig", "guided_ig")
    job = getattr(service, what)("a", file, "digits", methods)
    assert held.reached.wait(60)
    service.worker.stop("a")
    held.free.set()
    assert ended(job).state == "stopped"
    assert held.passes == 5
    assert ended(service.explain("b", file, "digits", "ig")).state == "done"


def test_scores_are_stopped_as_well(digit):
    """A metric has no progress of its own: the next pass through the model is what notices."""
    service, file = digit
    held = Held(service, lambda passes, status: "scores" in status.what)
    job = service.compare("a", file, "digits", ("ig", "smoothgrad"))
    assert held.reached.wait(60)
    service.worker.stop("a")
    count = held.passes
    held.free.set()
    assert ended(job).state == "stopped"
    assert held.passes == count


def test_the_time_limit_ends_a_computation(make_service):
    service = make_service(time_limit=0.2)
    service.models["digits"].module.register_forward_pre_hook(lambda *_: time.sleep(0.01))
    assert ended(service.explain("a", service.sample_file(0), "digits", "ggig")).state == "expired"


def test_files_of_an_owner_are_replaced_and_forgotten(digit):
    service, file = digit
    first = ended(service.explain("a", file, "digits", "ig")).result
    other = ended(service.explain("b", file, "digits", "ig")).result
    second = ended(service.explain("a", file, "digits", "ig")).result
    assert [result.files[0].exists() for result in (first, other, second)] == [False, True, True]
    service.forget("a")
    assert [result.files[0].exists() for result in (other, second)] == [True, False]


def test_a_comparison_leaves_the_files_of_an_explanation(digit):
    """Both have buttons on the page, each in a tab of its own."""
    service, file = digit
    explained = ended(service.explain("a", file, "digits", "ig")).result
    compared = ended(service.compare("a", file, "digits", ("ig", "blur_ig"))).result
    assert all(path.exists() for path in (*explained.files, *compared.files))
    service.forget("a")
    assert not any(path.exists() for path in (*explained.files, *compared.files))


def test_an_owner_who_leaves_while_files_are_written_leaves_none(digit, monkeypatch, tmp_path):
    service, file = digit

    def leave(*arguments):
        service.forget("a")
        return page(*arguments)

    page = _service.render_page
    monkeypatch.setattr(_service, "render_page", leave)
    assert ended(service.explain("a", file, "digits", "ig")).state == "stopped"
    assert [path.name for path in (tmp_path / "app-0").iterdir()] == ["samples"]


def test_a_picture_of_a_comparison_tells_two_settings_of_a_method_apart(digit):
    service, file = digit
    job = ended(service.compare("a", file, "digits", ("fringe", "fringe:preview")))
    assert job.state == "done", reason(job.error)
    texts = [text.get_text() for text in job.result.comparison.plot().findobj(Text)]
    assert {"FRInGe", "FRInGe (preview)"} <= set(texts)
    assert any(text.startswith("digits · ") for text in texts)  # the model's name in the list


def test_no_spec_and_no_path_of_this_machine_reaches_the_page(make_service, tmp_path):
    (tmp_path / "secret.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
    )
    models = load_models([f"mine={tmp_path / 'secret.py'}:net"], trust_code=True, preprocessing="unit,channels=1")
    service = make_service(models, samples=["embedded:digits:0"])
    result = ended(service.explain("a", service.sample_file(0), "mine", "ig")).result
    assert "mine" in result.page
    assert str(tmp_path) not in result.page
    assert "secret" not in result.page


def test_names_of_files_are_safe_names(digit, tmp_path):
    service, file = digit
    evil = tmp_path / "<img src=x onerror=alert(1)>.png"
    evil.write_bytes(file.read_bytes())
    result = ended(service.explain("a", evil, "digits", "ig")).result
    assert result.name == "img_src_x_onerror_alert_1"
    assert "<img src=x" not in result.page


def test_samples_are_digits_for_the_digits_model_and_what_is_given_otherwise(make_service, tmp_path):
    assert [sample.title for sample in make_service().samples[:3]] == ["digit 0", "digit 1", "digit 2"]
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (5, 4)).save(folder / "0284_my_photo.png")
    (folder / "broken.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="sample left out"):
        service = make_service(samples=[str(folder)])
    assert [sample.title for sample in service.samples] == ["my photo"]
    models = {"other": replace(load_model("embedded:digits"), spec="other")}
    assert make_service(models).samples == ()
    with pytest.warns(UserWarning, match="of 26 samples the first 24 are offered"):
        assert len(make_service(samples=["embedded:digits:0:26"]).samples) == 24


def test_two_models_of_one_name_are_told_apart_by_the_person_who_starts(tmp_path):
    with pytest.raises(InputError, match="two models are called 'digits'; write digits-2=embedded:digits"):
        load_models(["embedded:digits", "embedded:digits"])
    assert list(load_models(["embedded:digits", "second=embedded:digits"])) == ["digits", "second"]
    with pytest.raises(InputError, match="model: got no model"):
        Service({}, tmp_path)


def test_code_runs_only_with_trust(tmp_path):
    (tmp_path / "net.py").write_text("raise SystemExit\n")
    with pytest.raises(ModelError, match="trust_code=True"):
        load_models([f"{tmp_path / 'net.py'}:net"], preprocessing="unit")


def test_the_page_holds_its_document(digit):
    service, file = digit
    page = ended(service.explain("a", file, "digits", "fringe:preview")).result.page
    document = re.search(r"<script[^>]*application/json[^>]*>(.*?)</script>", page, re.DOTALL)
    assert document is not None
    assert json.loads(document[1])["schema"].startswith("fringe/explanation/")
