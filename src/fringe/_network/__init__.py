"""The network: its passes, their check and their first-order expansion; what it is given and what it returns."""
