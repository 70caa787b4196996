# ruff: noqa: F821, B018
"""Examples for the API reference. docs/site/docstrings.py inserts each example into the docstring
of the named object.

tests/reference_examples_test.py runs the examples with small models, images and files. For examples
marked "not run", it only checks names and arguments.
"""

# %% keras_vit.from_pretrained
model = keras_vit.from_pretrained("facebook/dinov2-base", input_shape=(224, 280, 3))
# For fine-tuning on 37 classes
model = keras_vit.from_pretrained("facebook/dinov2-base", classes=37, head="new")

# %% keras_vit.preprocess_input
x = keras_vit.preprocess_input(pixels, model)  # normalizes pixels in [0, 255] for the model
logits = model.predict(x)

# %% keras_vit.decode_predictions
keras_vit.decode_predictions(
    model.predict(images), top=2, names=["cat", "dog", "bird"]
)  # [[(0, "cat", 0.9), ...], ...]

# %% keras_vit.Preprocessing
# `mean` and `std` are on the scale of pixels in [0, 255]
imagenet = keras_vit.Preprocessing(mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
model = keras_vit.ViT_Ti16(preprocessing=imagenet)

# %% keras_vit.preprocessing_of
mean = keras_vit.preprocessing_of(model).mean
std = keras_vit.preprocessing_of(model).std

# %% keras_vit.LinearSegmenter
segmenter = keras_vit.LinearSegmenter.on(model, classes=21)  # copies the weights of a backbone
keras_vit.freeze(segmenter, "head")
logits = segmenter.predict(images)  # (N, rows, columns, 21)

# %% keras_vit.DensePredictionTransformer
segmenter = keras_vit.DensePredictionTransformer.on(model, classes=21, readout="project")
logits = segmenter.predict(images)  # (N, h, w, 21)
# Depth in meters, up to 20
depth = keras_vit.DensePredictionTransformer.on(model, predicts="depth", max_depth=20.0)

# %% keras_vit.features
vectors = keras_vit.features(model, images)  # (N, D), the class token after the last norm
# Returns a list of two arrays (N, rows, columns, D)
maps = keras_vit.features(model, images, layers=[1, -1], tokens="patch", grid=True)

# %% keras_vit.FeatureModel
pooled = keras_vit.FeatureModel(model, tokens="pooled")
vectors = pooled.predict(images)  # (N, F), the input of the head
pooled.save("features.keras")

# %% keras_vit.backbone
backbone = keras_vit.backbone(model, layers=[1, 2], strides=[4, 8])
fine, coarse = backbone(images)  # (B, H/4, W/4, D) and (B, H/8, W/8, D)

# %% keras_vit.freeze
keras_vit.freeze(model)  # everything except the head
# Freezes the first block and everything before it
keras_vit.freeze(model, up_to=1)

# %% keras_vit.unfreeze
keras_vit.unfreeze(model)  # trains everything again

# %% keras_vit.enable_lora
# Trains the head, and adapters of rank 4 for queries and values
keras_vit.enable_lora(model, rank=4)

# %% keras_vit.zero_shot (not run: needs a tokenizer)
tower = keras_vit.from_pretrained("google/siglip2-base-patch16-224")
# The file contains class names and their text embeddings
classifier = keras_vit.zero_shot(tower, "classes.npz")
# From words
model = keras_vit.from_pretrained("google/siglip2-base-patch16-224", tower="both")
classifier = keras_vit.zero_shot(model, ["cat", "dog"])  # needs keras_vit[text]

# %% keras_vit.text.Tokenizer (not run: downloads a tokenizer)
tokenizer = keras_vit.text.Tokenizer("google/siglip2-base-patch16-224", length=64)
ids = tokenizer(["a photo of a cat", "a photo of a dog"])  # int32 (2, 64)

# %% keras_vit.text.fill
keras_vit.text.fill(["a photo of a {}."], "cat")  # ["a photo of a cat."]

# %% keras_vit.flops
keras_vit.flops(model)  # for one image

# %% keras_vit.cost.multiply_accumulates
keras_vit.cost.multiply_accumulates(model)  # for one image

# %% keras_vit.cost.exaflops
# The cost of 90 epochs on ImageNet
multiply_accumulates = keras_vit.cost.multiply_accumulates(model, table_6=True)
keras_vit.cost.exaflops(multiply_accumulates, images=90 * 1_281_167)

# %% keras_vit.cost.build_abstract
huge = keras_vit.cost.build_abstract(keras_vit.DINOv3_7B16)  # allocates no weights
huge.count_params()

# %% keras_vit.models.VisionTransformer
model = keras_vit.VisionTransformer(
    patch_size=8,
    num_layers=4,
    hidden_size=64,
    mlp_dim=128,
    num_heads=4,
    input_shape=(32, 48, 3),
    classes=10,
)
# Returns a dict with "tokens", "attention", "pre_logits", ...
out = model.intermediates(keras.ops.zeros((1, 32, 48, 3)), attention=True)

# %% keras_vit.models.NaFlexVisionTransformer
naflex = keras_vit.NaFlexVisionTransformer(
    patch_size=8,
    num_layers=2,
    hidden_size=32,
    mlp_dim=64,
    num_heads=4,
    max_patches=64,
    input_shape=(64, 64, 3),
)

# %% keras_vit.models.MaskedPatchVisionTransformer
masked = keras_vit.MaskedPatchVisionTransformer(
    patch_size=8,
    num_layers=2,
    hidden_size=32,
    mlp_dim=64,
    num_heads=4,
    input_shape=(32, 48, 3),
    classifier="token_unpooled",
)
outputs, corrupted = masked(keras.ops.zeros((1, 32, 48, 3)))

# %% keras_vit.models.TextTransformer
text = keras_vit.TextTransformer(
    vocabulary_size=1000,
    length=16,
    num_layers=2,
    hidden_size=32,
    mlp_dim=64,
    num_heads=4,
    embedding_size=48,
)
embeddings = text(np.zeros((1, 16), "int32"))  # (1, 48)

# %% keras_vit.models.TwoTowers
sizes = {"num_layers": 2, "hidden_size": 32, "mlp_dim": 64, "num_heads": 4}
image = keras_vit.VisionTransformer(
    patch_size=8, input_shape=(32, 48, 3), classifier="map", include_top=False, **sizes
)
text = keras_vit.TextTransformer(vocabulary_size=1000, length=16, embedding_size=32, **sizes)
model = keras_vit.TwoTowers(image, text, scale=10.0, bias=-10.0)
ids = np.zeros((5, 16), "int32")
logits = model([np.zeros((3, 32, 48, 3)), ids])  # (3, 5): images, texts

# %% keras_vit.at_patch_size
with keras_vit.at_patch_size(model, 4):
    logits = model(keras.ops.zeros((1, *model.image_shape)))

# %% keras_vit.models.AxialVisionTransformer
model = keras_vit.AxialVisionTransformer(
    patch_size=8,
    num_layers=2,
    hidden_size=32,
    mlp_dim=64,
    num_heads=4,
    input_shape=(32, 48, 3),
    classes=10,
)

# %% keras_vit.models.BiTResNet
model = keras_vit.BiTResNet(depth=50, width_factor=1, input_shape=(64, 64, 3), classes=10)

# %% keras_vit.models.load_keras_file
model.save("mine.keras")
model = keras_vit.load_keras_file("mine.keras")

# %% keras_vit.layers.Patches
patches = keras_vit.Patches(8)(images)  # (B, H/8 * W/8, 8 * 8 * 3)

# %% keras_vit.layers.PatchEncoder
tokens = keras_vit.PatchEncoder(64)(keras_vit.Patches(8)(images))  # (B, N, 64)

# %% keras_vit.layers.PositionEmbedding
tokens = keras_vit.PositionEmbedding()(keras.ops.zeros((2, 6, 64)))

# %% keras_vit.layers.PositionEmbedding2D
tokens = keras_vit.PositionEmbedding2D(grid=(2, 3))(keras.ops.zeros((2, 6, 64)))

# %% keras_vit.layers.SinCosPositionEmbedding
tokens = keras_vit.SinCosPositionEmbedding(grid=(2, 3))(keras.ops.zeros((2, 6, 64)))

# %% keras_vit.layers.NoPositionEmbedding
tokens = keras_vit.NoPositionEmbedding(grid=(2, 3))(keras.ops.zeros((2, 6, 64)))

# %% keras_vit.layers.ClassToken
tokens = keras_vit.ClassToken()(keras.ops.zeros((2, 6, 64)))  # (2, 7, 64)

# %% keras_vit.layers.RegisterTokens
# Returns (2, 11, 64), with the registers after the class token
tokens = keras_vit.RegisterTokens(4, after=1)(keras.ops.zeros((2, 7, 64)))

# %% keras_vit.layers.TransformerBlock
block = keras_vit.TransformerBlock(num_heads=4, mlp_dim=128, dropout=0.1, stochastic_depth=0.1)
tokens = block(keras.ops.zeros((2, 7, 64)), training=True)

# %% keras_vit.layers.AxialTransformerBlock
block = keras_vit.AxialTransformerBlock(grid=(2, 3), num_heads=4, mlp_dim=128)
tokens = block(keras.ops.zeros((2, 6, 64)))

# %% keras_vit.layers.LayerScale
tokens = keras_vit.LayerScale(init=0.1)(keras.ops.ones((2, 7, 64)))

# %% keras_vit.layers.AttentionPooling
# Returns (2, 64)
vectors = keras_vit.AttentionPooling(num_heads=4, mlp_dim=128)(keras.ops.zeros((2, 6, 64)))

# %% keras_vit.layers.InputPreprocessing
inputs = keras.Input((32, 32, 3))
# Records that the model takes pixel values from 0 to 255
x = keras_vit.InputPreprocessing(keras_vit.Preprocessing(mean=(0, 0, 0), std=(1, 1, 1)))(inputs)
model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(x)))

