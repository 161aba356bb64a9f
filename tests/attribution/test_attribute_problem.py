"""What travels with the images: further arguments of the model, and the classes that a map speaks about."""

import dataclasses

import pytest
import torch
from attribution_toys import SoftplusMLP, images
from torch import nn

import fringe
from fringe import METHODS
from fringe._network.arguments import Part
from fringe.metrics import METRICS
from toys import cheap

TEXTS, TOKENS, WIDTH, CLASSES = 12, 7, 4, 3


class Reader(nn.Module):
    """Attention over the tokens that a mask (B, T) leaves, and a pooled linear layer."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.query, self.value = nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, WIDTH).double()
        self.head = nn.Linear(WIDTH, CLASSES, bias=False).double()
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        self.eval().requires_grad_(False)

    def forward(self, inputs_embeds, attention_mask, scale=1.0):
        x = inputs_embeds
        weights = (self.query(x) @ x.transpose(1, 2) / WIDTH).masked_fill(attention_mask[:, None] == 0, -torch.inf)
        y = (weights.softmax(2) @ self.value(x)).tanh() * attention_mask[:, :, None]
        return scale * self.head(y.sum(1) / attention_mask.sum(1, keepdim=True))


READER = Reader()
EMBEDDED = torch.randn(TEXTS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MASK = (torch.arange(TOKENS) < torch.arange(TEXTS)[:, None] % (TOKENS - 1) + 2).long()
#: Settings that the class does not say: what makes FRInGe cheap is no number of steps, and patches are cut from images.
SETTINGS = {
    "fringe": fringe.FRInGe(tau=2e-2, structure="none"),
    "fringe_b": METHODS["fringe_b"](tau=2e-2, structure="none"),
    "diffusion": METHODS["diffusion"](steps=20),
    "captum": fringe.CaptumMethod("kernel_shap", samples=30, segments=6, superpixels="grid"),
    "straight": fringe.Straight(fringe.FRInGe(tau=2e-2, structure="none"), steps=4),
}
REFERENCES = torch.randn(30, TOKENS, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
SPACE = fringe.InputSpace(-4.0, 4.0, references=3 * REFERENCES)


def explained(method, rows=slice(None), **given):
    return fringe.attribute(
        READER,
        {"inputs_embeds": EMBEDDED[rows], "attention_mask": MASK[rows]},
        method=method,
        space=SPACE,
        target=[i % CLASSES for i in range(TEXTS)[rows]],
        **given,
    )


def tried(name, explain):
    """The method with cheap settings, and what ``explain`` makes of it; the test of one that is for images only, and
    says so, is skipped."""
    method = SETTINGS.get(name) or cheap(METHODS[name])
    if method.package is not None:
        pytest.importorskip(method.package)
    try:
        return method, explain(method)
    except fringe.InputError as error:
        of_images = ("in space", "images (B, C, H, W)", "images or volumes", "patches of an image", "no rules")
        if not any(words in str(error) for words in of_images):
            raise
        pytest.skip(str(error))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


class Three(nn.Module):
    """Logits of a row (B, 3), of pictures (B, 2, 4, 4) and of one number (B,), by position or by name."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.first, self.last = nn.Linear(36, 8).double(), nn.Linear(8, CLASSES).double()
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 3
        self.eval().requires_grad_(False)

    def forward(self, row, picture, number, power=1):
        x = torch.cat([row, picture.flatten(1), number[:, None]], 1)
        return self.last(torch.tanh(self.first(x))) * power


class Flat(nn.Module):
    """The same network of a row (B, 36) of all numbers."""

    def __init__(self):
        super().__init__()
        self.three = THREE
        self.eval()

    def forward(self, x):
        return self.three(x[:, :3], x[:, 3:35].reshape(-1, 2, 4, 4), x[:, 35])


THREE = Three()
FLAT = Flat()
ROW, PICTURE, NUMBER = (
    torch.randn(4, *s, generator=torch.Generator().manual_seed(5)).double() for s in ((3,), (2, 4, 4), ())
)
JOINED = torch.cat([ROW, PICTURE.flatten(1), NUMBER[:, None]], 1)


