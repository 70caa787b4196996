"""How other libraries name and store weights: a dialect for each library; those of one family are
in its module."""