# %% keras_vit.layers.ResNetStem
# Returns (1, 8, 8, 512)
grid = keras_vit.ResNetStem(blocks=(2, 2))(keras.ops.zeros((1, 64, 64, 3)))

# %% keras_vit.layers.PreActivationResNet
# Returns (1, 8, 8, 512)
grid = keras_vit.PreActivationResNet(blocks=(2, 2))(keras.ops.zeros((1, 64, 64, 3)))

# %% keras_vit.naflex.batch_shape
model_input = keras.Input(
    keras_vit.naflex.batch_shape(max_patches=256, patch_size=16)
)  # (None, 256, 258, 3)

# %% keras_vit.naflex.pack
# the outputs of transformers' Siglip2ImageProcessor
patches = np.zeros((1, 6, 8 * 8 * 3))
shapes = np.array([[2, 2]])
batch = keras_vit.naflex.pack(patches, shapes)  # (1, 6, 66, 3); the last two patches are padding

# %% keras_vit.naflex.preprocess
wide = np.zeros((20, 90, 3), "uint8")
tall = np.zeros((80, 30, 3), "uint8")
batch = keras_vit.naflex.preprocess(
    [wide, tall], [127.5] * 3, [127.5] * 3, patch_size=16, max_patches=64
)

# %% keras_vit.checkpoints.load
model = keras_vit.VisionTransformer(
    patch_size=8,
    num_layers=2,
    hidden_size=32,
    mlp_dim=64,
    num_heads=4,
    input_shape=(32, 48, 3),
    classes=37,
)
# Prints how each array was used
print(keras_vit.checkpoints.load(model, "model.npz", head="new"))

