"""What the gateway costs, against a plain nginx proxy in the same run; `docs/performance.md` tells how to read it."""
