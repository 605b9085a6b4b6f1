"""What `llmrouter doctor` looks at: this machine, the store, each replica, a running gateway."""
