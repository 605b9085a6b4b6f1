"""The OpenAI-compatible gateway and its admin app."""
