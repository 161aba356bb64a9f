"""
Boxes
=====

Why does a detector see a face *here*? ``fringe.explain(detector, photo, boxes=1)`` explains a box. The detector is
MTCNN of facenet-pytorch, whose weights are part of its package: a cascade of three small networks, of which the last
one looks at a window of 48 x 48 pixels and says whether it holds a face.
"""

import numpy as np
import skimage
import torch
from torch.nn import functional as F

import fringe
from fringe.models import import_torchvision

import_torchvision()  # facenet-pytorch imports it
from facenet_pytorch import MTCNN

# %%
# How its boxes are read
# ----------------------
# Detectors of torchvision and transformers are known. Here we say it ourselves, with two functions: ``find`` returns
# all windows of a photograph with their boxes and logits, and ``at`` the box and the logits of one window for each
# input.


class Windows:
    """The windows of the last network of MTCNN. The first of its two logits is that of "no face"."""

    background = 0

    def __init__(self, model):
        self.model = model

    def find(self, x):
        boxes, _ = self.model.detect((128 * x + 127.5).round().clamp(0, 255).movedim(1, -1))
        boxes = torch.as_tensor([] if boxes[0] is None else boxes[0].astype(float)).to(x).view(-1, 4)
        centre, side = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).amax(1, keepdim=True)
        windows = torch.cat([centre - side / 2, centre + side / 2], 1)
        return windows, *self.at(x.expand(len(windows), *x.shape[1:]), windows)

    def at(self, x, windows):
        size = x.new_tensor([x.shape[-1], x.shape[-2]])
        lines = (torch.arange(48, device=x.device) + 0.5) / 48
        spots = torch.stack(torch.meshgrid(lines, lines, indexing="xy"), -1)
        spots = windows[:, None, None, :2] + spots * (windows[:, 2:] - windows[:, :2])[:, None, None]
        crops = F.grid_sample(x, 2 * spots / size - 1, align_corners=False, padding_mode="border")
        moves, _, probabilities = self.model.onet(crops)
        sides = (windows[:, 2:] - windows[:, :2]).repeat(1, 2)
        return windows + moves * sides, probabilities.clamp_min(1e-30).log()


model = MTCNN(device="cpu").eval()
detector = fringe.Detector(model, read=Windows(model))

# %%
# The face of an astronaut
# ------------------------
# The photograph is Eileen Collins, by NASA, in the public domain.

photo = skimage.data.astronaut()[:256, 96:352]
result = fringe.explain(
    detector, photo, boxes=1, preprocessing="mean=0.498/0.498/0.498,std=0.502/0.502/0.502", classes=["no face", "face"]
)
print(result)
print("box:", np.round(result.context.boxes[0].tolist()), "in pixels of the photograph")

# %%
# Bright places carry the evidence for *face*. The window is larger than the box: nothing outside of it can count.

figure = result.plot()

# %%
# What the box does on the way
# ----------------------------
# The same window is looked at along the whole path. ``box_overlap`` says how far its box moved.

print({name: round(float(result.diagnostics[name][0]), 2) for name in ("box_overlap", "box_seen")})
