"""Optimizers by name: those of superadam, of other packages, and your own."""
