"""A run in an object store: the server of moto on the loopback stands for S3."""

import importlib
import logging
import sys
from pathlib import Path, PureWindowsPath

import pytest
from small_plans import small
from synthetic_units import commit, expected, manifest, table

from fringe._files.urls import url_of
from fringe.bench.experiments import RunLog, RunOptions, pending_tasks, read_results, read_status, run_plan
from fringe.bench.experiments._store import Store
from fringe.data import ImageError, find_inputs
from fringe.errors import FringeError, InputError, TransientError


@pytest.fixture(scope="module")
def server():
    """The address of an S3 server of this process."""
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra s3)")
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """The URL of an empty prefix."""
    import boto3

    known = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**known, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    import fsspec

    fsspec.get_filesystem_class("s3").clear_instance_cache()
    boto3.client("s3", endpoint_url=server).create_bucket(Bucket="bucket")
    return f"s3://bucket/{tmp_path.name}"


def test_the_url_of_a_path_has_both_slashes():
    assert url_of(Path("s3://bucket/run/")) == url_of("s3://bucket/run") == "s3://bucket/run"
    assert url_of("gs://b") == "gs://b"
    assert url_of("s3://") is url_of(Path("s3://")) is None
    assert url_of(PureWindowsPath("s3://bucket/a/run")) == "s3://bucket/a/run"  # it has backslashes
    assert url_of(PureWindowsPath("C:/s3/run")) is None
    assert [url_of(path) for path in ("run", "/s3/run", "a:b/c", "C:\\run", "file:///x", "ftp://x")] == [None] * 6


