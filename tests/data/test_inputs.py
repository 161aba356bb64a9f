"""Finding images: order, labels, unique ids, and a message for whatever leads to nothing."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fringe.data import ImageError, ImageRef, digits_samples, find_inputs


def picture(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2), value).save(path)
    return str(path)


def message(*arguments):
    with pytest.raises(ImageError) as caught:
        find_inputs(arguments)
    return str(caught.value)


def ids(*arguments):
    return [ref.id for ref in find_inputs([str(a) for a in arguments])]


def test_files_come_in_the_order_given_with_their_labels(tmp_path):
    names = ["3_cat_000.png", "0284_Siamese_cat.png", "holiday.png", "20240101_120000.png", "0007.png"]
    paths = [picture(tmp_path / name) for name in names]
    refs = list(find_inputs(paths))
    assert [r.label for r in refs] == [3, 284, None, None, None]
    assert [r.source for r in refs] == paths
    assert [r.id for r in refs] == ["3_cat_000", "0284_Siamese_cat", "holiday", "20240101_120000", "0007"]


def test_folders_are_searched_in_order_of_name_without_hidden_or_other_files(tmp_path):
    for name in ("b/2.png", "b/1.JPG", "a.webp", "c.gif", "b/.hidden.png", ".git/x.png"):
        picture(tmp_path / name.replace("JPG", "jpg"))
    (tmp_path / "notes.txt").write_text("no image")
    assert ids(tmp_path) == ["a", "1", "2", "c"]


def test_what_is_left_out_of_a_folder_is_counted_in_one_line(tmp_path):
    for name in ("a.png", "b.jfif", "c.JPG ", "d.pgm", "plain", "e.heic", "deep/f.heic", "g.avif", "notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (3, 2)).save(tmp_path / name, "PPM" if name == "d.pgm" else "JPEG")
    (tmp_path / "notes").write_text("no image")
    for name in (".hidden.heic", "Thumbs.db", "desktop.ini"):
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match="left out") as caught:
        assert ids(tmp_path) == ["a", "b", "c", "d", "plain"]
    (line,) = [str(warning.message) for warning in caught]
    assert line.startswith(
        f"folder {str(tmp_path)!r}: 4 files left out: 2 .heic, 1 .avif, 1 without a suffix; images are"
    )
    assert line.endswith(".webp; convert other formats")


def test_a_folder_of_other_files_alone_says_what_they_are(tmp_path):
    (tmp_path / "a.heic").touch()
    assert message(str(tmp_path)).endswith(".webp); 1 file left out: 1 .heic")


def test_a_device_without_a_suffix_is_left_out_unread(tmp_path):
    picture(tmp_path / "x.png")
    os.symlink("/dev/zero", tmp_path / "endless")
    os.mkfifo(tmp_path / "pipe")
    with pytest.warns(UserWarning, match="2 files left out: 2 without a suffix"):
        assert ids(tmp_path) == ["x"]


def test_a_file_stands_for_the_links_that_lead_to_it(tmp_path):
    real = picture(tmp_path / "b" / "0284_cat.png")
    os.symlink(real, tmp_path / "0001_link.png")
    os.symlink(tmp_path / "b", tmp_path / "a")
    (tmp_path / "0").mkdir()
    os.symlink(tmp_path / "b", tmp_path / "0" / "link")
    (ref,) = find_inputs([str(tmp_path)])
    assert (ref.id, ref.label, ref.source) == ("0284_cat", 284, real)
    assert ids(tmp_path / "0001_link.png") == ["0001_link"]


def test_links_are_followed_once(tmp_path):
    picture(tmp_path / "real" / "x.png")
    (tmp_path / "root" / "deep").mkdir(parents=True)
    os.symlink(tmp_path / "real", tmp_path / "root" / "link")
    os.symlink(tmp_path / "root", tmp_path / "root" / "deep" / "loop")
    assert ids(tmp_path / "root") == ["x"]


def test_what_is_named_twice_is_taken_once(tmp_path):
    path = picture(tmp_path / "x.png")
    assert ids(path, tmp_path, path, tmp_path / "." / "x.png") == ["x"]
    assert ids("embedded:digits:1", "embedded:digits:0:3") == ["digits-0001", "digits-0000", "digits-0002"]


def test_colliding_names_get_a_part_of_their_content_hash(tmp_path):
    paths = [picture(tmp_path / name, value) for name, value in (("a/x.png", 1), ("b/X.png", 2), ("b/y.png", 3))]
    hashes = [hashlib.sha256(Path(p).read_bytes()).hexdigest()[:8] for p in paths]
    assert ids(*paths) == [f"x-{hashes[0]}", f"X-{hashes[1]}", "y"]
    assert ids(*paths[::-1]) == ids(*paths)[::-1]


def test_copies_of_one_picture_stay_apart(tmp_path):
    first = picture(tmp_path / "a" / "x.png")
    (tmp_path / "b").mkdir()
    shutil.copy(first, tmp_path / "b" / "x.png")
    one, two = ids(tmp_path)
    assert two == f"{one}-2"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two words\n.png", "two_words_"),
        ("grüße.png", "grüße"),
        ("..x.png", "x"),
        ("é" * 120 + ".png", "é" * 60),
        ("a&b<c>.png", "a_b_c_"),
    ],
)
def test_ids_are_safe_as_file_names(tmp_path, name, expected):
    assert ids(picture(tmp_path / name)) == [expected]


def test_a_name_that_is_no_text_gets_a_plain_id(tmp_path):
    good = picture(tmp_path / "x.png")
    odd = os.fsencode(tmp_path) + b"/\xff\xfe.png"
    os.rename(good, odd)
    (ref,) = find_inputs([str(tmp_path)])
    assert ref.id == "__"
    assert ref.open().image.size == (3, 2)


def test_nothing_is_decoded_before_it_is_opened(tmp_path):
    path = tmp_path / "5_broken.png"
    path.write_bytes(b"not an image")
    (ref,) = find_inputs([str(path)])
    assert (ref.id, ref.label) == ("5_broken", 5)
    with pytest.raises(ImageError, match="not an image of the formats"):
        ref.open()


def test_an_opened_file(tmp_path):
    (ref,) = find_inputs([picture(tmp_path / "4_x.png", 77)])
    sample = ref.open(channels=1)
    assert (sample.id, sample.label, sample.image.mode) == ("4_x", 4, "L")
    assert sample.image.getpixel((0, 0)) == 77
    assert ref.open().image.mode == "RGB"


def test_digits_by_index_and_range():
    assert len(list(find_inputs(["embedded:digits"]))) == 360
    assert [r.label for r in find_inputs(["embedded:digits:0:10"])] == list(range(10))
    (ref,) = find_inputs(["embedded:digits:7"])
    assert ref == ImageRef("digits-0007", "embedded:digits:7", 7, 7)
    grey, direct = ref.open(channels=1), digits_samples()[7]
    assert (grey.image.size, grey.image.mode) == ((8, 8), "L")
    assert np.array_equal(np.asarray(grey.image), np.asarray(direct.image))
    assert (grey.id, grey.label, grey.source) == (direct.id, direct.label, direct.source)
    assert ref.open(channels=3).image.mode == "RGB"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("", "an empty name leads to no image; name the current folder as ."),
        (
            "gone.png",
            "'gone.png' was not found: there is no file or folder 'gone.png' in {here}; name a file, a folder, "
            "embedded:photos or embedded:digits",
        ),
        ("embedded:digts", "in {here}; did you mean 'embedded:digits'?"),
        ("embedded:digits:360", "'embedded:digits:360' selects nothing of the 360 test images 0 to 359"),
        ("embedded:digits:5:5", "selects nothing of the 360 test images"),
        ("embedded:digits:-1", "is not of the form embedded:digits, embedded:digits:INDEX or"),
        ("embedded:digits:0:6:2", "is not of the form"),
        ("embedded:digits:", "is not of the form"),
        ("gone/away/a.png", "'gone/away/a.png' was not found: there is no folder {here}/gone/away; name"),
        ("a\0b", "was not found: there is no file or folder 'a\\x00b' in {here}"),
    ],
)
def test_arguments_that_lead_to_nothing(argument, expected):
    assert expected.format(here=Path.cwd()) in message(argument)


def test_a_mistyped_name_is_answered_with_that_of_a_file_beside_it(tmp_path):
    (tmp_path / "photo.jpg").touch()
    assert message(str(tmp_path / "phtoo.jpg")).endswith(f"'phtoo.jpg' in {tmp_path}; did you mean 'photo.jpg'?")
    assert message(str(tmp_path / "other.png")).endswith("; name a file, a folder, embedded:photos or embedded:digits")


def test_empty_folders_and_empty_lists(tmp_path):
    (tmp_path / "notes.txt").touch()
    assert message(str(tmp_path)).startswith(f"folder {str(tmp_path)!r} holds no images (.bmp, .gif,")
    assert message() == "no images were named; give files, folders, embedded:photos or embedded:digits"


@pytest.mark.timeout(60)
def test_pipes_and_devices_of_one_name_do_not_keep_the_images_from_being_named(tmp_path):
    good = picture(tmp_path / "a" / "x.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "b" / "x.png")
    (tmp_path / "c" / "x.png").symlink_to("/dev/zero")
    refs = list(find_inputs([str(tmp_path)]))
    assert refs[0].id == f"x-{hashlib.sha256(Path(good).read_bytes()).hexdigest()[:8]}"
    assert refs[0].open().image.size == (3, 2)
    for ref in refs[1:]:
        with pytest.raises(ImageError, match="is not a regular file"):
            ref.open()
