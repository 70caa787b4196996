"""An idiomatic Vision Transformer in Flax and its training step with optax, for comparisons.

It uses `nn.MultiHeadDotProductAttention` and `nn.LayerNorm`, and its weights are float32.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class Block(nn.Module):
    num_heads: int
    mlp_dim: int
    dtype: str

    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.MultiHeadDotProductAttention(self.num_heads, dtype=self.dtype)(y, y)
        x = x + y
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.gelu(nn.Dense(self.mlp_dim, dtype=self.dtype)(y))
        return x + nn.Dense(x.shape[-1], dtype=self.dtype)(y)


class ViT(nn.Module):
    patch_size: int
    hidden_size: int
    mlp_dim: int
    num_heads: int
    num_layers: int
    classes: int
    dtype: str = "float32"  # of the computation

    @nn.compact
    def __call__(self, images):
        patch = (self.patch_size, self.patch_size)
        x = nn.Conv(self.hidden_size, patch, strides=patch, padding="VALID", dtype=self.dtype)(
            images
        )
        x = x.reshape(len(x), -1, self.hidden_size)
        cls = self.param("cls", nn.initializers.zeros, (1, 1, self.hidden_size))
        cls = jnp.tile(cls.astype(x.dtype), (len(x), 1, 1))
        x = jnp.concatenate([cls, x], axis=1)
        positions = self.param("pos_embedding", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = x + positions.astype(x.dtype)
        for _ in range(self.num_layers):
            x = Block(self.num_heads, self.mlp_dim, self.dtype)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x)[:, 0]
        return nn.Dense(self.classes, dtype=self.dtype)(x).astype("float32")


def make_optimizer():
    """Returns AdamW with gradients clipped at a global norm of 1 and a cosine schedule."""
    schedule = optax.cosine_decay_schedule(1e-3, 1000)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


def make_step(model, optimizer):
    """Returns a function that maps `(parameters, optimizer_state, images, labels)` to the new
    parameters and state, the loss and the accuracy."""

    def step(parameters, optimizer_state, images, labels):
        def loss_and_logits(parameters):
            logits = model.apply(parameters, images)
            return optax.softmax_cross_entropy(logits, labels).mean(), logits

        differentiated = jax.value_and_grad(loss_and_logits, has_aux=True)
        (loss, logits), gradients = differentiated(parameters)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
        accuracy = (logits.argmax(-1) == labels.argmax(-1)).mean()
        return optax.apply_updates(parameters, updates), optimizer_state, loss, accuracy

    return step
