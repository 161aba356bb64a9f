"""Which images take part: a prefix of one order, whatever else lies in the folder."""

import hashlib
import os
from pathlib import Path

import pytest

from fringe.bench.experiments import ExperimentSpec, build_plan
from fringe.bench.experiments._manifest import resolve
from fringe.data import find_inputs
from fringe.errors import InputError
from fringe.inputs import choose_references, content_digest, find_images, in_order, sample_images
from fringe.inputs._sampling import MAX_REFERENCES


@pytest.fixture
def folder(tmp_path):
    """Twenty different files that bear an image's suffix; the draw opens none of them."""
    for number in range(20):
        write(tmp_path, f"{number:04d}_cat-{number}.png")
    return tmp_path


def write(folder, name, content=None):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(name.encode() if content is None else content)
    return path


def names(drawn):
    return [Path(picture.ref.source).name for picture in drawn.pictures]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 19])
def test_a_smaller_draw_is_the_beginning_of_a_larger_one(folder, n, seed):
    for data in (str(folder), "embedded:digits:0:20"):
        drawn = sample_images([data], n, seed)
        assert drawn.pictures == sample_images([data], 20, seed).pictures[:n]
        assert len(drawn.pictures) == n


def test_the_order_is_the_seeds(folder):
    def order(seed):
        return [ref.id for ref in in_order(find_images([str(folder)]), seed)]

    by_hand = sorted(order(0), key=lambda name: hashlib.sha256(f"7 {name}".encode()).hexdigest())
    assert order(7) == by_hand
    assert order(0) != order(1)
    assert sorted(order(0)) == sorted(order(1))


def test_another_file_moves_none(folder):
    before = names(sample_images([str(folder)], 20, 3))
    for number in range(10):
        write(folder, f"dog-{number}.png")
    write(folder, "0000_cat-0.txt")
    after = names(sample_images([str(folder)], 30, 3))
    assert [name for name in after if name in before] == before
    (folder / "0003_cat-3.png").unlink()
    assert names(sample_images([str(folder)], 29, 3)) == [name for name in after if name != "0003_cat-3.png"]


