"""Planted faults: does anything notice? One table of small changes to the core and the mock, applied in memory.

:data:`.table.MUTANTS` lists them, :func:`.plant.planted` applies one for the length of a ``with`` block,
:mod:`.measure` asks of each which golden and which invariant sees it and how long a hunt takes to find it.
"""
