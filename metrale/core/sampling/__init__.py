"""Picks from logits on the host: stages, penalties, seeded sampling (S3 section 5). The one place with arrays."""
