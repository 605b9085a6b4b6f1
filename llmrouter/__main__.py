"""`python -m llmrouter` is the `llmrouter` command."""

from llmrouter.cli import main

if __name__ == "__main__":
    main()
