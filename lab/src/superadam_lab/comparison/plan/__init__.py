"""What a comparison will do: its plan, the points that are tried, the runs that are needed."""