class TestSeveralTensors:
    @pytest.mark.parametrize("name", METHODS)
    def test_are_explained_as_one_row_of_all_their_numbers(self, name):
        references = [
            3 * torch.randn(9, *x.shape[1:], generator=torch.Generator().manual_seed(6)).double()
            for x in (ROW, PICTURE, NUMBER)
        ]
        whole = torch.cat([r.reshape(9, -1) for r in references], 1)

        def joined(method):
            space = fringe.InputSpace(-4.0, 4.0, whole)
            return fringe.attribute(FLAT, JOINED, method=method, space=space, target=[0, 1, 2, 0])

        method, expected = tried(name, joined)
        space = fringe.InputSpace((-4.0, -4.0, -4.0), (4.0, 4.0, 4.0), tuple(references))
        found = fringe.attribute(THREE, (ROW, PICTURE, NUMBER), method=method, space=space, target=[0, 1, 2, 0])
        close(found.values, expected.values)
        row, picture, number = found.maps
        assert (row.shape, picture.shape, number.shape) == (ROW.shape, PICTURE.shape, NUMBER.shape)
        close(torch.cat([row, picture.flatten(1), number[:, None]], 1), expected.values)
        assert found.verdict == expected.verdict

    def test_go_to_the_model_by_their_names(self):
        given = {"number": NUMBER, "row": ROW, "picture": PICTURE, "power": 2}
        maps = fringe.attribute(THREE, given, method="ig", target=0).maps
        assert list(maps) == ["number", "row", "picture"]
        expected = fringe.attribute(THREE, (ROW, PICTURE, NUMBER), method="ig", target=0).maps
        for name, values in zip(("row", "picture", "number"), expected, strict=True):
            close(maps[name], 2 * values)

    @pytest.mark.parametrize("ids", [None, "abcd"])
    def test_of_a_dictionary_have_the_same_noise_in_any_order(self, ids):
        values = {"row": ROW, "picture": PICTURE, "number": NUMBER}
        options = {"method": "smoothgrad", "target": 0, "ids": ids, "seed": 3}
        one, other = (fringe.attribute(THREE, v, **options).maps for v in (values, dict(sorted(values.items()))))
        for name in values:
            close(one[name], other[name])

    def test_begin_at_a_baseline_of_each(self):
        starts = (0.5, PICTURE.roll(1, 0), torch.ones(1))
        whole = torch.cat([torch.full_like(ROW, 0.5), starts[1].flatten(1), torch.ones(4, 1)], 1)
        expected = fringe.attribute(FLAT, JOINED, method="ig", baseline=whole, target=1).values
        close(fringe.attribute(THREE, (ROW, PICTURE, NUMBER), method="ig", baseline=starts, target=1).values, expected)
        named = dict(zip(("number", "row", "picture"), (starts[2], *starts[:2]), strict=True))
        given = {"row": ROW, "picture": PICTURE, "number": NUMBER}
        close(fringe.attribute(THREE, given, method="ig", baseline=named, target=1).values, expected)

    def test_have_one_number_in_place_of_references(self):
        method, whole = fringe.ExpectedGradients(samples=4), torch.cat([torch.full((4, 3), 0.5), JOINED[:, 3:]], 1)
        options = {"method": method, "target": 0}
        expected = fringe.attribute(FLAT, JOINED, space=fringe.InputSpace(references=whole), **options)
        space = fringe.InputSpace(references=(0.5, PICTURE, NUMBER))
        close(fringe.attribute(THREE, (ROW, PICTURE, NUMBER), space=space, **options).values, expected.values)

    def test_are_no_text_of_one_length_beside_an_embedding(self):
        class Text(Reader):
            def token_length(self):
                return 2.0

            def forward(self, inputs_embeds, attention_mask, extra):
                return super().forward(inputs_embeds, attention_mask) * extra

        given = {"inputs_embeds": EMBEDDED, "attention_mask": MASK, "extra": 1 + MASK[:, 3:4].double()}
        maps = fringe.attribute(Text(), given, method="ig", target=0).maps
        assert maps["inputs_embeds"].shape == EMBEDDED.shape
        assert not maps["inputs_embeds"][MASK == 0].any()

    def test_are_verified_once_in_each_form(self):
        classifier = fringe.Classifier(THREE)
        counts = []
        for names in (("row", "picture", "number"), ("row", "picture", "number"), ("number", "row", "picture")):
            values = {"row": ROW, "picture": PICTURE, "number": NUMBER}
            result = fringe.attribute(classifier, {name: values[name] for name in names}, method="ig", target=0)
            counts.append(result.passes)
        assert counts[1].forward < counts[0].forward
        assert counts[2] == counts[0]

    def test_have_maps_of_several_classes_that_are_stored_and_selected(self, tmp_path):
        result = fringe.attribute(THREE, {"row": ROW, "picture": PICTURE, "number": NUMBER}, method="ig", target="top2")
        assert result.maps["picture"].shape == (4, 2, 2, 4, 4)
        assert result.maps["number"].shape == (4, 2)
        assert "row (3,), picture (2, 4, 4), number ()" in repr(result)
        result.save(tmp_path / "maps.safetensors")
        stored = fringe.load(tmp_path / "maps.safetensors")[2].of_class(1)
        for name, values in stored.maps.items():
            assert torch.equal(values, result.maps[name][2:3, 1])

    def test_of_a_stored_file_must_fit_the_maps(self, tmp_path):
        result = fringe.attribute(THREE, (ROW, PICTURE, NUMBER), method="ig")
        broken = dataclasses.replace(result, parts=(*result.parts[:2], Part(None, (2,))))
        broken.save(tmp_path / "maps.safetensors")
        with pytest.raises(fringe.InputError, match="is damaged"):
            fringe.load(tmp_path / "maps.safetensors")

    def test_alone_in_a_tuple_or_a_dictionary_keep_their_axes(self):
        expected = fringe.attribute(READER, EMBEDDED, method="ig", target=0, forward_args=(MASK,))
        (values,) = fringe.attribute(READER, (EMBEDDED,), method="ig", target=0, forward_args=(MASK,)).maps
        close(values, expected.values)
        named = {"inputs_embeds": EMBEDDED, "attention_mask": MASK}
        close(fringe.attribute(READER, named, method="ig", target=0).maps["inputs_embeds"], expected.maps)

    def test_with_pictures_cost_no_search_for_steps(self):
        """Of pictures, a pixel without a gradient is nothing special, in a row of all numbers, too."""

        def passes(model):
            method = fringe.IntegratedGradients(steps=4)
            result = fringe.attribute(model, (ROW, PICTURE), method=method, target=0)
            return (result.maps[1] == 0).all(0).sum().item(), result.passes

        unread, count = passes(
            lambda row, picture: THREE(row, picture * (PICTURE[:1] > 0), NUMBER[:1].expand(len(row)))
        )
        assert unread > 0
        assert passes(lambda row, picture: THREE(row, picture, NUMBER[:1].expand(len(row)))) == (0, count)


