"""Layers of stacks of networks, as Triton kernels: a convolution without padding, and with one of a single pixel, a
matrix product.

Images are rows of pixels, pixels are rows of channels, so that what a kernel of a convolution sees of one row of an
image lies side by side: the patch at a pixel is addressed by the pixel, and the value in it, and never laid out.
Everything is a product of two matrices, with the pixels of all images of a batch along the longer side; the networks of
a stack are the last axis of the grid. Sums are float32, in an order that depends on nothing that runs at the same time.
Between PyTorch's order of weights and this one, two kernels turn them round; the last one is Adam's step.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from bdpi.learner.picture_layers import Layer, PlacedLayer, is_interpreted

_PIXELS, _VALUES, _OUTPUTS = 128, 64, 64  # of a tile, at most
_SUMMED = 64  # pixels that are summed up at a time for a gradient by weights
_PROGRAMS = 96  # for the gradient by the weights of one network, about: so many parts are summed up apart
_INTERPRETED = tl.constexpr(is_interpreted())


def _tile(count: int, most: int) -> int:
    """A power of two, as Triton wants it, that is not needlessly large."""
    return min(most, max(16, triton.next_power_of_2(count)))


@triton.jit
def _product(left, right, total):
    if _INTERPRETED:  # Triton's interpreter has no numbers of type bfloat16
        return tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee")
    return tl.dot(left, right, total)


@triton.jit
def _rounded(values, results):
    """As the numbers that ``results`` points to."""
    if _INTERPRETED:  # where Triton's interpreter would cut off
        bits = values.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        values = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return values.to(results.dtype.element_ty)


@triton.jit
def _patches(
    pixel, ROWS: tl.constexpr, COLUMNS: tl.constexpr, IMAGE: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr
):
    """Where the patches at some pixels of the output begin."""
    within = pixel % (ROWS * COLUMNS)
    return (pixel // (ROWS * COLUMNS)) * IMAGE + (within // COLUMNS) * DOWN + (within % COLUMNS) * RIGHT


@triton.jit
def _forwards(
    images, weights, biases, outputs, n_pixels, image_stride, weight_stride, bias_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, IMAGE: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    RUN: tl.constexpr, LINE: tl.constexpr, VALUES: tl.constexpr, OUTPUTS: tl.constexpr,
    TILE_PIXELS: tl.constexpr, TILE_VALUES: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    network = tl.program_id(2)
    pixel = tl.program_id(0) * TILE_PIXELS + tl.arange(0, TILE_PIXELS)
    output = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    patch = images + network * image_stride + _patches(pixel, ROWS, COLUMNS, IMAGE, DOWN, RIGHT)
    weight = weights + network * weight_stride + output * VALUES
    total = tl.zeros((TILE_PIXELS, TILE_OUTPUTS), tl.float32)
    for start in range(0, VALUES, TILE_VALUES):
        value = start + tl.arange(0, TILE_VALUES)
        seen = tl.load(
            patch[:, None] + ((value // RUN) * LINE + value % RUN)[None, :],
            mask=(pixel < n_pixels)[:, None] & (value < VALUES)[None, :],
            other=0.0,
        )
        factors = tl.load(
            weight[None, :] + value[:, None], mask=(output < OUTPUTS)[None, :] & (value < VALUES)[:, None], other=0.0
        )
        total = _product(seen, factors, total)
    total += tl.load(biases + network * bias_stride + output, mask=output < OUTPUTS, other=0.0)[None, :]
    tl.store(
        outputs + (network * n_pixels + pixel)[:, None] * OUTPUTS + output[None, :],
        _rounded(2 * tl.sigmoid(2 * total) - 1 if TANH else tl.maximum(total, 0.0), outputs),
        mask=(pixel < n_pixels)[:, None] & (output < OUTPUTS)[None, :],
    )


@triton.jit
def _to_weights(
    images, gradients, sums, n_pixels, image_stride, per_part,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, IMAGE: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    RUN: tl.constexpr, LINE: tl.constexpr, VALUES: tl.constexpr, OUTPUTS: tl.constexpr,
    TILE_PIXELS: tl.constexpr, TILE_VALUES: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    network, part = tl.program_id(2), tl.program_id(0)
    output = (tl.program_id(1) // TILES) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    value = (tl.program_id(1) % TILES) * TILE_VALUES + tl.arange(0, TILE_VALUES)
    offset = (value // RUN) * LINE + value % RUN
    total = tl.zeros((TILE_VALUES, TILE_OUTPUTS), tl.float32)
    total_of_biases = tl.zeros((TILE_PIXELS, TILE_OUTPUTS), tl.float32)
    for start in range(part * per_part, min((part + 1) * per_part, n_pixels), TILE_PIXELS):
        pixel = start + tl.arange(0, TILE_PIXELS)
        patch = images + network * image_stride + _patches(pixel, ROWS, COLUMNS, IMAGE, DOWN, RIGHT)
        seen = tl.load(
            patch[:, None] + offset[None, :],
            mask=(pixel < n_pixels)[:, None] & (value < VALUES)[None, :],
            other=0.0,
        )
        gradient = tl.load(
            gradients + (network * n_pixels + pixel)[:, None] * OUTPUTS + output[None, :],
            mask=(pixel < n_pixels)[:, None] & (output < OUTPUTS)[None, :],
            other=0.0,
        )
        total = _product(tl.trans(seen), gradient, total)
        total_of_biases += gradient.to(tl.float32)
    first = sums + (network * tl.num_programs(0) + part) * OUTPUTS * (VALUES + 1)
    tl.store(
        first + output[None, :] * VALUES + value[:, None],
        total,
        mask=(output < OUTPUTS)[None, :] & (value < VALUES)[:, None],
    )
    if tl.program_id(1) % TILES == 0:
        tl.store(first + OUTPUTS * VALUES + output, tl.sum(total_of_biases, 0), mask=output < OUTPUTS)


@triton.jit
def _add_parts(
    sums, results, result_stride, weights_at, biases_at, PARTS: tl.constexpr, OUTPUTS: tl.constexpr,
    CHANNELS: tl.constexpr, PADDED: tl.constexpr, AREA: tl.constexpr, TILE_AREA: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):  # fmt: skip
    network, output = tl.program_id(2), tl.program_id(0)
    tiles: tl.constexpr = (CHANNELS + TILE_CHANNELS - 1) // TILE_CHANNELS
    place = (tl.program_id(1) // tiles) * TILE_AREA + tl.arange(0, TILE_AREA)
    channel = (tl.program_id(1) % tiles) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    exists = (place < AREA)[:, None] & (channel < CHANNELS)[None, :]
    total, bias = tl.zeros((TILE_AREA, TILE_CHANNELS), tl.float32), 0.0
    for part in tl.static_range(PARTS):
        first = sums + (network * PARTS + part) * OUTPUTS * (AREA * PADDED + 1)
        total += tl.load(first + (output * AREA + place)[:, None] * PADDED + channel[None, :], mask=exists, other=0.0)
        bias += tl.load(first + OUTPUTS * AREA * PADDED + output)
    result = results + network * result_stride
    weight = weights_at + (output * CHANNELS + channel)[None, :] * AREA + place[:, None]
    tl.store(result + weight, total, mask=exists)
    if tl.program_id(1) == 0:
        tl.store(result + biases_at + output, bias)


@triton.jit
def _arrange(
    parameters, results, parameter_stride, weights_at, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr,
    PADDED: tl.constexpr, AREA: tl.constexpr, TILE_AREA: tl.constexpr, TILE_CHANNELS: tl.constexpr,
):  # fmt: skip
    network, output = tl.program_id(2), tl.program_id(0)
    tiles: tl.constexpr = (PADDED + TILE_CHANNELS - 1) // TILE_CHANNELS
    place = (tl.program_id(1) // tiles) * TILE_AREA + tl.arange(0, TILE_AREA)
    channel = (tl.program_id(1) % tiles) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    weights = tl.load(
        parameters + network * parameter_stride + weights_at + (output * CHANNELS + channel)[None, :] * AREA
        + place[:, None],
        mask=(place < AREA)[:, None] & (channel < CHANNELS)[None, :],
        other=0.0,
    )  # fmt: skip
    tl.store(
        results + ((network * OUTPUTS + output) * AREA + place)[:, None] * PADDED + channel[None, :],
        _rounded(weights, results),
        mask=(place < AREA)[:, None] & (channel < PADDED)[None, :],
    )


@triton.jit
def _adam(
    parameters, gradients, first_moments, second_moments, steps, rate, size,
    BETA_1: tl.constexpr, BETA_2: tl.constexpr, LOG_1: tl.constexpr, LOG_2: tl.constexpr, EPSILON: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    network = tl.program_id(1)
    number = tl.program_id(0) * TILE + tl.arange(0, TILE)
    exists, where = number < size, network * size + number
    step = tl.load(steps + network).to(tl.float64) + 1
    correction_1 = (1 - tl.exp(step * LOG_1)).to(tl.float32)
    correction_2 = tl.sqrt((1 - tl.exp(step * LOG_2)).to(tl.float32))
    gradient = tl.load(gradients + where, mask=exists, other=0.0)
    first = BETA_1 * tl.load(first_moments + where, mask=exists, other=0.0) + (1 - BETA_1) * gradient
    second = BETA_2 * tl.load(second_moments + where, mask=exists, other=0.0) + (1 - BETA_2) * gradient * gradient
    change = (tl.load(rate) / correction_1) * first / (tl.sqrt(second) / correction_2 + EPSILON)
    tl.store(parameters + where, tl.load(parameters + where, mask=exists, other=0.0) - change, mask=exists)
    tl.store(first_moments + where, first, mask=exists)
    tl.store(second_moments + where, second, mask=exists)


@triton.jit
def _to_images(
    images, weights, gradients, results, n_images, weight_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr, KERNEL_WIDTH: tl.constexpr, STRIDE_DOWN: tl.constexpr, STRIDE_RIGHT: tl.constexpr,
    OUTPUTS: tl.constexpr, TILE_PIXELS: tl.constexpr, TILE_CHANNELS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TANH: tl.constexpr,
):  # fmt: skip
    # Pixels that lie equally to the stride see the same values of the kernel: a program has such pixels only.
    network, phase = tl.program_id(2), tl.program_id(1) % (STRIDE_DOWN * STRIDE_RIGHT)
    down, right = phase // STRIDE_RIGHT, phase % STRIDE_RIGHT
    high: tl.constexpr = (HEIGHT + STRIDE_DOWN - 1) // STRIDE_DOWN
    wide: tl.constexpr = (WIDTH + STRIDE_RIGHT - 1) // STRIDE_RIGHT
    number = tl.program_id(0) * TILE_PIXELS + tl.arange(0, TILE_PIXELS)
    image, row, column = number // (high * wide), (number % (high * wide)) // wide, number % wide
    y, x = row * STRIDE_DOWN + down, column * STRIDE_RIGHT + right
    exists = (image < n_images) & (y < HEIGHT) & (x < WIDTH)
    tile = tl.program_id(1) // (STRIDE_DOWN * STRIDE_RIGHT)
    channel = tile * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    total = tl.zeros((TILE_PIXELS, TILE_CHANNELS), tl.float32)
    across: tl.constexpr = (KERNEL_WIDTH + STRIDE_RIGHT - 1) // STRIDE_RIGHT
    taps: tl.constexpr = (KERNEL_HEIGHT + STRIDE_DOWN - 1) // STRIDE_DOWN * across
    tiles: tl.constexpr = (OUTPUTS + TILE_OUTPUTS - 1) // TILE_OUTPUTS
    for turn in range(taps * tiles):  # one loop, so that it can fetch ahead
        i, j = turn // tiles // across, turn // tiles % across
        ky, kx = down + i * STRIDE_DOWN, right + j * STRIDE_RIGHT
        # Where the kernel has no such value, no pixel counts.
        rows, columns = tl.where(ky < KERNEL_HEIGHT, ROWS, 0), tl.where(kx < KERNEL_WIDTH, COLUMNS, 0)
        within = exists & (row >= i) & (row - i < rows) & (column >= j) & (column - j < columns)
        ky, kx = tl.minimum(ky, KERNEL_HEIGHT - 1), tl.minimum(kx, KERNEL_WIDTH - 1)
        pixel = ((network * n_images + image) * ROWS + row - i) * COLUMNS + column - j
        output = turn % tiles * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
        gradient = tl.load(
            gradients + pixel[:, None] * OUTPUTS + output[None, :],
            mask=within[:, None] & (output < OUTPUTS)[None, :],
            other=0.0,
        )
        weight = ((output * KERNEL_HEIGHT + ky) * KERNEL_WIDTH + kx) * CHANNELS
        factors = tl.load(
            weights + network * weight_stride + weight[:, None] + channel[None, :],
            mask=(output < OUTPUTS)[:, None] & (channel < CHANNELS)[None, :],
            other=0.0,
        )
        total = _product(gradient, factors, total)
    where = (((network * n_images + image) * HEIGHT + y) * WIDTH + x)[:, None] * CHANNELS + channel[None, :]
    mask = exists[:, None] & (channel < CHANNELS)[None, :]
    value = tl.load(images + where, mask=mask, other=0.0).to(tl.float32)
    result = total * (1 - value * value) if TANH else tl.where(value > 0, total, 0.0)
    tl.store(results + where, _rounded(result, results), mask=mask)


def _addresses(layer: Layer) -> tuple[int, ...]:
    """What both kernels that see patches have to know, in their order."""
    line = layer.width * layer.channels
    steps = layer.stride[0] * line, layer.stride[1] * layer.channels
    run = layer.kernel[1] * layer.channels
    return layer.rows, layer.columns, layer.height * line, *steps, run, line, layer.values, layer.outputs


def forwards(layer: Layer, images: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """Outputs (k, n, rows, columns, outputs) of k networks, rectified or tanh.

    :param images: (k, n, height, width, channels)
    :param weights: (k, outputs, kernel height, kernel width, channels), of the same type
    :param biases: (k, outputs), of any stride from network to network
    """
    k, n = images.shape[:2]
    n_pixels = n * layer.rows * layer.columns
    outputs = images.new_empty(k, n, layer.rows, layer.columns, layer.outputs)
    pixels, values = _tile(n_pixels, _PIXELS), _tile(layer.values, _VALUES)
    tile = _tile(layer.outputs, _OUTPUTS)
    grid = triton.cdiv(n_pixels, pixels), triton.cdiv(layer.outputs, tile), k
    strides = images.stride(0), weights.stride(0), biases.stride(0)
    _forwards[grid](
        images, weights, biases, outputs, n_pixels, *strides, *_addresses(layer), pixels, values, tile, layer.tanh
    )
    return outputs


def to_weights(place: PlacedLayer, images: Tensor, gradients: Tensor, results: Tensor) -> None:
    """Gradients by the weights and biases, from those by the layer's sums, before they are rectified.

    :param results: (k, P), of which the layer's parameters are written
    """
    layer = place.layer
    k, n = images.shape[:2]
    n_pixels = n * layer.rows * layer.columns
    values, outputs = _tile(layer.values, _VALUES), _tile(layer.outputs, _OUTPUTS)
    pixels = _tile(n_pixels, _SUMMED)
    across = triton.cdiv(layer.values, values)
    tiles = across * triton.cdiv(layer.outputs, outputs)
    per_part = pixels * triton.cdiv(n_pixels, pixels * max(1, _PROGRAMS // tiles))
    parts = triton.cdiv(n_pixels, per_part)
    sums = torch.empty(k, parts, layer.outputs * (layer.values + 1), device=images.device)
    _to_weights[parts, tiles, k](
        images, gradients, sums, n_pixels, images.stride(0), per_part, *_addresses(layer), pixels, values, outputs,
        across,
    )  # fmt: skip
    channels, area = place.shape[1], place.shape[2] * place.shape[3]
    tile_area, tile_channels = _window(channels, area)
    grid = layer.outputs, triton.cdiv(area, tile_area) * triton.cdiv(channels, tile_channels), k
    starts = results.stride(0), place.weights, place.biases
    shape = layer.outputs, channels, place.padded, area
    _add_parts[grid](sums, results, *starts, parts, *shape, tile_area, tile_channels)


def arrange(place: PlacedLayer, stacked: Tensor) -> Tensor:
    """Weights (k, outputs, kernel height, kernel width, channels) as the other kernels want them, rounded.

    :param stacked: flat parameters (k, P)
    """
    _, channels, *kernel = place.shape
    area = kernel[0] * kernel[1]
    results = stacked.new_empty(len(stacked), place.layer.outputs, *kernel, place.padded, dtype=torch.bfloat16)
    tile_area, tile_channels = _window(place.padded, area)
    grid = place.layer.outputs, triton.cdiv(area, tile_area) * triton.cdiv(place.padded, tile_channels), len(stacked)
    shape = place.layer.outputs, channels, place.padded, area
    _arrange[grid](stacked, results, stacked.stride(0), place.weights, *shape, tile_area, tile_channels)
    return results


def _window(channels: int, area: int) -> tuple[int, int]:
    """What is turned round at a time between PyTorch's order of weights, channels first, and that of the kernels."""
    return min(64, triton.next_power_of_2(area)), min(64, triton.next_power_of_2(channels))


