"""The append-only books."""
