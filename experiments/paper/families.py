"""The models that are compared with each other: a Vision Transformer, a hybrid and a ResNet of about equal compute."""

SIDE = 16  # of their images at small scale, in pixels


def families(scale):
    """`{family: (architecture, config.model)}` at small scale, of about a million multiply-accumulates for 16 pixels.

    The image becomes a grid of 4x4 in all of them, which the ResNet's second stage makes 2x2.
    """
    vit = {"patch_size": 4, "num_layers": 2, "hidden_size": 48, "mlp_dim": 192, "num_heads": 3}
    vit = scale.vit if scale.is_tiny else vit
    hybrid = {**vit, "patch_size": 1, "num_layers": vit["num_layers"] // 2, "stem": "resnet", "resnet_blocks": ()}
    return {
        "ViT": ("VisionTransformer", vit),
        "hybrid": ("VisionTransformer", hybrid),
        "ResNet": ("BiTResNet", {"depth": 8, "width": 32, "version": 1}),
    }
