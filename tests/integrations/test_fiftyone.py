"""Labels of FiftyOne, in a data set of FiftyOne. In place of its database, ``mongomock`` has one in memory."""

import dataclasses
import json
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mongomock")
if "fiftyone" not in sys.modules:  # importing it reads these
    os.environ.update(FIFTYONE_DATABASE_URI="mongodb://127.0.0.1:1", FIFTYONE_DISABLE_SERVICES="1")
    os.environ["FIFTYONE_DO_NOT_TRACK"] = "true"
fo = pytest.importorskip("fiftyone")

import fringe  # noqa: E402
from fringe.errors import InputError  # noqa: E402
from fringe.integrations import fiftyone_labels  # noqa: E402


@pytest.fixture
def database(monkeypatch):
    """One database in memory for all clients of FiftyOne."""
    import fiftyone.core.odm.database as database
    import mongoengine.connection as connection
    import mongomock
    import pymongo
    from mongomock.store import ServerStore

    store = ServerStore()

    class Client(mongomock.MongoClient):
        _closed = False

        def __init__(self, *args, **kwargs):
            unknown = ("compressors", "appname", "uuidRepresentation", "uuidrepresentation")
            super().__init__(*args, _store=store, **{k: v for k, v in kwargs.items() if k not in unknown})

        def server_info(self):
            return {"version": "7.0.0", "versionArray": [7, 0, 0, 0]}

    monkeypatch.setattr(pymongo, "MongoClient", Client)
    monkeypatch.setattr(connection, "MongoClient", Client)
    yield
    database._disconnect()


@pytest.fixture(scope="module")
def result():
    return fringe.explain("embedded:digits", "embedded:digits:0:2", method="ig")


def test_labels_are_the_map_the_class_and_the_verdict(result):
    for i, labels in enumerate(fiftyone_labels(result)):
        sample = fo.Sample(filepath=f"/digits/{i}.png")
        sample.update_fields(labels)
        values = result.values[i].sum(0).numpy()
        np.testing.assert_array_equal(sample["fringe"].map, values)
        assert sample["fringe"].range == pytest.approx([-abs(values).max(), abs(values).max()])
        assert sample["fringe_class"].label == result.labels(i)[0]
        assert sample["fringe_class"].confidence == pytest.approx(result.context.probabilities[i].max().item())
        assert sample["fringe_verdict"].label == result.verdict[i]


def test_a_map_of_nan_has_a_range(result):
    nothing = dataclasses.replace(result, values=result.values * torch.nan)
    assert [labels["fringe"].range for labels in fiftyone_labels(nothing)] == [[-1, 1]] * 2


def test_of_several_classes_the_first_is_shown():
    several = fringe.explain("embedded:digits", "embedded:digits:3", method="ig", target="top3")
    one = fringe.explain("embedded:digits", "embedded:digits:3", method="ig")
    (labels,), (expected,) = fiftyone_labels(several, "ig"), fiftyone_labels(one)
    np.testing.assert_allclose(labels["ig"].map, expected["fringe"].map, atol=1e-5)
    assert labels["ig_class"].label == expected["fringe_class"].label == "3"


def test_a_data_set_keeps_them_on_the_disk(result, database, tmp_path):
    dataset = fo.Dataset()
    for i, labels in enumerate(fiftyone_labels(result)):
        file = tmp_path / f"{i}.png"
        Image.fromarray((result.context.picture(result.context.inputs[i])[..., 0] * 255).astype(np.uint8)).save(file)
        sample = fo.Sample(filepath=str(file))
        sample.update_fields(labels)
        dataset.add_sample(sample)
    assert [sample["fringe_verdict"].label for sample in dataset] == list(result.verdict)
    np.testing.assert_array_equal(dataset.first()["fringe"].map, result.values[0].sum(0).numpy())
    dataset.export(export_dir=str(tmp_path / "set"), dataset_type=fo.types.FiftyOneDataset, progress=False)
    stored = json.loads((tmp_path / "set" / "samples.json").read_text())["samples"]
    assert [sample["fringe_class"]["label"] for sample in stored] == ["0", "1"]


def test_what_is_no_image_is_refused():
    table = fringe.explain(torch.nn.Linear(4, 3), torch.randn(2, 4), kind="tabular", method="ig")
    with pytest.raises(InputError, match=r"result: the attribution holds no images; use fringe\.explain on images"):
        fiftyone_labels(table)
