"""What operators see: metrics."""