# %% keras_vit.checkpoints.save
keras_vit.checkpoints.save(model, "mine.npz")  # the layout of vit_jax
keras_vit.checkpoints.save(model, "for_timm", format="timm")

# %% keras_vit.checkpoints.fetch (not run: downloads)
path = keras_vit.checkpoints.fetch("imagenet21k:ViT-B_16")  # the local file

# %% keras_vit.checkpoints.find_published
row = keras_vit.checkpoints.find_published("augreg", **keras_vit.families.sizes()["ViT-B/16"])
row.url, row.model, row.classes

# %% keras_vit.checkpoints.find_preprocessing
keras_vit.checkpoints.find_preprocessing("imagenet21k:ViT-B_16")

# %% keras_vit.checkpoints.find_class_names
keras_vit.checkpoints.find_class_names("model.npz")  # None, because an .npz file has no class names

# %% keras_vit.checkpoints.infer_architecture
name, arguments = keras_vit.checkpoints.infer_architecture("model.npz")

# %% keras_vit.families.sizes
keras_vit.families.sizes()["ViT-B/16"]  # {"patch_size": 16, "hidden_size": 768, ...}

# %% keras_vit.families.text_tower
tower = keras_vit.families.text_tower("SigLIP-B/16", num_layers=2, length=16)
tower.output_shape  # (None, 768)

# %% keras_vit.families.two_towers
pair = keras_vit.families.two_towers(
    "SigLIP-B/16", text={"num_layers": 2, "length": 16}, num_layers=2, input_shape=(32, 32, 3)
)
pair.encode_image(np.zeros((1, 32, 32, 3), "float32"))  # (1, 768)

