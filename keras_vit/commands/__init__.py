"""The commands of `keras-vit`, one module each: `define_flags()` and `main()`. `keras_vit_cli.COMMANDS` lists them."""
