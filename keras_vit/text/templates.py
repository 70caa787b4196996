"""Templates that turn class names into texts."""

from collections.abc import Sequence

# One template on each line, in the order of OpenAI's list.
_LINES = """
a bad photo of a {}.
a photo of many {}.
a sculpture of a {}.
a photo of the hard to see {}.
a low resolution photo of the {}.
a rendering of a {}.
graffiti of a {}.
a bad photo of the {}.
a cropped photo of the {}.
a tattoo of a {}.
the embroidered {}.
a photo of a hard to see {}.
a bright photo of a {}.
a photo of a clean {}.
a photo of a dirty {}.
a dark photo of the {}.
a drawing of a {}.
a photo of my {}.
the plastic {}.
a photo of the cool {}.
a close-up photo of a {}.
a black and white photo of the {}.
a painting of the {}.
a painting of a {}.
a pixelated photo of the {}.
a sculpture of the {}.
a bright photo of the {}.
a cropped photo of a {}.
a plastic {}.
a photo of the dirty {}.
a jpeg corrupted photo of a {}.
a blurry photo of the {}.
a photo of the {}.
a good photo of the {}.
a rendering of the {}.
a {} in a video game.
a photo of one {}.
a doodle of a {}.
a close-up photo of the {}.
a photo of a {}.
the origami {}.
the {} in a video game.
a sketch of a {}.
a doodle of the {}.
a origami {}.
a low resolution photo of a {}.
the toy {}.
a rendition of the {}.
a photo of the clean {}.
a photo of a large {}.
a rendition of a {}.
a photo of a nice {}.
a photo of a weird {}.
a blurry photo of a {}.
a cartoon {}.
art of a {}.
a sketch of the {}.
a embroidered {}.
a pixelated photo of a {}.
itap of the {}.
a jpeg corrupted photo of the {}.
a good photo of a {}.
a plushie {}.
a photo of the nice {}.
a photo of the small {}.
a photo of the weird {}.
the cartoon {}.
art of the {}.
a drawing of the {}.
a photo of the large {}.
a black and white photo of a {}.
the plushie {}.
a dark photo of a {}.
itap of a {}.
graffiti of the {}.
a toy {}.
itap of my {}.
a photo of a cool {}.
a photo of a small {}.
a tattoo of the {}.
"""
CLIP_TEMPLATES: tuple[str, ...] = tuple(_LINES.strip().splitlines())
"""The 80 templates of CLIP (Radford et al., 2021) for ImageNet, such as "a photo of a {}."."""

TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)
"""The default template of zero-shot classifiers."""


def fill(templates: Sequence[str], name: str) -> list[str]:
    """Returns the texts of a class: every template with the class name in place of `{}`.

    Raises:
        ValueError: a template does not contain `{}` exactly once.
    """
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(
                "Each of `templates` must contain {} once, in place of the class name. Received: "
                f"{template!r}"
            )
    return [template.replace("{}", name) for template in templates]