# %% keras_vit.families.find_size
keras_vit.families.find_size(keras_vit.families.sizes()["ViT-B/16"])  # "ViT-B/16"

# %% keras_vit.families.find_family
keras_vit.families.find_family("DINOv2-B/14").published  # the published files of the family

# %% keras_vit.families.constructor_name
keras_vit.families.constructor_name("ViT-B/16")  # "ViT_B16"

# %% keras_vit.families.canonical_name
keras_vit.families.canonical_name("R50x1")  # "BiT-R50x1"

# %% keras_vit.families.model_config
fields = keras_vit.families.model_config("ViT-B/16", dropout=0.1)
config = keras_vit.recipes.defaults(**fields)

# %% keras_vit.families.model_class
keras_vit.families.model_class("SigLIP2-NaFlex-B/16")  # keras_vit.NaFlexVisionTransformer

# %% keras_vit.families.model_fields
# Returns {"patch_size": <class 'int'>, "dropout": 0.0, ...}
keras_vit.families.model_fields("VisionTransformer")

# %% keras_vit.families.constructor_arguments
family = keras_vit.families.find_family("ViT-B/16")
keras_vit.families.constructor_arguments(family, {"dropout": 0.1})

# %% keras_vit.families.parameters_of
keras_vit.families.parameters_of(keras_vit.VisionTransformer)["dropout"].default  # 0.0

# %% keras_vit.families.register (not run: changes the registry)
size = keras_vit.families.Sizes(keras_vit.VisionTransformer)
Tiny_8 = size("Tiny/8", "mine", patch_size=8, num_layers=2, hidden_size=32, mlp_dim=64, num_heads=4)
keras_vit.families.register(
    keras_vit.families.Family(keras_vit.VisionTransformer, sizes=size.table)
)

# %% keras_vit.data.arrays
# `pixels` is uint8 (N, H, W, C), and `labels` is int (N,)
source = keras_vit.data.arrays(pixels, labels, class_names=["cat", "dog"])

# %% keras_vit.data.folder
train = keras_vit.data.folder("photos", "train", test_share=0.2)  # photos/<class>/*
test = keras_vit.data.folder("photos", "test", test_share=0.2)

# %% keras_vit.data.folder_splits
sources = keras_vit.data.folder_splits("photos")  # {"": all images of photos/<class>/*}

# %% keras_vit.data.file_list
source = keras_vit.data.file_list("train.csv", root="photos")  # lines of file,label

# %% keras_vit.data.tfrecords
source = keras_vit.data.tfrecords("records/train-*", class_names=["cat", "dog"])

# %% keras_vit.data.tfds (not run: downloads)
source = keras_vit.data.tfds("beans", "train")

# %% keras_vit.data.load
train, test = keras_vit.data.load("folder", path="photos", test_share=0.2)

# %% keras_vit.data.load_split
test = keras_vit.data.load_split("digits", "test")

# %% keras_vit.data.load_splits
# Returns {"train": ..., "test": ...}
sources = keras_vit.data.load_splits(keras_vit.data.defaults(name="digits"))

# %% keras_vit.data.dataset_names
keras_vit.data.dataset_names()  # ["digits", "cifar10", ...]

# %% keras_vit.data.check_splits
train, test = keras_vit.data.load("digits")
keras_vit.data.check_splits(train, test)  # raises a ValueError if the classes differ

# %% keras_vit.data.subset
source = keras_vit.data.load_split("digits", "train")
first = keras_vit.data.subset(source, range(100))

# %% keras_vit.data.defaults
fields = keras_vit.data.defaults(name="folder", path="photos", image_size=224)

# %% keras_vit.data.option_fields
options = keras_vit.data.Options(
    **keras_vit.data.option_fields({"name": "folder", "image_size": 224})
)

# %% keras_vit.data.Options
options = keras_vit.data.Options(image_size=32, augreg="medium1", label_smoothing=0.1)

# %% keras_vit.data.from_config
inputs = keras_vit.data.from_config(
    {"name": "folder", "path": "photos", "image_size": 32}, batch_size=8, seed=0
)
images, labels, weights = next(iter(inputs.train_batches(start_step=0)))

# %% keras_vit.data.train_batches
source = keras_vit.data.load_split("digits", "train")
batches = keras_vit.data.train_batches(source, batch_size=64, seed=0, start_step=10)
images, labels, weights = next(iter(batches))  # (64, 8, 8, 3), (64, 10), (64,)

