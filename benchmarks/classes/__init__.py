"""Latency classes in a saturated pool: a real gateway, a scripted engine of fixed service times, paced traffic."""
