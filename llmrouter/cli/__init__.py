"""The `llmrouter` command."""
