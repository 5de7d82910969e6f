"""Hunting: scenarios out of seeds, judged by every invariant and by relations between runs.

:func:`.hunt.try_seed` is the whole of it for one seed; :mod:`.draw` makes the scenario, :mod:`.judge` runs and checks
it, :mod:`.relations` compares it with its relatives, :mod:`.coverage` says what was seen.
"""
