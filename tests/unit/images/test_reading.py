"""Reading images: every form gives the same picture; broken, huge and hostile files are refused with one error."""

from __future__ import annotations

import base64
import copy
import io
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from agent_r1.images import ImageError, ImageLimits, Picture, read_picture

RED, BLUE = (255, 0, 0), (0, 0, 255)


def encoded(image: Image.Image, name: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=name, **options)
    return buffer.getvalue()


def noise(width: int = 7, height: int = 5) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def url_of(content: bytes, media: str = "image/png") -> str:
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def png_of_size(width: int, height: int) -> bytes:
    """A file of some hundred bytes that says it has this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def test_every_form_of_an_image_is_the_same_picture(tmp_path: Path) -> None:
    image = noise()
    png = encoded(image)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "image.png").write_bytes(png)
    forms: list[Any] = [
        image,
        png,
        bytearray(png),
        np.asarray(image),
        url_of(png),
        "some/image.png",
        Path("some/image.png"),
        tmp_path / "some" / "image.png",
        {"type": "image_url", "image_url": {"url": url_of(png)}},
        {"type": "image_url", "image_url": {"url": "some/image.png"}},
        {"type": "image", "image": image},
        {"type": "input_image", "image_url": url_of(png)},
        {"type": "image", "data": base64.b64encode(png).decode(), "mimeType": "image/png"},
        {"bytes": png, "path": None},
        {"bytes": None, "path": "some/image.png"},
        encoded(image, "BMP"),
        encoded(image, "WEBP", lossless=True),
        read_picture(image),
    ]
    pictures = {read_picture(form, folder=tmp_path) for form in forms}
    assert len(pictures) == 1
    [picture] = pictures
    assert (picture.width, picture.height) == (7, 5)
    assert picture.pil().tobytes() == image.tobytes()


def test_a_picture_cannot_be_changed_and_is_the_same_after_a_copy_or_a_pickle() -> None:
    picture = read_picture(noise())
    assert copy.deepcopy(picture) is copy.copy(picture) is picture
    assert pickle.loads(pickle.dumps(picture)) is picture
    changed = picture.pil()
    changed.putpixel((0, 0), (1, 2, 3))
    assert read_picture(changed) != picture == read_picture(noise())
    with pytest.raises(AttributeError, match="cannot be changed"):
        picture.width = 3


def test_pictures_of_other_shapes_with_equal_bytes_differ() -> None:
    assert read_picture(Image.new("RGB", (2, 3), RED)) != read_picture(Image.new("RGB", (3, 2), RED))


def test_a_plain_png_is_kept_as_it_is_and_metadata_are_dropped() -> None:
    plain = encoded(noise(61, 3), compress_level=9)
    assert read_picture(plain).png() == plain
    notes = PngImagePlugin.PngInfo()
    notes.add_text("comment", "secret")
    noted = read_picture(encoded(noise(62, 3), pnginfo=notes)).png()
    assert b"secret" not in noted


def test_the_orientation_of_a_photo_is_applied_and_its_exif_dropped() -> None:
    image = Image.new("RGB", (16, 8), RED)
    image.paste(BLUE, (8, 0, 16, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 270 degrees
    exif[0x010F] = "somebody's camera"
    picture = read_picture(encoded(image, "JPEG", exif=exif, quality=95))
    assert (picture.width, picture.height) == (8, 16)
    assert picture.pil().getpixel((4, 2))[0] > 200
    assert picture.pil().getpixel((4, 13))[2] > 200
    assert not picture.pil().getexif()
    assert b"camera" not in picture.png()


def with_transparent_pixel(mode: str) -> Image.Image:
    image = Image.new("RGBA", (2, 1), (*RED, 255))
    image.putpixel((0, 0), (*RED, 0))
    if mode == "P":
        palette = Image.new("P", (2, 1))
        palette.putpalette([0, 0, 0, *RED])
        palette.putdata([0, 1])
        palette.info["transparency"] = 0
        return palette
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(mode: str) -> None:
    options = {"transparency": 0} if mode == "P" else {}
    pixels = read_picture(encoded(with_transparent_pixel(mode), **options)).pil()
    assert pixels.getpixel((0, 0)) == (255, 255, 255)
    assert pixels.getpixel((1, 0)) == (RED if mode != "LA" else (76, 76, 76))


def test_sixteen_bits_keep_their_upper_byte() -> None:
    grey = Image.fromarray(np.array([[0, 255, 256, 65535]], dtype=np.uint16))
    assert grey.mode.startswith("I;16")
    picture = read_picture(encoded(grey))
    assert [picture.pil().getpixel((x, 0))[0] for x in range(4)] == [0, 0, 1, 255]


@pytest.mark.parametrize("mode", ["1", "L", "CMYK", "YCbCr", "HSV"])
def test_other_modes_become_rgb(mode: str) -> None:
    image = noise().convert(mode)
    assert read_picture(image).pil().tobytes() == image.convert("RGB").tobytes()


def test_of_an_animation_the_first_frame_is_read() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, BLUE)]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_picture(gif) == read_picture(frames[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"not an image", "no image in a format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image in a format"),
        (encoded(noise(), "TIFF"), "no image in a format"),
        (encoded(noise(), "PPM"), "no image in a format"),
        (encoded(noise(), "ICO", sizes=[(4, 4)]), "no image in a format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image in a format"),
        (png_of_size(30_000, 30_000), "broken or hostile|900,000,000|30000 x 30000"),
        (png_of_size(5000, 5000), "5000 x 5000 pixels; images of at most 16,777,216 pixels"),
        (png_of_size(40_000, 10), "40000 x 10 pixels"),
        (png_of_size(0, 10), "broken or hostile|no image|0 x 10"),
        (png_of_size(2000, 2000), "broken or hostile"),
        (encoded(noise(64, 64))[:-600], "broken or hostile"),
        (encoded(noise(64, 64), "JPEG")[:-300], "broken or hostile"),
        (encoded(noise(64, 64), "BMP")[:-300], "broken or hostile"),
        (encoded(noise(64, 64), "WEBP", lossless=True)[:-300], "broken or hostile|no image"),
        (encoded(noise(64, 64), "GIF")[:-900], "broken or hostile"),
    ],
)
def test_broken_huge_and_foreign_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=f"^row 3 .*({message})"):
        read_picture(content, where="row 3")


def test_text_that_unpacks_to_megabytes_is_refused() -> None:
    notes = PngImagePlugin.PngInfo()
    notes.add_text("bomb", "a" * 8_000_000, zip=True)
    with pytest.raises(ImageError, match="broken or hostile"):
        read_picture(encoded(noise(), pnginfo=notes))


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png,abc",
        "data:text/html;base64,PGI+",
        "data:;base64,AAAA",
        "data:image/png;base64,!!!",
        "data:image/png;base64,",
        "https://example.com/image.png",
        "http://127.0.0.1/image.png",
        "file:///etc/passwd",
        "ftp://example.com/image.png",
    ],
)
def test_urls_that_are_no_data_of_an_image_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ImageError):
        read_picture(url, folder=tmp_path)


def test_a_path_must_lie_inside_its_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "data", tmp_path / "secret.png"
    folder.mkdir()
    outside.write_bytes(encoded(noise()))
    (folder / "inside.png").write_bytes(encoded(noise()))
    (folder / "link.png").symlink_to(outside)
    (folder / "links").symlink_to(tmp_path)
    (folder / "own.png").symlink_to(folder / "inside.png")
    os.mkfifo(folder / "pipe.png")
    for path in ("inside.png", "./inside.png", "own.png", "links/data/inside.png", str(folder / "inside.png")):
        assert read_picture(path, folder=folder) == read_picture(noise())
    for path in ("../secret.png", "link.png", "links/secret.png", str(outside), "x/../../secret.png"):
        with pytest.raises(ImageError, match=r"outside the folder|cannot be read"):
            read_picture(path, folder=folder)
    for path in ("missing.png", "pipe.png", ".", "", "a\0b.png", "n" * 5000, "\udcff.png"):
        with pytest.raises(ImageError, match=r"cannot be read|not a file"):
            read_picture(path, folder=folder)
    with pytest.raises(ImageError, match="no folder is known"):
        read_picture("inside.png")


def test_limits_hold_for_files_bytes_and_images(tmp_path: Path) -> None:
    content = encoded(noise(100, 100))
    (tmp_path / "large.png").write_bytes(content)
    small = ImageLimits(max_bytes=1000)
    for source in (content, url_of(content), "large.png"):
        with pytest.raises(ImageError, match="more than 0 MiB"):
            read_picture(source, folder=tmp_path, limits=small)
    for source in (noise(11, 10), np.zeros((10, 11, 3), np.uint8), read_picture(noise(11, 10))):
        with pytest.raises(ImageError, match="11 x 10 pixels; images of at most 100"):
            read_picture(source, limits=ImageLimits(max_pixels=100))


@pytest.mark.parametrize(
    "source",
    [
        None,
        3,
        [],
        {},
        {"type": "image"},
        np.zeros((3, 3), np.float32),
        np.zeros((3, 3, 2), np.uint8),
        np.zeros((0, 3, 3), np.uint8),
        np.zeros(3, np.uint8),
        Image.new("F", (3, 3)),
        Image.new("RGB", (0, 3)),
    ],
)
def test_what_is_no_image_is_refused(source: Any) -> None:
    with pytest.raises(ImageError):
        read_picture(source)


def test_a_lazy_picture_is_checked_when_it_is_loaded(tmp_path: Path) -> None:
    content = encoded(noise(12, 12))
    known = read_picture(content)
    arguments = known.content_hash, 12, 12
    del known
    lazy = Picture.lazy(*arguments, lambda: content)
    assert lazy.pil().tobytes() == noise(12, 12).tobytes()
    for load in (lambda: encoded(noise(13, 12)), lambda: b"broken", (tmp_path / "missing.png").read_bytes):
        with pytest.raises(ImageError, match=r"cannot be read|other pixels"):
            Picture(content_hash=arguments[0], width=12, height=12, load=load).pil()


@given(st.binary(max_size=200), st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]), st.data())
def test_any_damage_gives_a_picture_or_one_error(damage: bytes, name: str, data: st.DataObject) -> None:
    content = encoded(noise(16, 16), name)
    start = data.draw(st.integers(0, len(content)))
    hurt = content[:start] + damage + content[start + len(damage) :]
    try:
        picture = read_picture(hurt, limits=ImageLimits(max_pixels=10_000))
    except ImageError:
        return
    assert read_picture(picture.png()) == picture
    assert picture.pil().mode == "RGB"


@given(st.text(max_size=60))
def test_any_text_is_a_picture_of_the_folder_or_an_error(path: str) -> None:
    with pytest.raises(ImageError):
        read_picture(path, folder=Path(__file__).parent)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_pixels_survive_reading_writing_and_pickling(width: int, height: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    picture = read_picture(pixels)
    for other in (read_picture(picture.png()), pickle.loads(pickle.dumps(picture)), read_picture(picture.pil())):
        assert other == picture
        assert hash(other) == hash(picture)
        np.testing.assert_array_equal(np.asarray(other.pil()), pixels)
