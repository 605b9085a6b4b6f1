"""The parts of `llmrouter demo`: its folder, its prompts, its client, its progress bars and its report."""
