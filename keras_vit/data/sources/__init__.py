"""Sources of examples: one file for each kind of storage; all of them return a `Source`."""
