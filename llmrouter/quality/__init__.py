"""Where training and golden sets come from: samples of requests, and labels that say how good answers were."""