class TestArguments:
    @pytest.mark.parametrize("name", METHODS)
    def test_travel_with_their_rows_whatever_the_batch_size(self, name):
        method, first = tried(name, lambda method: explained(method, slice(0, 1)).values)
        expected = torch.cat([first, *(explained(method, slice(i, i + 1)).values for i in range(3, TEXTS, 3))])
        some_predict_near_nothing = name in ("agi", "fringe_b")
        assert (expected.flatten(1).norm(dim=1) > 0).sum() >= len(expected) - 1 or some_predict_near_nothing
        close(explained(method, batch_size=5).values[::3], expected)

    @pytest.mark.parametrize("batch_size", [4, 64])
    @pytest.mark.parametrize("cut", [True, False], ids=["cut", "whole"])
    def test_in_a_closure_are_refused(self, batch_size, cut):
        def closure(x):
            return READER(x, MASK[: len(x)] if cut else MASK)

        with pytest.raises((fringe.ModelOutputError, fringe.InputError)) as caught:
            fringe.attribute(closure, EMBEDDED, method="ig", batch_size=batch_size)
        said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
        assert "forward_args" in said

    def test_by_position_and_by_name_are_the_same(self):
        expected = explained("ig").values
        target = [i % CLASSES for i in range(TEXTS)]
        found = fringe.attribute(READER, EMBEDDED, method="ig", target=target, forward_args=(MASK,))
        close(found.values, expected)
        found = fringe.attribute(
            READER, EMBEDDED, method="ig", target=target, forward_kwargs={"attention_mask": MASK, "scale": 2.0}
        )
        close(found.values, 2 * expected)

    def test_of_bad_images_leave_with_them(self):
        broken = EMBEDDED.clone()
        broken[3] = torch.nan
        found = fringe.attribute(READER, broken, method="ig", bad_images="mark", forward_args=(MASK,), target=0)
        rows = [i for i in range(TEXTS) if i != 3]
        expected = fringe.attribute(READER, EMBEDDED[rows], method="ig", forward_args=(MASK[rows],), target=0)
        close(found.values[rows], expected.values)

    @pytest.mark.parametrize(
        ("inputs", "given", "message"),
        [
            ({"a": MASK}, {}, r"inputs: got a dictionary without a floating-point tensor.*integers have no gradient"),
            ({"a": EMBEDDED, "b": EMBEDDED[1:]}, {}, r"inputs: got a \(12, 7, 4\), b \(11, 7, 4\).*forward_kwargs"),
            ((EMBEDDED, MASK), {}, r"inputs\[1\]: got torch.int64 \(12, 7\).*forward_args"),
            (
                [EMBEDDED, EMBEDDED],
                {},
                r"inputs: expected a torch.Tensor .*stack.*in a tuple or, by name, in a dict",
            ),
            ((EMBEDDED, EMBEDDED), {"baseline": (0.0,)}, r"baseline: expected a number or a tensor for each.*1 \(12"),
            (EMBEDDED, {"baseline": (EMBEDDED,)}, r"baseline: got a tuple for inputs in one tensor"),
            ((EMBEDDED,), {"baseline": (EMBEDDED[:5],)}, r"baseline: expected a number or a tensor for each"),
            ({"a": EMBEDDED}, {"baseline": {"a": 0.0, "b": 1.0}}, r"baseline: expected.*tensors: a \(12.*got a, b\)"),
            (EMBEDDED, {"space": fringe.InputSpace(references=(EMBEDDED,))}, r"space\.references: got a tuple for"),
            (EMBEDDED, {"space": fringe.InputSpace((0.0,), (1.0,))}, r"space\.low: got a tuple for inputs in one"),
            ({"a": EMBEDDED, "b": MASK}, {"forward_kwargs": {"b": MASK}}, r"forward_kwargs: b given in the inputs"),
            ({0: EMBEDDED}, {}, r"inputs: got the key 0, expected names of the model's arguments.*in a tuple"),
            ({"a": EMBEDDED, 1: MASK}, {}, r"inputs: got the key 1, expected names"),
            (EMBEDDED, {"forward_kwargs": {0: MASK}}, r"forward_kwargs: got the key 0, expected names"),
            (EMBEDDED, {"forward_args": MASK}, r"forward_args: got Tensor, expected a tuple"),
            (EMBEDDED, {"forward_kwargs": [MASK]}, r"forward_kwargs: got list, expected a dictionary"),
        ],
    )
    def test_that_make_no_sense_are_named(self, inputs, given, message):
        with pytest.raises(fringe.InputError, match=message):
            fringe.attribute(READER, inputs, method="ig", **given)

    def test_reach_the_metrics(self):
        blurring = {"insertion", "deletion", "mas_insertion", "mas_deletion", "signed_insertion"}
        metrics = sorted(METRICS.keys() - {*blurring, "road", "pic"})  # images alone
        metrics += ["insertion:zeros"] if "zeros" in METRICS["insertion"].presets else []

        def scores(rows, batch_size):
            given = {"attention_mask": MASK[rows]}
            ids = [str(i) for i in range(TEXTS)[rows]]
            inputs = {"inputs_embeds": EMBEDDED[rows], **given}
            ig = fringe.IntegratedGradients(steps=4)
            found = fringe.compare(READER, inputs, [ig], metrics, ids=ids, batch_size=batch_size, controls=False)
            return {name: score.values for name, score in found.rows[0].scores.items()}

        together, rows = scores(slice(None), 5), range(0, TEXTS, 7)
        for i in rows:
            for name, values in scores(slice(i, i + 1), 16).items():
                torch.testing.assert_close(values[0], together[name][i], rtol=1e-6, atol=1e-9, equal_nan=True)

    def test_do_not_join_images_that_have_other_ones(self):
        problem = fringe.paths.Problem.of(
            fringe.Classifier(READER),
            EMBEDDED,
            target=0,
            forward_args=fringe.classifier.ForwardArguments.of(TEXTS, (MASK,)),
        )
        assert sorted(map(len, problem.groups(by_score=True))) == [2] * 6
        assert problem.select([5, 11, 0]).groups(by_score=False) == [[0, 1], [2]]


