"""Implements the commands of `keras-vit`, which `keras_vit_cli` lists.

Each command is a module with `define_flags()` and `main()`.
"""
