"""Models: one string names a classifier, and comes back with its preprocessing, class names and digest.

>>> model = load_model("embedded:digits")
>>> model.architecture, model.preprocessing.resize
('digits', (32, 32))
"""

from fringe.models.digest import state_digest as state_digest
from fringe.models.errors import ModelError
from fringe.models.load import LOADERS, LoadedModel, devices, load_model, usable_device
from fringe.models.preprocessing import Preprocessing

__all__ = ["LOADERS", "LoadedModel", "ModelError", "Preprocessing", "devices", "load_model", "usable_device"]
