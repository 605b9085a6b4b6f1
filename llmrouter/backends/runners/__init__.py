"""Engines that run as child processes of the gateway."""
