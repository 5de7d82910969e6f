"""Errors of the engine's front door: a model folder or an adapter that cannot be used."""

from __future__ import annotations


class ModelError(Exception):
    """A checkpoint cannot be loaded. The text is one line: the file, what is wrong there, what would help."""