class TestContrast:
    @pytest.mark.parametrize("score", ["logit", "probability", "log_probability"])
    def test_of_integrated_gradients_is_the_difference_of_two_maps(self, score):
        x, ig = images(3), fringe.IntegratedGradients(steps=6)
        given = {"method": ig, "score": score, "baseline": 0.2}
        a, b = (fringe.attribute(SoftplusMLP(), x, target=t, **given) for t in ([0, 1, 2], [2, 2, 3]))
        found = fringe.attribute(SoftplusMLP(), x, target=[0, 1, 2], contrast=[2, 2, 3], **given)
        torch.testing.assert_close(found.values, a.values - b.values, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found.score, a.score - b.score, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found.endpoint_score, a.endpoint_score - b.endpoint_score, rtol=1e-12, atol=1e-14)

    def test_with_the_target_itself_is_refused(self):
        with pytest.raises(fringe.TargetError, match=r"contrast: class 1 is the target of image 1"):
            fringe.attribute(SoftplusMLP(), images(2), target=[0, 1], contrast=1, method="ig")
        with pytest.raises(fringe.TargetError, match=r"contrast: class 9 does not exist"):
            fringe.attribute(SoftplusMLP(), images(2), target=[0, 1], contrast=9, method="ig")
        one_hot = torch.eye(SoftplusMLP()(images(2)).shape[1], dtype=torch.int64)[1:3]
        with pytest.raises(
            fringe.TargetError, match=r"contrast: got shape .*; for rows of zeros and ones pass contrast="
        ):
            fringe.attribute(SoftplusMLP(), images(2), target=0, contrast=one_hot, method="ig")


