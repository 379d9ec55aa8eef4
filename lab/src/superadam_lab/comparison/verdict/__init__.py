"""What the numbers of a comparison say."""