@pytest.mark.timeout(300)
def test_a_run_in_a_bucket_is_resumed_and_read(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = run_plan(small(n=2), Path(bucket), RunOptions(save_maps=True))
    assert (first.stopped, first.log.count("done")) == (None, 2)
    assert run_plan(small(n=2), Path(bucket), RunOptions()).log.reports == []
    second = run_plan(small(n=3), Path(bucket), RunOptions())
    assert second.log.count("done") == 1
    here = run_plan(small(n=3), tmp_path / "here", RunOptions())
    assert here.stopped is None
    store = Store(Path(bucket), create=False)
    assert table(store).keys() == table(Store(tmp_path / "here")).keys()
    there, local = (read_results(one) for one in (store, tmp_path / "here"))
    assert there.scores("digits", "ig", "insertion").tolist() == local.scores("digits", "ig", "insertion").tolist()
    assert {cell["missing"] for cell in read_status(Path(bucket))["plans"]["digits"]["cells"]} == {0}
    assert read_status(Path(bucket))["plans"]["digits"]["lost_maps"] == []
    setting = first.resolved.manifest.setting_key("digits", "ig")
    images = [image["digest"] for image in first.resolved.manifest.images]
    assert store.load_maps(setting, images).keys() == set(images)
    names = [name.rpartition("/")[2] for name in store.bucket._fs.ls(store.bucket._path, detail=False)]
    assert sorted(name[:10] for name in names) == ["generation", "maps", "run.db-000"]  # of one generation
    assert [path.name for path in tmp_path.iterdir()] == ["here"]  # no folder named s3:


def test_of_two_writers_the_second_one_stops(bucket):
    one, other = Store(Path(bucket)), Store(Path(bucket))
    first, second = pending_tasks(manifest(("fine",), 4), (), 2)
    commit(one, first)
    commit(other, second)
    one.close()
    with pytest.raises(TransientError, match="another run wrote here meanwhile; what this one computed since its last"):
        other.close()
    assert len(table(Store(Path(bucket), create=False))) == 2 * 2
    with Store(Path(bucket)) as again:
        commit(again, second)
    assert table(Store(Path(bucket), create=False)) == expected(manifest(("fine",), 4))


def test_other_objects_and_absent_buckets_are_refused(bucket):
    store = Store(Path(bucket))
    store.bucket._fs.pipe_file(f"{store.bucket._path}/thesis.tex", b"x")
    with pytest.raises(InputError, match=r"out: .* holds objects that are no results of a run \(thesis.tex\)"):
        Store(Path(bucket))
    with pytest.raises(InputError, match="holds no run of this program"):
        Store(Path(f"{bucket}/more"), create=False)
    with pytest.raises(InputError, match="there is no such bucket"), Store(Path("s3://nowhere-else/run")) as none:
        commit(none, pending_tasks(manifest(("fine",), 2), (), 2)[0])


def test_a_store_that_does_not_answer_is_no_missing_result(bucket, monkeypatch):
    store = Store(Path(bucket))
    commit(store, pending_tasks(manifest(("fine",), 2), (), 2)[0])

    def fails(*given, **named):
        raise OSError(5, "Input/output error")

    for name in ("cat_file", "pipe_file", "put_file", "ls", "info"):
        monkeypatch.setattr(store.bucket._fs, name, fails)
    for look in (store.close, store.bucket.names, lambda: store.bucket.fetch_map("maps/a/b.safetensors")):
        monkeypatch.setattr(store.bucket._fs, "get_file", fails)
        with pytest.raises(TransientError, match=r"s3://bucket/.*OSError: .*nothing that was copied before is lost"):
            look()


def implementations():
    """The file systems of fsspec by scheme, those that were asked for before."""
    return importlib.import_module("fsspec.registry")._registry


@pytest.mark.parametrize(
    ("scheme", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gs"), ("abfs", "adlfs", "abfs")]
)
def test_a_package_that_is_missing_is_named(scheme, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(implementations(), scheme, raising=False)
    for use in (lambda url: Store(Path(url)), lambda url: list(find_inputs([url]))):
        with pytest.raises(
            FringeError, match=rf'{scheme}:// needs {package}; run pip install -c constraints.txt -e "\.\[{extra}\]"'
        ):
            use(f"{scheme}://bucket/run")


@pytest.fixture
def photos(bucket, server, tmp_path):
    """The URL of a few pictures, and the folder that they were copied from."""
    import boto3
    import numpy as np
    from PIL import Image

    folder, client = tmp_path / "photos", boto3.client("s3", endpoint_url=server)
    files = ("3_a.png", "b/0284_cat.PNG", "b/c.png", "d.png", ".hidden.png", ".cache/e.png", "notes.txt", "b/a.jpg")
    for number, name in enumerate(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(path, "JPEG" if name.endswith("jpg") else "PNG")
        client.put_object(Bucket="bucket", Key=f"{tmp_path.name}/photos/{name}", Body=path.read_bytes())
    return f"{bucket}/photos", folder


def test_images_of_a_bucket_are_those_of_the_folder(photos, tmp_path, monkeypatch):
    url, folder = photos
    monkeypatch.chdir(tmp_path)
    there, local = (list(find_inputs([one])) for one in (url, str(folder)))
    assert [(ref.id, ref.label) for ref in there] == [(ref.id, ref.label) for ref in local]
    names = ("3_a.png", "b/0284_cat.PNG", "b/a.jpg", "b/c.png", "d.png")
    assert [ref.source for ref in there] == [f"{url}/{name}" for name in names]
    assert [ref.open().image.tobytes() for ref in there] == [ref.open().image.tobytes() for ref in local]
    (one,) = find_inputs([f"{url}/b/c.png", f"{url}/b/c.png"])
    assert one.source == f"{url}/b/c.png"
    sources = {"there": Path(url), "here": folder}  # a Path has lost a slash of the URL
    runs = [run_plan(small(data=(str(one),), n=4), tmp_path / name, RunOptions()) for name, one in sources.items()]
    assert [run.log.count("done") for run in runs] == [4, 4]
    assert table(Store(tmp_path / "there")) == table(Store(tmp_path / "here"))  # digests, keys and numbers
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "photos", "there"]  # no folder named s3:


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s3://nowhere-else/photos", "'s3://nowhere-else/photos' is neither a file nor a folder of the object store"),
        ("{url}/absent", "absent' is neither a file nor a folder of the object store"),
        ("{url}/notes.txt", None),
        ("{url}/.cache/../..", "is neither a file nor a folder"),
        ("s3://", "'s3://' is a URL that names no bucket"),
        ("http://example.org/photos", "http:// is not supported; name a file, a folder, or a URL of s3://, gs://"),
    ],
)
def test_what_is_no_image_of_a_bucket_is_an_error(photos, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    argument = name.format(url=photos[0])
    if message is None:  # a file that is named itself is tried
        (ref,) = find_inputs([argument])
        assert ref.open().image.size == (8, 8)
        return
    with pytest.raises(ImageError, match=message):
        find_inputs([argument])
    with pytest.raises(InputError, match=r"^data: "):
        run_plan(small(data=(argument,)), tmp_path / "run", RunOptions())
    assert not (tmp_path / "s3:").exists()


def test_an_image_that_changes_in_a_bucket_is_left_to_the_next_run(photos, server, tmp_path, monkeypatch):
    import boto3

    from fringe._files import urls as _urls

    url, _ = photos
    client, refs = boto3.client("s3", endpoint_url=server), list(find_inputs([url]))
    key = f"{tmp_path.name}/photos/d.png"
    other = client.get_object(Bucket="bucket", Key=f"{tmp_path.name}/photos/b/c.png")["Body"].read()

    def replace_one_and_remove_another(resolved, tasks):
        _urls._recent = _urls._Recent()
        client.put_object(Bucket="bucket", Key=key, Body=other)
        client.delete_object(Bucket="bucket", Key=f"{tmp_path.name}/photos/3_a.png")

    log = RunLog(began=replace_one_and_remove_another)
    first = run_plan(small(data=(url,), n=5), tmp_path / "run", RunOptions(), log)
    assert len(refs) == 5
    absent, changed = sorted(line["reason"] for line in first.left)
    assert "3_a.png': does not exist" in absent
    assert "d.png' changed since the run began; run it again" in changed
    assert first.failed == 0
