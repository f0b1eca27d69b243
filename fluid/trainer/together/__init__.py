"""Several processes that train together: what they compare at the start, and agree upon between two steps."""
