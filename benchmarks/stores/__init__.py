"""Ledger, limits and shipping, each against a bare loop on the same store in the same run."""