def adam(
    parameters: Tensor, gradients: Tensor, first_moments: Tensor, second_moments: Tensor, steps: Tensor, rate: Tensor,
    betas: tuple[float, float], epsilon: float,
) -> None:  # fmt: skip
    """A step of Adam, in place.

    PyTorch's own takes few of a GPU's processors for few long rows.

    :param parameters: (k, P), dense, as are gradients and both moments
    :param steps: (k,), that were done before
    :param rate: a number
    """
    k, size = parameters.shape
    tile = min(1024, triton.next_power_of_2(size))
    logarithms = math.log(betas[0]), math.log(betas[1])
    _adam[triton.cdiv(size, tile), k](
        parameters, gradients, first_moments, second_moments, steps, rate, size, *betas, *logarithms, epsilon, tile
    )


def to_images(layer: Layer, images: Tensor, weights: Tensor, gradients: Tensor, tanh: bool) -> Tensor:
    """Gradients by the sums whose rectified values ``images`` are, or tanh, from those by the layer's own sums."""
    k, n = images.shape[:2]
    phases = layer.stride[0] * layer.stride[1]
    each = n * triton.cdiv(layer.height, layer.stride[0]) * triton.cdiv(layer.width, layer.stride[1])
    pixels, channels = _tile(each, _PIXELS), _tile(layer.channels, _VALUES)
    results = torch.empty_like(images)
    grid = triton.cdiv(each, pixels), phases * triton.cdiv(layer.channels, channels), k
    _to_images[grid](
        images, weights, gradients, results, n, weights.stride(0), layer.height, layer.width, layer.channels,
        layer.rows, layer.columns, *layer.kernel, *layer.stride, layer.outputs, pixels, channels,
        _tile(layer.outputs, _OUTPUTS), tanh,
    )  # fmt: skip
    return results
