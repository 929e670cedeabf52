"""Procedural camera images of ten surface textures: the ground truth of the vision sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def render(rng: np.random.Generator, label: int, side: int) -> npt.NDArray[np.uint8]:
    """One image, (side, side): the texture at a random angle and scale, a second one faintly over it,
    uneven light and sensor noise.

    Textures have the same scale in all images: a larger image shows more of the surface.
    """
    own = _texture(rng, label, side)
    other = _texture(rng, int(label + 1 + rng.integers(len(TEXTURES) - 1)) % len(TEXTURES), side)
    share = 0.54 + 0.4 * rng.random()
    mixed = share * own + (1.0 - share) * other
    y, x = np.mgrid[0:side, 0:side].astype(np.float32) / side - 0.5
    slope = rng.normal(size=2) * 30.0
    light = 110.0 + 30.0 * rng.random() + slope[0] * x + slope[1] * y
    noise = _blur(rng.standard_normal((side, side), dtype=np.float32), 1) * 17.0
    level = light + (20.0 + 35.0 * rng.random()) * mixed + noise
    # 16 gray levels: no less than the noise leaves, and the file compresses.
    return (np.clip(level, 0.0, 255.0).astype(np.uint8) // 16) * 16 + 8


def _texture(rng: np.random.Generator, label: int, side: int) -> Floats:
    """A texture between about -1 and 1."""
    y, x = np.mgrid[0:side, 0:side].astype(np.float32)
    angle = rng.random() * np.pi
    period = 7.0 + 7.0 * rng.random()
    scale = 2.0 * np.pi / period
    u = scale * (np.cos(angle) * x + np.sin(angle) * y) + rng.random() * 2.0 * np.pi
    v = scale * (-np.sin(angle) * x + np.cos(angle) * y) + rng.random() * 2.0 * np.pi
    return TEXTURES[label](rng, u.astype(np.float32), v.astype(np.float32))


def _stripes(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del rng, v
    return np.sign(np.sin(u))


def _checker(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del rng
    return np.sign(np.sin(u) * np.sin(v))


def _dots(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del rng
    return np.sign(np.cos(u) + np.cos(v) - 0.9)


def _rings(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    # Rings around the points of a coarse grid, so that images of any size contain some.
    pitch = 2.0 * np.pi * (2.5 + rng.random())
    du = (u % pitch) - pitch / 2.0
    dv = (v % pitch) - pitch / 2.0
    return np.sign(np.sin(np.sqrt(du * du + dv * dv) * 1.1))


def _waves(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    return np.sin(u + (1.2 + rng.random()) * np.sin(0.5 * v))


def _bricks(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del rng
    row = np.floor(u / (2.0 * np.pi))
    joint = np.cos(0.5 * v + np.pi * (row % 2.0))
    return np.where((np.cos(u) > 0.75) | (joint > 0.93), -1.0, 0.6).astype(np.float32)


def _crosshatch(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del rng
    return np.where((np.sin(u) > 0.6) | (np.sin(v) > 0.6), 1.0, -0.7).astype(np.float32)


def _blobs(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del v
    return np.sign(_blur(rng.standard_normal(u.shape, dtype=np.float32), 3)) * np.float32(0.9)


def _speckle(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del v
    points = (rng.random(u.shape, dtype=np.float32) > 0.985).astype(np.float32)
    return np.minimum(_blur(points, 1) * np.float32(6.0), np.float32(2.0)) - np.float32(0.6)


def _zigzag(rng: np.random.Generator, u: Floats, v: Floats) -> Floats:
    del rng
    fold = np.abs((v / np.float32(2.0 * np.pi)) % 2.0 - 1.0)
    return np.sign(np.sin(u + np.float32(5.0) * fold)).astype(np.float32)


def _blur(image: Floats, times: int) -> Floats:
    """Repeated 3×3 mean that wraps around, scaled back to unit deviation for white noise."""
    start = float(image.std())
    for _ in range(times):
        image = (image + np.roll(image, 1, 0) + np.roll(image, -1, 0)) / np.float32(3.0)
        image = (image + np.roll(image, 1, 1) + np.roll(image, -1, 1)) / np.float32(3.0)
    return image * np.float32(start / max(float(image.std()), 1e-6))


#: In the order of the class indices.
TEXTURES: tuple[Callable[[np.random.Generator, Floats, Floats], Floats], ...] = (
    _stripes,
    _checker,
    _dots,
    _rings,
    _waves,
    _bricks,
    _crosshatch,
    _blobs,
    _speckle,
    _zigzag,
)
