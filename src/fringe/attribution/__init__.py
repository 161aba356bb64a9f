"""Attribution methods: what explains, one file a method, listed in ``catalogue``."""

from fringe.attribution.attribute import attribute as attribute
from fringe.attribution.base import Attribution as Attribution
from fringe.attribution.base import Attributor as Attributor
from fringe.attribution.base import Progress as Progress
from fringe.attribution.base import Trajectory as Trajectory
from fringe.attribution.catalogue import *  # noqa: F403 - each line of the catalogue is public
from fringe.attribution.fringe import Variant as Variant
from fringe.attribution.presets import paper_settings as paper_settings
from fringe.attribution.presets import preset_names as preset_names
from fringe.attribution.presets import table as table
from fringe.attribution.registry import METHODS as METHODS
from fringe.attribution.registry import get_method as get_method
