"""llmrouter: an OpenAI-compatible gateway that answers each request with the cheapest model that is good enough."""

__version__ = "0.1.0"
__all__ = ["__version__"]
