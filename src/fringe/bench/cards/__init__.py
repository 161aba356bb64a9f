"""Cards of attribution methods: their assumptions, cost, scores and failures, measured by this library."""

from fringe.attribution import read_target
from fringe.bench.cards._card import describe_card, failures, summarise_card, verdict, write_card
from fringe.bench.cards._measure import SCENES_OF_CARDS, Card, Measurement, card_of_run, verify

__all__ = ["Card", "card_of_run", "read_target", "verify", "write_card"]
