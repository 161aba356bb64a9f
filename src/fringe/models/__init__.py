"""Models: one string names a classifier, and comes back with its preprocessing, class names and digest.

>>> model = load_model("embedded:digits")
>>> model.architecture, model.preprocessing.resize
('digits', (32, 32))
"""

from fringe.errors import ModelError
from fringe.models._base import state_digest as state_digest
from fringe.models._load import LOADERS as LOADERS
from fringe.models._load import LoadedModel, devices, load_model, resolve_device, usable_device
from fringe.models._preprocessing import Preprocessing

__all__ = ["LoadedModel", "ModelError", "Preprocessing", "devices", "load_model", "resolve_device", "usable_device"]
