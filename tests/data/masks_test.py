"""Tests of masks and depths: their files, their geometry, and what is refused."""

import io
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from keras_vit import data, evaluation
from keras_vit.data.targets.masks import class_colors

from .helpers import jpeg, names_of, read_all

NAMES = ("sky", "tree", "road")
DEPTH = np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000


def png(values, palette=b""):
    """Returns a PNG file with 1, 8 or 16 bits for values that are Boolean, uint8 or uint16.

    Values are gray `(H, W)`, colors `(H, W, 3)`, or indices `(H, W)` of a palette, whose length
    sets the bits.
    """
    if values.dtype == np.uint16:
        return tf.io.encode_png(values.reshape(*values.shape[:2], -1)).numpy()
    image = Image.fromarray(values)
    if palette:
        image.putpalette(palette)
    before_palette = PngInfo()
    before_palette.add(b"gAMA", b"\0\0\xb1\x8f")
    file = io.BytesIO()
    image.save(file, "PNG", pnginfo=before_palette)
    return file.getvalue()


def npy(values):
    """Returns an .npy file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def blocks(seed, classes=3, size=(4, 5)):
    """Returns a mask of squares of 16x16 pixels, which has 255 in one of them."""
    mask = np.random.default_rng(seed).integers(0, classes, size, np.uint8)
    mask[1, 1] = 255
    return mask.repeat(16, 0).repeat(16, 1)


def write_scenes(folder, size=(4, 5)):
    """Writes 6 images whose gray is 50 times the class, or 250 where the mask is ignored."""
    for number in range(6):
        mask = blocks(number, size=size)
        (folder / "images" / f"{number}.png").write_bytes(png(50 * np.minimum(mask, 5)))
        (folder / "masks" / f"{number}.png").write_bytes(png(mask))


def classes_of_pixels(images, tolerance=0.02):
    """Returns the class that the gray of each pixel of `write_scenes` stands for, and whether the
    gray is not interpolated between two squares."""
    gray = (127.5 * images.numpy()[..., 0] + 127.5) / 50
    number = np.rint(gray)
    return np.where(number == 5, 255, number), np.abs(gray - number) < tolerance


@pytest.fixture
def scenes(tmp_path):
    """Returns a folder of 6 images of 64x80 pixels and their masks."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    write_scenes(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    return tmp_path


def load(path, batch_size=6, target="masks", **fields):
    fields = {"name": "masks", "path": str(path), "image_size": 32, "split_seed": 1, **fields}
    return data.from_config(fields, batch_size=batch_size, seed=0, target=target)


def pairs_of(source):
    return [(example["image"].numpy(), example["mask"].numpy()) for example in read_all(source)]


def target_of(stored, shape, kind="masks", classes=3, **options):
    """Returns a target kind whose source has one example: a black image and a stored target."""
    key = data.TARGETS[kind].key
    example = {"image": tf.zeros((*shape, 3), tf.uint8), key: tf.constant(stored)}
    names = tuple(f"class {number}" for number in range(classes))
    source = data.Source(lambda index: example, 1, names, target=kind)
    return data.TARGETS[kind](source, data.Options(**options))


def decoded(target):
    """Returns the decoded target of the example, or what is wrong with it."""
    example = target.source.read(0)
    values, weight, is_valid = target.decode(example)
    assert weight == float(is_valid)
    return values.numpy() if is_valid else target.problem_of(example)


@pytest.fixture
def decode_colors(tmp_path):
    """Returns a function that decodes a mask with the colors of a table."""

    def decode(stored, table="9 0 0 class 0\n0 0 0 ignored\n0 200 0 class 1\n"):
        path = tmp_path / "colors.txt"
        path.write_text(table)
        return decoded(target_of(stored, (64, 80), classes=2, mask_colors=str(path)))

    return decode


