"""The scripts of the paper's studies lie beside the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "paper"))
