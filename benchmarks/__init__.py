"""Measurements that are run by hand, each with its own page in `docs/`; nothing in the product imports them."""
