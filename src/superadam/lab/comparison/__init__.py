"""Fair comparison: every method tuned alike, repeated on other seeds, and reported with its uncertainty."""
