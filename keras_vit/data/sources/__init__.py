"""Sources of examples: one module for each kind of storage, whose functions return a `Source`."""
