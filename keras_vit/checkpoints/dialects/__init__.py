"""Dialects, which describe how other libraries name and store weights.

A dialect for a single family is in the module of the family.
"""
