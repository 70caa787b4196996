"""Functions that load images and labels from files or arrays as a `Source`."""
