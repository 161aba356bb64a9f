"""The metrics there are: one line each. A new metric is a file of this room and a line here."""

from fringe.metrics.sparseness import Sparseness as Sparseness
