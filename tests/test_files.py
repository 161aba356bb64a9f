"""Files are replaced in one step, and names that are mistyped get a suggestion."""

import os
from types import SimpleNamespace

import pytest

from fringe import InputError
from fringe._files.disk import when_free, write_atomic
from fringe.errors import did_you_mean, require_choice


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path, durable):
    path = tmp_path / "a.json"
    for content in (b"old", b"new, and longer", b""):
        write_atomic(path, content, durable=durable)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("step", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, step, error):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fails(*_):
        raise error

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(type(error)):
        write_atomic(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_durable_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    steps, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("sync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("rename"), replace(*names)))
    write_atomic(tmp_path / "a", b"1", durable=True)
    assert steps == ["sync", "rename", "sync"]
    steps.clear()
    write_atomic(tmp_path / "a", b"2")
    assert steps == ["rename"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"theirs")
    (tmp_path / "a").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "a", b"ours")
    assert (tmp_path / "target").read_bytes() == b"theirs"
    assert (tmp_path / "a").read_bytes() == b"ours"


def in_use(winerror=None):
    """What Windows raises about a file that another process has open."""
    error = PermissionError(13, "The process cannot access the file")
    if winerror is not None:
        error.winerror = winerror
    return error


@pytest.mark.parametrize("winerror", [5, 32])
def test_windows_is_asked_again_to_replace_a_file_that_is_being_read(tmp_path, monkeypatch, winerror):
    tries, pauses, replace = [in_use(winerror), in_use(winerror)], [], os.replace
    monkeypatch.setattr("fringe._files.disk.time", SimpleNamespace(sleep=pauses.append))  # other threads sleep, too

    def busy(*names):
        if tries:
            raise tries.pop()
        replace(*names)

    monkeypatch.setattr(os, "replace", busy)
    (tmp_path / "a").write_bytes(b"old")
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]
    assert len(pauses) == 2


@pytest.mark.parametrize(
    ("error", "tries"), [(in_use(32), 5), (in_use(), 1), (in_use(19), 1), (OSError(28, "No space left on device"), 1)]
)
def test_only_a_file_in_use_is_waited_for_and_for_a_second_at_most(monkeypatch, error, tries):
    pauses, calls = [], []
    monkeypatch.setattr("fringe._files.disk.time", SimpleNamespace(sleep=pauses.append))  # other threads sleep, too

    def fails():
        calls.append(1)
        raise error

    with pytest.raises(OSError) as caught:
        when_free(fails)
    assert caught.value is error
    assert (len(calls), sum(pauses) <= 1) == (tries, True)


def test_suggestions():
    assert did_you_mean("stps", ["tau", "steps"]) == "did you mean 'steps'?"
    assert did_you_mean("resnet81", ["resnet18", "resnet101", "vgg"], n=2) == "did you mean 'resnet18' or 'resnet101'?"
    assert did_you_mean("zzz", ["tau"]) is None
    require_choice("setting", "tau", ["tau"])
    with pytest.raises(InputError, match=r"^setting: got 'taau', expected one of tau; did you mean 'tau'\?$") as caught:
        require_choice("setting", "taau", ["tau"])
    assert caught.value.argument == "setting"
    with pytest.raises(InputError, match=r"^setting: got 'zzz', expected none$"):
        require_choice("setting", "zzz", [])