# %% keras_vit.data.eval_batches
source = keras_vit.data.load_split("digits", "test")
batches = keras_vit.data.eval_batches(source, batch_size=64)
# Weights are 0 for the padding of the last batch
images, labels, weights = next(iter(batches))

# %% keras_vit.data.evaluation_order
source = keras_vit.data.load_split("digits", "test")
# Returns the index of the example at each position of eval_batches
keras_vit.data.evaluation_order(source, batch_size=64)

# %% keras_vit.data.verify
report = keras_vit.data.verify(keras_vit.data.folder_splits("photos"))

# %% keras_vit.data.hide_accelerators_from_tensorflow (not run: changes the process)
# Call this before TensorFlow's first operation, to leave the GPUs to JAX
keras_vit.data.hide_accelerators_from_tensorflow()

# %% keras_vit.recipes.defaults
config = keras_vit.recipes.defaults(total_steps=100, data=keras_vit.data.defaults(name="digits"))

# %% keras_vit.recipes.model_fields
keras_vit.recipes.model_fields("classification", "ViT-B/16")

# %% keras_vit.recipes.pretraining
keras_vit.recipes.pretraining("ViT-L/16", "imagenet21k", epochs=30)

# %% keras_vit.recipes.augreg
keras_vit.recipes.augreg(
    "ViT-S/16", "imagenet21k", augreg="medium1", dropout=0.0, weight_decay=0.1, epochs=300
)

# %% keras_vit.recipes.finetuning
keras_vit.recipes.finetuning("ViT-B/16", "cifar10", resolution=512)

# %% keras_vit.recipes.rates
keras_vit.recipes.rates("cifar10")  # (0.001, 0.003, 0.01, 0.03)

# %% keras_vit.recipes.parse_config_arg
# Returns ("ViT-L/16", "imagenet21k", {"epochs": 30})
keras_vit.recipes.parse_config_arg("ViT-L/16,imagenet21k,epochs=30")

# %% keras_vit.tasks.Distillation
config.update(task="distillation", teacher="runs/digits")
task = keras_vit.tasks.Distillation(config)

# %% keras_vit.tasks.get
task = keras_vit.tasks.get(config)  # the task that config.task names

# %% keras_vit.losses.softmax
# Returns (2,)
loss = keras_vit.losses.softmax(keras.ops.one_hot([0, 2], 3), keras.ops.zeros((2, 3)))

# %% keras_vit.losses.sigmoid
# Returns (1,)
loss = keras_vit.losses.sigmoid(keras.ops.array([[1.0, 0.0, 1.0]]), keras.ops.zeros((1, 3)))

# %% keras_vit.losses.get
loss = keras_vit.losses.get("sigmoid")

# %% keras_vit.optimizers.get
schedule = keras_vit.optimizers.Schedule("cosine", base=1e-3, total_steps=1000, warmup_steps=100)
optimizer = keras_vit.optimizers.get("adamw", schedule, weight_decay=0.1, layer_decay=0.75)

# %% keras_vit.optimizers.SGD
model.compile(keras_vit.optimizers.SGD(0.03, momentum_dtype="bfloat16"), "mse")

# %% keras_vit.optimizers.AdamW
model.compile(keras_vit.optimizers.AdamW(1e-3, weight_decay=0.1, no_decay="bias,cls"), "mse")

# %% keras_vit.optimizers.Schedule
schedule = keras_vit.optimizers.Schedule("cosine", base=0.03, total_steps=1000, warmup_steps=100)
schedule(100)  # 0.03

# %% keras_vit.optimizers.global_norm
norm = keras_vit.optimizers.global_norm([keras.ops.ones((2, 3)), None])  # sqrt(6)

# %% keras_vit.optimizers.clip_by_global_norm
gradients, norm = keras_vit.optimizers.clip_by_global_norm([keras.ops.ones((2, 3))], norm=1.0)

# %% keras_vit.optimizers.ema_update
average = keras_vit.optimizers.ema_update(keras.ops.zeros((2,)), keras.ops.ones((2,)), decay=0.999)

# %% keras_vit.training.run
result = keras_vit.training.run(config, keras_vit.training.Workdir("runs/small", config.to_dict()))
result.model, result.metrics

# %% keras_vit.training.Workdir
workdir = keras_vit.training.Workdir("runs/small", config.to_dict())  # writes nothing yet

