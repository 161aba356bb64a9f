"""The callback of Lightning: the fit is the same with it and without it, and every logger gets the explanations."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L = pytest.importorskip("lightning.pytorch")

from fringe.errors import InputError  # noqa: E402
from fringe.integrations import ExplainCallback  # noqa: E402

SILENT = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(L.LightningModule):
    """A network whose training depends on its modes, its buffers and every random number."""

    def __init__(self):
        super().__init__()
        layers = (nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        self.net = nn.Sequential(*layers, nn.Linear(4 * 9, 3))
        self.net[0].bias.requires_grad_(False)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        noise = random.random() + torch.rand_like(x)
        return nn.functional.cross_entropy(self(x + 0.1 * noise), y)

    def validation_step(self, batch, index):
        self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], 0.1)


def data(as_batch=tuple):
    x = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(24) % 3
    pairs = TensorDataset(x, y)
    return DataLoader(pairs, 8, shuffle=True), DataLoader(pairs, 8, collate_fn=collate(as_batch))


def collate(as_batch):
    def join(rows):
        return as_batch(torch.stack(column) for column in zip(*rows, strict=True))

    return join


def fit(folder, *callbacks, epochs=3, as_batch=tuple, **options):
    L.seed_everything(0, verbose=False)
    net = Net()
    trainer = L.Trainer(
        max_epochs=epochs, callbacks=list(callbacks), default_root_dir=folder, enable_checkpointing=False,
        **{**SILENT, **options},
    )  # fmt: skip
    trainer.fit(net, *data(as_batch))
    return net, trainer


def state(net):
    flags = [(module.training, [p.requires_grad for p in module.parameters()]) for module in net.modules()]
    numbers = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    return flags, numbers, [None if p.grad is None else p.grad.tolist() for p in net.parameters()]


def test_a_fit_is_the_same_bit_for_bit_with_the_callback(tmp_path):
    plain, _ = fit(tmp_path)
    expected = state(plain)
    explained, _ = fit(tmp_path, ExplainCallback(n=2))
    assert state(explained) == expected
    for name, value in plain.state_dict().items():
        assert torch.equal(value, explained.state_dict()[name]), name
    folders = sorted(path.name for path in (tmp_path / "explanations").iterdir())
    assert folders == ["step-00000003", "step-00000006", "step-00000009"]  # and none of the check before the fit
    pages = sorted(path.name for path in (tmp_path / "explanations" / folders[0]).glob("*.html"))
    assert pages == ["image-0.html", "image-1.html"]


def test_images_of_ones_own_are_explained_every_second_epoch_with_options(tmp_path):
    callback = ExplainCallback(
        torch.rand(1, 1, 8, 8), every=2, method="ig", name="maps", classes=["ant", "bee", "cow"], target=1
    )
    fit(tmp_path, callback, epochs=4)
    pages = sorted((tmp_path / "maps").glob("*/image-0.html"))
    seen = [(path.parent.name, "bee" in path.read_text(encoding="utf-8")) for path in pages]
    assert seen == [("step-00000006", True), ("step-00000012", True)]


def test_every_logger_gets_the_explanations(tmp_path):
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    loggers = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "tb")]
    fit(tmp_path, ExplainCallback(n=1, method="ig"), epochs=1, logger=loggers)
    for name in ("csv", "tb"):
        folder = tmp_path / name / "lightning_logs" / "version_0"
        assert (folder / "explanations" / "step-00000003" / "image-0.html").is_file()
    metrics = (tmp_path / "csv" / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "explanations/share_ok" in metrics
    assert list((tmp_path / "tb").rglob("events*"))


@pytest.mark.thorough
def test_mlflow_and_wandb_get_them_through_their_loggers(tmp_path, monkeypatch):
    mlflow, _ = pytest.importorskip("mlflow"), pytest.importorskip("wandb")
    from lightning.pytorch.loggers import MLFlowLogger, WandbLogger

    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CACHE_DIR": "cache",
        "WANDB_DATA_DIR": "data",
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "wandb").mkdir()
    uri = f"sqlite:///{tmp_path}/runs.db"
    tracker = MLFlowLogger("digits", tracking_uri=uri, artifact_location=(tmp_path / "files").as_uri())
    board = WandbLogger(project="digits", offline=True, save_dir=tmp_path)
    fit(tmp_path, ExplainCallback(n=1, method="ig"), epochs=1, logger=[tracker, board])
    assert {"explanations/share_ok", "trainer/global_step"} <= {*board.experiment.summary.keys()}
    assert len(list((Path(board.experiment.dir) / "media").rglob("*.html"))) == 1
    board.experiment.finish()
    names = [file.path for file in mlflow.MlflowClient(uri).list_artifacts(tracker.run_id, "explanations")]
    assert names == ["explanations/step-00000003"]


def test_an_error_of_the_first_explanation_ends_the_fit_and_a_later_one_does_not(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="nosuch"):
        fit(tmp_path, ExplainCallback(method="nosuch"))
    callback = ExplainCallback(n=1, method="ig")
    real = Net.forward

    def broken(self, x):
        if callback._has_run and len(x) == 1:
            raise RuntimeError("no space is left")
        return real(self, x)

    monkeypatch.setattr(Net, "forward", broken)
    with pytest.warns(UserWarning, match=r"no explanation at step 9: .*no space is left"):
        _, trainer = fit(tmp_path, callback)
    assert trainer.global_step == 9


def test_a_batch_that_does_not_begin_with_a_tensor_asks_for_images(tmp_path):
    def named(columns):
        return dict(zip((0, 1), columns, strict=True))  # as a batch of names

    with pytest.raises(InputError, match=r"images: the validation batch is a dict .*; pass ExplainCallback\(images="):
        fit(tmp_path, ExplainCallback(), as_batch=named)


@pytest.mark.parametrize("name", ["every", "n"])
def test_counts_are_positive(name):
    with pytest.raises(InputError, match=name):
        ExplainCallback(**{name: 0})
