"""Multi-head attention with the parameter shapes of the JAX reference."""

import math

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.rotary import rotary_table, rotate
from keras_vit.layers.token_dense import TokenProjection
from keras_vit.layers.validation import check_static_tokens

# On JAX, attention with more than LONG_SEQUENCE queries computes the scores of at most CHUNK
# queries at a time and recomputes them in the backward pass, so memory grows linearly with the
# sequence length. This does not apply in half precision on GPUs, or if `call` needs all scores, for
# example for dropout. For comparison, a 384-pixel image with 16-pixel patches has 577 tokens.
LONG_SEQUENCE = 1024
CHUNK = 256


def runs_on_gpu():
    """Returns whether the JAX backend runs on GPUs."""
    return keras.distribution.list_devices()[0].startswith("gpu")


@serializable
class MultiHeadAttention(BaseLayer):
    """Multi-head attention, self-attention by default.

    Maps `(B, N, D)` to `(B, N, D)` in the compute dtype.

    The softmax is computed in float32 even under mixed precision.

    Args:
        num_heads: number of heads; must divide D.
        dropout: dropout rate of the attention scores, in [0, 1).
        relative_positions: whether to add `q . r[i - j]` to `q . k` for a query at position i and a
            key at position j. All heads share the 2N-1 learned vectors r. N must be static. A class
            token has position 0.
        biases: letters of the projections that have a bias, from "qkvo" (query, key, value,
            output).
        qk_norm: whether to apply a LayerNorm to the queries and keys of each head.
        epsilon: epsilon of the LayerNorms.
        rotary: arguments of `layers.rotary.rotary_table` except `head_size`, as a dict that
            contains at least `grid`; None for no rotary embedding.
        attention_norm: whether to apply a LayerNorm to the concatenated heads before the output
            projection.

    Call arguments:
        tokens: `(B, N, D)`, the input of the key and value projections. If `queries` is None, also
            the input of the query projection.
        queries: `(B, M, D)`, the input of the query projection. The output is then `(B, M, D)`.
        score_change: array to add to the attention scores after the softmax.
        real: bool `(B, N)`, False for padding tokens, which are not attended to.

    Reference: paper appendices A and D.4; the reference's MultiHeadDotProductAttention. The
        projections have the Glorot initialization of a `(D, D)` matrix.
    """

    def __init__(
        self,
        num_heads,
        dropout=0.0,
        relative_positions=False,
        biases="qkvo",
        qk_norm=False,
        epsilon=1e-6,
        rotary=None,
        attention_norm=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(biases, str) or set(biases) - set("qkvo"):
            raise ValueError(
                f'`biases` must contain only letters of "qkvo". Received: biases={biases!r}'
            )
        self._keep_arguments(locals())

    def build(self, input_shape):
        hidden_size = input_shape[-1]
        if hidden_size % self.num_heads:
            raise ValueError(
                "`num_heads` must divide `hidden_size`. "
                f"Received: num_heads={self.num_heads}, hidden_size={hidden_size}"
            )
        head_size = hidden_size // self.num_heads
        head_shape = (*input_shape[:2], self.num_heads, head_size)
        self._make_projections(hidden_size, head_size)
        self._make_norms(input_shape, head_shape)
        self._make_positions(input_shape, head_size)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="drop")
        for layer in (self.query, self.key, self.value):
            layer.build(input_shape)
        self.out.build(head_shape)

    def _make_projections(self, hidden_size, head_size):
        """Creates the projections of the queries, keys and values, and of the output."""
        # Glorot limit of the (D, D) matrix; Keras would derive a different limit from the 3-D
        # kernel shape.
        limit = math.sqrt(6 / (hidden_size + hidden_size))

        def projection(name, equation, output_shape, bias_axes):
            return TokenProjection(
                equation,
                output_shape,
                bias_axes=bias_axes if name[0] in self.biases else None,
                kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
                dtype=self.dtype_policy,
                name=name,
            )

        self.query, self.key, self.value = (
            projection(name, "bnd,dhk->bnhk", (None, self.num_heads, head_size), "hk")
            for name in ("query", "key", "value")
        )
        self.out = projection("out", "bnhk,hkd->bnd", (None, hidden_size), "d")

    def _make_norms(self, input_shape, head_shape):
        """Creates and builds the optional norms."""

        def norm(name, shape):
            layer = keras.layers.LayerNormalization(
                epsilon=self.epsilon, dtype=self.dtype_policy, name=name
            )
            layer.build(shape)
            return layer

        self.query_norm = self.key_norm = self.out_norm = None
        if self.attention_norm:
            self.out_norm = norm("out_norm", input_shape)
        if self.qk_norm:
            self.query_norm = norm("query_norm", head_shape)
            self.key_norm = norm("key_norm", head_shape)

    def _make_positions(self, input_shape, head_size):
        """Creates the optional rotary and relative position embeddings."""
        if self.rotary is not None:
            self._cosines, self._sines = rotary_table(head_size, **self.rotary)
            if input_shape[1] != len(self._cosines):
                raise ValueError(
                    f"The grid and prefix of `rotary` require {len(self._cosines)} tokens. "
                    f"Received: shape={tuple(input_shape)}, rotary={dict(self.rotary)}"
                )
        if self.relative_positions:
            check_static_tokens("`relative_positions`", input_shape, "each distance has a vector")
            # Row i is the vector for distance i - (N-1).
            self.relative_embedding = self.add_normal_weight(
                "relative_embedding", (2 * input_shape[1] - 1, head_size)
            )

    def call(self, tokens, queries=None, training=False, score_change=None, real=None):
        query = self._positioned(
            self.query(tokens if queries is None else queries), self.query_norm
        )
        key = self._positioned(self.key(tokens), self.key_norm)
        value = self.value(tokens)
        needs_scores = (
            (training and self.dropout > 0) or self.relative_positions or score_change is not None
        )
        if keras.backend.backend() != "jax" or needs_scores:
            mixed = self._attend(query, key, value, training, score_change, real)
        else:
            mixed = self._attend_without_scores(query, key, value, real)
        if self.out_norm is not None:
            queries = ops.shape(mixed)[1]
            flat = ops.reshape(mixed, (-1, queries, tokens.shape[-1]))
            mixed = ops.reshape(self.out_norm(flat), (-1, queries, *mixed.shape[2:]))
        return self.out(mixed)

    def _positioned(self, x, norm):
        """Applies the optional norm and rotary embedding to queries or keys.

        Their shape is `(B, M, heads, D/heads)`.
        """
        if norm is not None:
            x = norm(x)
        if self.rotary is None:
            return x
        return rotate(x, self._cosines, self._sines, self.rotary.get("style", "half"))

    def _attend(self, query, key, value, training=False, score_change=None, real=None):
        """Returns the values weighted by the scores, in the shape of `query`."""
        scores = self.scores(query, key, real=real)
        if score_change is not None:
            scores = scores + ops.cast(score_change, scores.dtype)
        scores = self.drop(scores, training=training)
        mixed = ops.matmul(scores, ops.transpose(value, (0, 2, 1, 3)))  # (B, heads, M, D/heads)
        return ops.transpose(mixed, (0, 2, 1, 3))

    def _attend_without_scores(self, query, key, value, real=None):
        """Computes `_attend` on JAX, if no caller needs the scores.

        In half precision on GPUs, this is Keras' attention. Long sequences are split into chunks.
        """
        if self.compute_dtype in ("float16", "bfloat16") and runs_on_gpu():
            mask = self.visible(query.shape[1], key.shape[1], real)
            # Uses cuDNN flash attention if supported.
            return ops.dot_product_attention(query, key, value, mask=mask)
        if query.shape[1] > LONG_SEQUENCE:
            return self._attend_in_chunks(query, key, value, real)
        return self._attend(query, key, value, real=real)

    def _attend_in_chunks(self, query, key, value, real=None):
        """Computes `_attend` for one chunk of queries at a time."""
        batch, queries, heads, size = query.shape
        chunks = -(-queries // CHUNK)
        length = -(-queries // chunks)
        query = ops.pad(query, ((0, 0), (0, chunks * length - queries), (0, 0), (0, 0)))
        query = ops.transpose(
            ops.reshape(query, (batch, chunks, length, heads, size)), (1, 0, 2, 3, 4)
        )
        mixed = ops.map(keras.remat(lambda part: self._attend(part, key, value, real=real)), query)
        mixed = ops.reshape(
            ops.transpose(mixed, (1, 0, 2, 3, 4)), (batch, chunks * length, heads, size)
        )
        return mixed[:, :queries]

    def scores_of(self, tokens, real=None):
        """Returns the attention scores between all tokens.

        Maps `(B, N, D)` to float32 `(B, heads, N, N)`.
        """
        query = self._positioned(self.query(tokens), self.query_norm)
        key = self._positioned(self.key(tokens), self.key_norm)
        return self.scores(query, key, dtype="float32", real=real)

    def scores(self, query, key, dtype=None, real=None):
        """Returns the attention scores after the softmax, `(B, heads, M, N)`.

        `dtype` defaults to the compute dtype.
        """
        query = query * (query.shape[-1] ** -0.5)
        query = ops.transpose(query, (0, 2, 1, 3))  # (B, heads, M, D/heads)
        key = ops.transpose(key, (0, 2, 3, 1))  # (B, heads, D/heads, N)
        scores = ops.matmul(query, key)
        if self.relative_positions:
            scores = scores + self._distance_scores(query)
        mask = self.visible(scores.shape[2], scores.shape[3], real)
        return self.softmax(scores, mask, dtype or self.compute_dtype)

    def softmax(self, scores, mask, dtype):
        """Returns the softmax over the keys that `mask` shows, computed in float32, in a dtype."""
        if self.compute_dtype in ("float16", "bfloat16"):
            scores = ops.cast(scores, "float32")
        if mask is not None:
            scores = ops.where(mask, scores, -1e9)  # -inf gives NaN if all tokens are padding
        return ops.cast(ops.softmax(scores, axis=-1), dtype)

    def visible(self, queries, keys, real=None):
        """Returns which keys a query attends to, or None for all keys.

        The array is bool and can be broadcast to `(B, heads, M, N)`.
        """
        return None if real is None else real[:, None, None, :]

    def _distance_scores(self, query):
        """Computes `q . r[i - j]` for queries at positions i < M.

        Maps `(B, heads, M, D/heads)` to `(B, heads, M, N)`.
        """
        queries = query.shape[2]
        distances = self.relative_embedding.shape[0]
        tokens = (distances + 1) // 2
        # Column t of `table` belongs to distance N-1-t. Row i needs the distances i, i-1, ...,
        # i-(N-1), which start at column N-1-i.
        table = ops.transpose(ops.flip(ops.cast(self.relative_embedding, self.compute_dtype), 0))
        scores = ops.matmul(query, table)
        scores = ops.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1)))  # (B, heads, M, 2N)
        # Drop the first N-1 elements, then reshape to rows that are one element shorter. This
        # shifts each row by one column more than the row above, so that every row starts at the
        # distance that it needs.
        first = tokens - 1
        scores = ops.reshape(scores, (-1, self.num_heads, queries * (distances + 1)))
        scores = ops.pad(scores, ((0, 0), (0, 0), (0, first)))
        scores = scores[:, :, first : first + queries * distances]
        scores = ops.reshape(scores, (-1, self.num_heads, queries, distances))
        return scores[..., :tokens]

    def compute_output_shape(self, tokens_shape, queries_shape=None):
        return tokens_shape if queries_shape is None else queries_shape

    def multiply_accumulates(self, tokens_shape, queries_shape=None):
        """Returns the multiply-accumulates of one example.

        The shapes are those of the tokens, `(B, N, D)`, and of the queries, `(B, M, D)`.
        """
        tokens, hidden_size = tokens_shape[1:]
        queries = tokens if queries_shape is None else queries_shape[1]
        projections = 2 * (tokens + queries) * hidden_size**2
        distances = queries * (2 * tokens - 1) * hidden_size if self.relative_positions else 0
        return projections + 2 * queries * tokens * hidden_size + distances
