"""Speculative lanes (S4): one module per lane, the verdict rules in one shared piece."""
