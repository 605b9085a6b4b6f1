"""What checks of a single answer save, whole and on the held-back beginning of a stream, by replaying labels."""
