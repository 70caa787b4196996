import numpy as np
import pytest

from keras_vit import losses
from keras_vit.training.scoring import make_evaluate


@pytest.mark.parametrize(("replicas", "examples"), [(1, 11), (2, 11), (2, 16), (4, 1)])
def test_every_example_counts_once_whatever_their_number(replicas, examples, tiny):
    strategy = tiny.strategy_of(replicas)
    model = tiny.new_state(strategy).model
    made = tiny.input_of(test=examples)
    loss, accuracy = make_evaluate(strategy, model, losses.softmax, made)()
    images = np.stack([made.test.read(i)["image"] for i in range(examples)]).astype("float32") / 127.5 - 1
    logits = np.asarray(model(images), "float64")
    labels = np.asarray(made.test.labels)
    each = np.log(np.exp(logits).sum(-1)) - logits[np.arange(examples), labels]
    np.testing.assert_allclose(loss, each.mean(), rtol=1e-5)
    assert accuracy == (logits.argmax(-1) == labels).mean()
