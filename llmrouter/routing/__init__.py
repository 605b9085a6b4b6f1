"""Which model: rules, versions, strategies and their plans."""