@pytest.mark.parametrize(
    "fields",
    [
        {"train_crop": "none", "eval_crop": "none", "shift": 3},
        {"train_crop": "inception", "image_size": 64},
        {"train_crop": "resize", "shift": 5, "rounding": "uint8", "interpolation": "bicubic"},
        {"train_crop": "resize_crop", "resize_size": 48, "eval_crop": "resize_crop"},
        {"train_crop": "resize_small_crop", "resize_size": 40, "eval_crop": "resize_small_crop"},
    ],
    ids=lambda fields: fields["train_crop"],
)
def test_masks_stay_aligned_with_their_images(scenes, fields):
    if fields["train_crop"] == "none":
        write_scenes(scenes, size=(2, 2))  # images of 32x32 pixels
    inputs = load(scenes, test_share=0.5, flip="on", **fields)
    train = iter(inputs.train_batches())
    seen = set()
    for images, masks, weights in (next(train), next(train), next(iter(inputs.eval_batches()))):
        expected, is_pure = classes_of_pixels(images)
        masks = masks.numpy()
        # The shift fills images with black and masks with 255.
        is_pure &= (masks < 255) | (expected > 0)
        assert is_pure[weights > 0].mean() > 0.5
        assert (masks == expected)[is_pure].mean() > 0.99
        seen |= {*np.unique(masks)}
    assert seen == {0, 1, 2, 255}


def test_masks_stay_aligned_with_photos_that_exif_rotates(scenes):
    # The EXIF orientations, and the members of `Image.Transpose` that store a photo so.
    for number, (orientation, transpose) in enumerate(
        [(2, 0), (3, 3), (5, 5), (6, 2), (7, 6), (8, 4)]
    ):
        path = scenes / "images" / f"{number}.png"
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo = Image.open(path).transpose(transpose)
        photo.save(path.with_suffix(".jpg"), quality=100, subsampling=0, exif=exif)
        path.unlink()
    inputs = load(scenes, train_split="", test_split="", exif="on", train_crop="inception")
    for images, masks, _ in inputs.train_batches().take(2):
        expected, is_pure = classes_of_pixels(images, tolerance=0.05)  # JPEG is not exact
        assert (masks.numpy() == expected)[is_pure].mean() > 0.98


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint16])
def test_gray_masks_keep_their_class_numbers(dtype):
    mask = np.random.default_rng(0).integers(0, 2, (13, 21)).astype(dtype)
    np.testing.assert_array_equal(decoded(target_of(png(mask), mask.shape)), mask)


def test_gray_masks_may_have_three_channels():
    mask = blocks(0)
    values = mask[..., None].repeat(3, -1)
    for stored in (png(values), values):
        np.testing.assert_array_equal(decoded(target_of(stored, mask.shape)), mask)


def test_arrays_of_colors_are_refused():
    colors = np.stack([blocks(4), blocks(5), blocks(5)], -1)
    target = target_of(colors, colors.shape[:2])
    assert "a mask with colors" in target.problem_of(target.source.read(0))


@pytest.mark.parametrize("classes", [2, 4, 16, 200])
def test_indices_of_a_palette_are_class_numbers(classes):
    random = np.random.default_rng(0)
    mask = random.integers(0, classes, (13, 21), np.uint8)
    stored = png(mask, palette=random.bytes(3 * classes))
    np.testing.assert_array_equal(decoded(target_of(stored, mask.shape, classes=classes)), mask)


def test_offset_is_subtracted_from_the_classes():
    mask = blocks(0)
    # ADE20K: class 0 is ignored.
    expected = np.select([mask == 1, mask == 2], [0, 1], 255)
    target = target_of(mask, mask.shape, mask_offset=1)
    np.testing.assert_array_equal(decoded(target), expected)


def test_offset_does_not_turn_classes_into_ignored_pixels():
    mask = np.full((13, 21), 256, np.uint16)
    assert decoded(target_of(png(mask), mask.shape, mask_offset=1)) == "classes 256"


def test_colors_are_classes(decode_colors):
    mask = blocks(0, classes=2)
    color_of_class = np.zeros((256, 3), np.uint8)
    color_of_class[:2] = [9, 0, 0], [0, 200, 0]
    np.testing.assert_array_equal(decode_colors(png(color_of_class[mask])), mask)


def test_colors_of_a_palette_are_classes_and_its_indices_are_not(decode_colors):
    mask = blocks(0, classes=2)
    index_of_class = np.full(256, 1, np.uint8)
    index_of_class[:2] = 2, 0
    stored = png(index_of_class[mask], palette=bytes([0, 200, 0, 0, 0, 0, 9, 0, 0]))
    np.testing.assert_array_equal(decode_colors(stored), mask)


