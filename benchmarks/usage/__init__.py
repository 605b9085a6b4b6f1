"""Reports, archive and retention over millions of rows: seconds and peak memory, each step in a process of its own."""
