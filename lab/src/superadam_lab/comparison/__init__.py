"""Fair comparisons: the same tuning for every method, other seeds for the final runs, and results with their
uncertainty."""