# %% keras_vit.training.choose_engine
engine = keras_vit.training.choose_engine(config)


# %% keras_vit.training.load_checkpoint
result, config = keras_vit.training.load_checkpoint("runs/digits")
result.model, result.metrics

# %% keras_vit.training.load_stored_model
model, details = keras_vit.training.load_stored_model("runs/digits")
names = details["class_names"]

# %% keras_vit.training.has_checkpoint
keras_vit.training.has_checkpoint("runs/digits")

# %% keras_vit.training.read_config
config = keras_vit.training.read_config("runs/digits")

# %% keras_vit.training.read_metrics
# Returns {"step": ..., "loss": ...}
columns = keras_vit.training.read_metrics("runs/digits/metrics.csv")

# %% keras_vit.training.is_chief
if keras_vit.training.is_chief():
    print("this process writes the files")

# %% keras_vit.training.plots.training_curve
columns = keras_vit.training.read_metrics("runs/digits/metrics.csv")
keras_vit.training.plots.training_curve("curve.png", columns)

# %% keras_vit.training.plots.accuracy_against_cost
row = {"patch size": 4, "multiply-accumulates": 1.3e6, "accuracy": 0.9}
keras_vit.training.plots.accuracy_against_cost("patch_sizes.png", {"one model": [row]})

# %% keras_vit.evaluation.evaluate
model = keras_vit.training.load_checkpoint("runs/digits")[0].model
# Returns {"top1:digits/accuracy": 0.9, ...}
keras_vit.evaluation.evaluate(model, ["top1:digits", "calibration:digits"])

# %% keras_vit.evaluation.get
evaluators = keras_vit.evaluation.get(["fewshot:digits"])

# %% keras_vit.evaluation.load_inputs
model = keras_vit.training.load_checkpoint("runs/digits")[0].model
inputs = keras_vit.evaluation.load_inputs(model, "digits", splits=("test",))

# %% keras_vit.evaluation.model_digest
keras_vit.evaluation.model_digest(model)  # changes with the config or any weight

# %% keras_vit.evaluation.weights_digest
keras_vit.evaluation.weights_digest(model)  # changes with any weight

# %% keras_vit.evaluation.plots.predictions
probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(model(images)))
keras_vit.evaluation.plots.predictions(
    "predictions.png", images, labels, probabilities, ["cat", "dog", "bird"]
)

# %% keras_vit.evaluation.plots.reliability
keras_vit.evaluation.plots.reliability(
    "reliability.png",
    counts=np.array([5, 20]),
    confidence=np.array([0.3, 0.8]),
    accuracy=np.array([0.2, 0.9]),
)

# %% keras_vit.evaluation.plots.confusion
keras_vit.evaluation.plots.confusion("confusion.png", np.array([[9, 1], [2, 8]]), ["cat", "dog"])

# %% keras_vit.inspection.attention_scores
scores = keras_vit.inspection.attention_scores(model, images)  # (layers, B, heads, N, N)

# %% keras_vit.inspection.attention_maps
maps = keras_vit.inspection.attention_maps(model, images)  # (B, H, W), by attention rollout
maps = keras_vit.inspection.attention_maps(model, images, method="relevance")

# %% keras_vit.inspection.attention_rollout
scores = keras_vit.inspection.attention_scores(model, images, reduce="mean")
rollout = keras_vit.inspection.attention_rollout(scores)  # (B, N, N)

# %% keras_vit.inspection.attention_relevance
# Returns (B, N, N), the relevance for these classes
relevance = keras_vit.inspection.attention_relevance(model, images, targets=[0, 2])

# %% keras_vit.inspection.token_attention
rollout, attention = keras_vit.inspection.token_attention(
    model, images, patch=(1, 2), layer=1, head=1
)

# %% keras_vit.inspection.upsample_maps
# Returns (B, rows, columns)
maps = keras_vit.inspection.attention_maps(model, images, upsample=False)
maps = keras_vit.inspection.upsample_maps(maps, size=(16, 24))

# %% keras_vit.inspection.overlay
maps = keras_vit.inspection.attention_maps(model, images)
pictures = keras_vit.inspection.overlay(images, maps)  # (B, H, W, 3) in [0, 1]

# %% keras_vit.inspection.attention_distance
# Returns (layers, heads), in pixels
distances = keras_vit.inspection.attention_distance(model, images)