def test_the_folder_and_the_order_of_arguments_do_not_matter(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "there"
    folder.rename(elsewhere)
    drawn = sample_images([str(elsewhere)], 8, 0)
    elsewhere.rename(folder)
    one_by_one = [ref.source for ref in find_inputs([str(folder)])]
    assert [p.digest for p in sample_images(one_by_one[::-1], 8, 0).pictures] == [p.digest for p in drawn.pictures]


def test_the_last_ones_come_from_the_other_end(folder):
    data = [str(folder)]
    first, last = names(sample_images(data, 12, 0)), names(sample_images(data, 8, 0, holdout=True))
    assert set(first).isdisjoint(last)
    assert sorted(first + last) == sorted(names(sample_images(data, 20, 0)))
    assert last == names(sample_images(data, 20, 0))[:11:-1]


def test_what_is_excluded_is_never_drawn(folder):
    data = [str(folder)]
    tuned = {picture.digest for picture in sample_images(data, 5, 0, holdout=True).pictures}
    left = sample_images(data, 15, 0, tuned)
    assert tuned.isdisjoint(picture.digest for picture in left.pictures)
    assert names(left) == names(sample_images(data, 15, 0))
    with pytest.raises(InputError, match=r"n: got 16, but there are 15 different .* \(5 are excluded: a setting"):
        sample_images(data, 16, 0, tuned)


def test_copies_of_one_content_count_once(folder):
    for number in range(20):
        write(folder, f"copies/copy-{number}.png", f"{number % 4:04d}_cat-{number % 4}.png".encode())
    drawn = sample_images([str(folder)], 20, 0)
    assert len({picture.digest for picture in drawn.pictures}) == 20
    with pytest.raises(InputError, match=r"n: got 21, but there are 20 different images behind"):
        sample_images([str(folder)], 21, 0)


def test_a_name_is_the_content(folder):
    (picture,) = sample_images([str(folder / "0003_cat-3.png")], 1, 0).pictures
    assert picture.digest == hashlib.sha256(b"0003_cat-3.png").hexdigest()[:32]
    assert picture.ref.label == 3
    write(folder, "0003_cat-3.png", b"other")
    assert content_digest(picture.ref) != picture.digest
    digits = [picture.digest for picture in sample_images(["embedded:digits"], 297, 0).pictures]
    assert len(set(digits)) == 297


def test_an_image_that_cannot_be_read_is_missing_and_counts(folder):
    """Its place is not given to another, or the draw would depend on what can be read today."""
    data, before = [str(folder)], names(sample_images([str(folder)], 20, 0))
    gone = folder / before[2]
    gone.unlink()
    gone.symlink_to(folder / "nowhere.png")
    drawn = sample_images(data, 5, 0)
    assert names(drawn) == [*before[:2], *before[3:5]]
    assert drawn.missing == (f"{gone}: No such file or directory",)


def test_nothing_to_draw_from(tmp_path):
    with pytest.raises(InputError, match=r"data: folder .* holds no images"):
        sample_images([str(tmp_path)], 1, 0)
    with pytest.raises(InputError, match=r"data: .*absent' was not found: there is no file or folder 'absent' in "):
        sample_images([str(tmp_path / "absent")], 1, 0)
    write(tmp_path, "a.png", b"")
    write(tmp_path, "b.png", b"")
    with pytest.raises(InputError, match=r"n: got 2, but there are 1 different images behind .*; ask for fewer"):
        sample_images([str(tmp_path)], 2, 0)


def test_references_do_not_depend_on_n(folder):
    found = find_images([str(folder)])
    assert len(choose_references(found, 0)) == 20
    assert [p.ref for p in choose_references(found, 0)] == in_order(found, 1)
    (folder / "0007_cat-7.png").unlink()
    (folder / "0007_cat-7.png").symlink_to(folder / "nowhere.png")
    assert len(choose_references(found, 0)) == 19
    digits = choose_references(find_images(["embedded:digits"]), 0)
    assert len(digits) == MAX_REFERENCES == len({picture.digest for picture in digits})


@pytest.mark.parametrize("more", [{}, {"scene": "gridpg"}])
def test_a_folder_is_listed_once(tmp_path, monkeypatch, more):
    images, others = tmp_path / "images", tmp_path / "others"
    for folder in (images, others):
        folder.mkdir()
        for index, ref in enumerate(find_inputs(["embedded:digits:0:40"])):
            ref.open(channels=1).image.save(folder / f"{index}.png")
    listed, walk = [], os.walk
    monkeypatch.setattr(os, "walk", lambda top, *args, **how: listed.append(Path(top)) or walk(top, *args, **how))
    spec = ExperimentSpec(model="embedded:digits", data=str(images), references=str(others), methods="ig", n=4, **more)
    resolved = resolve(build_plan(spec))
    assert len(resolved.manifest.images) == 4
    assert {Path(picture.ref.source).parent for picture in resolved.references} == {others}
    assert sorted(listed) == [images, others]


def test_a_references_folder_without_images_is_named(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    spec = ExperimentSpec(model="embedded:digits", data=str(folder), references=str(tmp_path / "empty"), n=4)
    with pytest.raises(InputError, match=r"^references: folder .* holds no images"):
        resolve(build_plan(spec))


def test_a_file_of_the_same_stem_elsewhere_moves_no_other(tmp_path):
    for name in ("a", "b", "c", "d"):
        make_file(tmp_path / "x" / f"{name}.png", name)
    before = [ref.source for ref in in_order(find_images([str(tmp_path)]), 0)]
    make_file(tmp_path / "y" / "a.png", "another")
    after = [ref.source for ref in in_order(find_images([str(tmp_path)]), 0)]
    assert [source for source in after if "/x/" in source] == before


def make_file(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
