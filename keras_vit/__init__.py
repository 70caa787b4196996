"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), on Keras 3."""