@pytest.mark.parametrize("call", [fringe.attribute, fringe.explain])
def test_inputs_of_a_shape_that_the_model_cannot_take_are_named(call):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2)).eval()
    model(torch.zeros(1, 3, 8, 8))
    for shape, text in (((2, 1, 8, 8), "Given groups=1"), ((2, 3, 9, 9), ".*mat1 and mat2 shapes")):
        with pytest.raises(fringe.InputError, match=rf"^inputs: the model cannot take them: {text}") as caught:
            call(model, torch.zeros(shape), method="ig")
        assert f"inputs of shape {shape}" in str(caught.value)


def test_an_error_of_the_model_without_a_text_is_named_by_its_kind():
    class OnlyPairs(torch.nn.Module):
        def forward(self, x):
            if len(x) != 2:
                raise RuntimeError
            return x.flatten(1)

    with pytest.raises(fringe.ModelOutputError, match=r"without the rest, in this order \(RuntimeError\)"):
        fringe.attribute(OnlyPairs(), torch.rand(2, 3), method="ig", target=0)


# -- a tensor that has as many rows as there are images by chance ------------------------------------------------------


class Causal(nn.Module):
    """Attention under a mask (T, T) that is the same for all series (B, T, W), as an argument."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(WIDTH, CLASSES)
        self.eval()

    def forward(self, x, mask):
        weights = (x @ x.transpose(1, 2) + mask).softmax(-1)
        return self.last((weights @ x).tanh().mean(1))


def weighted(x, weights):
    return x.tanh() * weights


def prompted(x, prompts):
    return x.tanh() @ prompts.T


@pytest.mark.parametrize(("batch", "size"), [(5, None), (20, None), (5, 1)])
@pytest.mark.parametrize("name", ["causal mask", "class weights", "prompts"])
def test_such_a_tensor_is_named_with_what_makes_it_shared(name, batch, size):
    torch.manual_seed(0)
    x = torch.randn(batch, batch)
    model, given = {
        "causal mask": (Causal(), torch.full((batch, batch), -torch.inf).triu(1)),
        "class weights": (weighted, torch.rand(batch) + 0.5),
        "prompts": (prompted, torch.randn(batch, batch)),
    }[name]
    x = torch.randn(batch, batch, WIDTH) if name == "causal mask" else x
    arguments = {"mask": given} if name == "causal mask" else {}
    args = () if arguments else (given,)
    with pytest.raises(fringe.FringeError, match=r"the same for all images, such as .* as fringe.Shared\("):
        fringe.attribute(model, x, method="ig", forward_args=args, forward_kwargs=arguments, batch_size=size)
    shared = {key: fringe.Shared(value) for key, value in arguments.items()}
    args = () if arguments else (fringe.Shared(given),)
    result = fringe.attribute(model, x, method="ig", forward_args=args, forward_kwargs=shared)
    assert result.completeness_residual.max() < 0.05


def test_a_recurrent_network_that_needs_sorted_lengths_is_told_how_it_needs_none():
    lstm = nn.LSTM(WIDTH, CLASSES, batch_first=True).double()

    def model(x, lengths, sort=True):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sort)
        return lstm(packed)[1][0][0]

    x, lengths = torch.randn(4, 6, WIDTH, dtype=torch.float64), torch.tensor([6, 5, 3, 2])
    with pytest.raises(
        fringe.ModelOutputError, match=r"order.*images are passed in any order: call .*enforce_sorted=Fal"
    ):
        fringe.attribute(model, x, method="ig", forward_args=(lengths,))
    result = fringe.attribute(model, x, method="ig", forward_args=(lengths, False))
    assert result.verdict == ("ok",) * 4
