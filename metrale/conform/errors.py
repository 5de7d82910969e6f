"""What a conformance run cannot use."""


class ConformError(Exception):
    """A file or a request that cannot be used, in one line: which, where, what helps."""