# (0, 199, 256) has the sum 256 * 199 + 256 of (0, 200, 0), which is a class.
@pytest.mark.parametrize("color", [np.uint8([9, 0, 1]), np.uint16([0, 199, 256])])
def test_other_colors_are_refused(decode_colors, color):
    problem = decode_colors(png(np.full((64, 80, 3), color)))
    assert problem == "colors that are not in --config.data.mask_colors"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("9 0 0\n", "2 different lines"),
        ("9 0 0 class 1\n0 200 0 class 0\n", "'class 1' in .* instead of 'class 0'"),
        ("9 0 0 class 0\n0 200 0 class 1\n", "`mask_colors` must be '' for masks"),
    ],
    ids=["number of classes", "order of classes", "mask without colors"],
)
def test_unsuitable_color_tables_are_refused(decode_colors, table, message):
    with pytest.raises(ValueError, match=message):
        decode_colors(blocks(0), table)


def test_colors_have_no_offset():
    with pytest.raises(ValueError, match="must be from 0 to 254, and 0 with `mask_colors`"):
        data.Options(mask_colors="colors.txt", mask_offset=1)


def test_verify_names_each_wrong_file(scenes):
    (scenes / "images" / "0.png").unlink()
    (scenes / "masks" / "1.png").unlink()
    (scenes / "masks" / "2.png").write_bytes(png(blocks(2)[1:]))
    (scenes / "masks" / "3.png").write_bytes(png(np.where(blocks(3) == 0, np.uint8(7), blocks(3))))
    (scenes / "masks" / "4.png").write_bytes(png(np.stack([blocks(4), blocks(5), blocks(5)], -1)))
    (scenes / "masks" / "5.png").write_bytes(png(blocks(5))[:15])
    reasons = data.verify(data.load_split("masks", "", path=str(scenes)))["reasons"]
    expected = {
        "masks/0.png": "No such file",
        "images/1.png": "No such file",
        "images/2.png": "63x80",
        "images/3.png": "but is: classes 7",
        "images/4.png": "needs --config.data.mask_colors",
        "images/5.png": "Invalid PNG",
    }
    assert list(reasons) == [f"{scenes.as_posix()}/{name}" for name in expected]
    for reason, text in zip(reasons.values(), expected.values()):
        assert text in reason


@pytest.mark.parametrize("content", [b"no image", jpeg(0)[:100]], ids=["text", "truncated"])
def test_broken_image_with_a_mask_is_a_bad_example(content, scenes):
    (scenes / "images" / "3.png").write_bytes(content)
    inputs = load(scenes, train_split="", test_split="")
    _, _, weights = next(iter(inputs.eval_batches()))
    assert weights.numpy().tolist() == [1, 1, 1, 0, 1, 1]
    assert inputs.bad_examples("test", lambda line: None).update(0) == 1


def test_wrong_class_is_an_error_that_names_the_file(scenes):
    (scenes / "masks" / "3.png").write_bytes(png(np.full((64, 80), 7, np.uint8)))
    inputs = load(scenes, train_split="", test_split="")
    next(iter(inputs.eval_batches()))
    with pytest.raises(ValueError, match="mask=classes 7 in .*3.png"):
        inputs.bad_examples("test").update(0)


def test_files_without_a_partner_are_refused(scenes):
    (scenes / "masks" / "1.png").unlink()
    with pytest.raises(ValueError, match="1 files without a partner"):
        load(scenes, train_split="", test_split="")


@pytest.mark.parametrize("layout", ["{split}/{folder}", "{folder}/{split}"])
def test_both_layouts_of_folders_give_the_same_pairs(layout, scenes):
    for path in scenes.glob("*/?.png"):
        split = ("train", "test")[int(path.stem) % 2]
        folder = scenes / "divided" / layout.format(folder=path.parent.name, split=split)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    inputs = load(scenes / "divided", class_names=NAMES)
    pairs = pairs_of(data.load_split("masks", "", path=str(scenes)))
    assert (pairs_of(inputs.train), pairs_of(inputs.test)) == (pairs[::2], pairs[1::2])


@pytest.mark.parametrize("column", ["depth", "class"])
def test_lists_of_masks_may_have_further_columns(column, scenes, caplog):
    rows = [f"images/{number}.png,masks/{number}.png,7" for number in range(6)]
    (scenes / "all.csv").write_text("\n".join([f"image,mask,{column}", *rows]))
    listed = data.load_split("masks", "all.csv", path=str(scenes))
    whole = data.load_split("masks", "", path=str(scenes))
    assert pairs_of(listed) == pairs_of(whole)
    assert listed.checksum() == whole.checksum() and not listed.missing
    assert "label_column" not in caplog.text


def test_a_changed_mask_changes_the_checksum(scenes):
    source = data.load_split("masks", "", path=str(scenes))
    before = source.checksum()
    (scenes / "masks" / "0.png").write_bytes(b"")
    assert source.checksum() != before


