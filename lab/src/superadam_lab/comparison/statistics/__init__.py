"""The numbers of a comparison."""