# %% keras_vit.inspection.mean_distance
scores = keras_vit.inspection.attention_scores(model, images)
keras_vit.inspection.mean_distance(
    scores, model.grid, patch_size=(8, 8), num_prefix_tokens=model.num_prefix_tokens
)

# %% keras_vit.inspection.filter_components
filters = keras_vit.inspection.filter_components(model, count=8)  # (8, P, P, C) in [0, 1]

# %% keras_vit.inspection.patch_components
# Returns (B, rows, columns, 3) in [0, 1]
colors = keras_vit.inspection.patch_components(model, images)

# %% keras_vit.inspection.position_similarity
# Returns (rows, columns, rows, columns)
similarity = keras_vit.inspection.position_similarity(model)

# %% keras_vit.inspection.plots.attention
maps = keras_vit.inspection.attention_maps(model, images)
keras_vit.inspection.plots.attention("attention.png", (images + 1) / 2, {"rollout": maps})

# %% keras_vit.inspection.plots.attention_heads
scores = keras_vit.inspection.attention_scores(model, images, layers=1)  # (B, heads, N, N)
maps = scores[0, :, 0, 1:].reshape(-1, *model.grid)  # attention of the class token
keras_vit.inspection.plots.attention_heads("heads.png", (images[0] + 1) / 2, maps)

# %% keras_vit.inspection.plots.attention_distance
distances = keras_vit.inspection.attention_distance(model, images)
keras_vit.inspection.plots.attention_distance("distance.png", distances, side=16)

# %% keras_vit.inspection.plots.position_similarity
similarity = keras_vit.inspection.position_similarity(model)
keras_vit.inspection.plots.position_similarity("positions.png", {"mine": similarity})

# %% keras_vit.inspection.plots.filters
keras_vit.inspection.plots.filters("filters.png", keras_vit.inspection.filter_components(model))

# %% keras_vit.inspection.plots.patch_components
colors = keras_vit.inspection.patch_components(model, images)
keras_vit.inspection.plots.patch_components("patches.png", (images + 1) / 2, colors)

# %% keras_vit.inspection.report.write_report
# Writes inspection/index.html
keras_vit.inspection.report.write_report(model, images, "inspection")

# %% keras_vit.export.saved_model
# Writes served/pets/1
path = keras_vit.export.saved_model(model, "served/pets", class_names=["cat", "dog", "bird"])

# %% keras_vit.export.onnx (not run: needs tf2onnx)
report = keras_vit.export.onnx(model, "pets.onnx")
report.largest_difference, report.size_bytes

# %% keras_vit.export.litert (not run: takes long)
report = keras_vit.export.litert(model, "pets.tflite", quantization="int8")
report.largest_difference, report.size_bytes

# %% keras_vit.export.load
model = keras_vit.export.load("runs/digits/export/1")

# %% keras_vit.export.load_card
card = keras_vit.export.load_card("runs/digits/export/1")
card["class_names"]

# %% keras_vit.export.newest_version
keras_vit.export.newest_version("runs/digits/export")  # "runs/digits/export/1"

# %% keras_vit.export.has_model
keras_vit.export.has_model("runs/digits/export/1", model, class_names=["cat", "dog", "bird"])

# %% keras_vit.export.check
# Raises a ValueError if the model cannot be exported
keras_vit.export.check(model, class_names=["cat", "dog", "bird"])

# %% keras_vit.export.default_signatures
keras_vit.export.default_signatures(model)  # ("serving_default", "tensor")

# %% keras_vit.preprocessing.check_channels
keras_vit.preprocessing.check_channels(images.shape, 3)

# %% keras_vit.preprocessing.concrete_values
keras_vit.preprocessing.concrete_values(keras.ops.zeros((2, 3)))  # a numpy array

# %% keras_vit.preprocessing.range_error
# Returns None, because the images are in [-1, 1]
keras_vit.preprocessing.range_error(images, keras_vit.Preprocessing())

# %% keras_vit.preprocessing.find_preprocessing
keras_vit.preprocessing.find_preprocessing(model)

# %% keras_vit.tpu.check (not run: compiles for minutes)
check = keras_vit.tpu.check(keras_vit.tasks.get(config), config, batch_size=512, topology="v5e:2x4")
check.fits, check.memory_bytes, check.images_per_second_estimate

# %% keras_vit.tpu.get_topology
keras_vit.tpu.get_topology("v3:2x2").num_devices  # 8