@pytest.mark.parametrize(("kind", "folder"), [("masks", ""), ("images", "images")])
def test_tuning_splits_divide_the_training_images(kind, folder, scenes):
    train, *parts = (
        set(names_of(data.load_split(kind, split, path=str(scenes / folder), test_share=0.4)))
        for split in ("train", "tune_train", "tune_val")
    )
    assert all(parts) and not set.intersection(*parts) and set.union(*parts) == train


def test_folders_with_other_splits_are_not_divided_by_a_hash(scenes):
    for name in ("images", "masks"):
        shutil.copytree(scenes / name, scenes / "a" / name / "val")
    fields = {"path": str(scenes / "a"), "class_names": NAMES}
    with pytest.raises(ValueError, match="for both splits or for none.*split='test'"):
        data.load_split("masks", "test", **fields)
    assert data.load_split("masks", "", **fields).num_examples == 6


def test_evaluation_reads_a_dataset_as_the_run_does(scenes):
    run = {"name": "masks", "split_seed": 3, "test_share": 0.5, "mask_offset": 1}
    images = keras.Input((32, 32, 3))
    model = keras.Model(images, keras.layers.Activation("linear")(images))
    inputs = evaluation.load_inputs(model, "masks", str(scenes), run=run)
    expected = load(scenes, split_seed=3, test_share=0.5)
    assert names_of(inputs.test) == names_of(expected.test)
    assert inputs.test_options.mask_offset == 1


@pytest.mark.parametrize(
    "stored", [png(DEPTH), npy(np.where(DEPTH == 0, np.nan, DEPTH))], ids=["png", "npy with NaN"]
)
def test_depths_of_both_formats(stored):
    values = decoded(target_of(stored, DEPTH.shape, "depth", depth_scale=500))
    np.testing.assert_array_equal(values, np.float32(DEPTH / 500), strict=True)


def test_png_files_of_depths_need_16_bits():
    stored = png(np.uint8(DEPTH // 100))
    with pytest.raises(tf.errors.InvalidArgumentError, match="gray with 16 bits"):
        decoded(target_of(stored, DEPTH.shape, "depth"))


def test_verify_names_wrong_depths(scenes):
    (scenes / "masks").rename(scenes / "depth")
    for number in range(6):
        path = scenes / "depth" / f"{number}.png"
        path.unlink()
        np.save(path.with_suffix(".npy"), np.full((64, 80), -3.0 if number == 4 else 2.0))
    (scenes / "depth" / "5.npy").write_bytes(npy(np.ones((64, 80)))[:200])
    reasons = data.verify(data.load_split("depth", "", path=str(scenes)))["reasons"]
    assert list(reasons) == [f"{scenes.as_posix()}/images/{number}.png" for number in (4, 5)]
    for reason, text in zip(reasons.values(), ("a minimum of -3", "not decoded, because: EOF")):
        assert text in reason


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mixup_alpha": 1, "cutmix_alpha": 1, "randaugment_layers": 1},
            "mixup_alpha, cutmix_alpha, randaugment_layers must not be set",
        ),
        ({"max_patches": 1, "image_size": 0}, "leave max_patches"),
        ({"train_split": "other"}, "subfolders images and masks"),
        ({"class_names": "none.txt"}, "names of their classes"),
    ],
)
def test_rejects_bad_fields(fields, message, scenes):
    with pytest.raises(ValueError, match=message):
        load(scenes, **fields)


def test_a_source_with_masks_is_needed():
    with pytest.raises(ValueError, match="needs a source with a mask"):
        data.from_config({"name": "digits"}, batch_size=6, seed=0, target="masks")


def test_summary_has_the_shares_of_the_classes(scenes):
    summary = load(scenes).train_target.summary()
    assert "3 classes of pixels (sky " in summary and "ignored 5 %" in summary


def test_pictures_blend_classes_with_their_colors_and_keep_ignored_pixels():
    mask = blocks(0)
    picture = np.full((64, 80, 3), 0.5)
    drawn = target_of(mask, mask.shape).picture(picture, mask)
    assert (drawn[mask == 255] == 0.5).all()
    np.testing.assert_allclose(drawn[mask == 1][0], 0.25 + class_colors(3)[1] / 2)


def test_colors_of_classes_differ():
    assert len(np.unique(class_colors(255), axis=0)) == 255
