"""Who asks and how much: API keys, admission."""
