"""Routers over any device: the synchronous one and the one that runs a step ahead."""
