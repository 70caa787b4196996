"""The commands of `keras-vit`: one module each, with `define_flags()` and `main()`, listed in `keras_vit_cli`."""
