"""Where examples come from: one file for each kind of place, all returning a `Source`."""
