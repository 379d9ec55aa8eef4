"""What must never happen, tested over all compositions, by public names only: these tests outlive an engine."""
