"""Prefix scans equal their readable twin."""

import pytest
import torch

from gtmsm.tensors import prefix_scan

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 101)


def prefix_scan_by_steps(combine, elements):
    """Combine one step of time (axis 1) after the other."""
    so_far = [part[:, :1] for part in elements]
    steps = [so_far]
    for t in range(1, elements[0].shape[1]):
        so_far = list(combine(so_far, [part[:, t : t + 1] for part in elements]))
        steps.append(so_far)
    return [torch.cat(parts, dim=1) for parts in zip(*steps, strict=True)]


def affine_then(earlier, later):
    """x -> scale x + shift, one map after the other."""
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


def affine_maps(length):
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(3, length, 2, dtype=torch.float64, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_scan_of_affine_maps_equals_the_scan_by_steps(length):
    maps = affine_maps(length)
    for fast, readable in zip(prefix_scan(affine_then, maps), prefix_scan_by_steps(affine_then, maps), strict=True):
        torch.testing.assert_close(fast, readable, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_scanned_affine_map_takes_the_start_where_all_the_steps_take_it(length):
    scale, shift = affine_maps(length)
    x = torch.ones(3, 2, dtype=torch.float64)
    scanned_scale, scanned_shift = prefix_scan(affine_then, [scale, shift])
    for t in range(length):
        x = scale[:, t] * x + shift[:, t]
        torch.testing.assert_close(scanned_scale[:, t] + scanned_shift[:, t], x, rtol=1e-10, atol=1e-12)


def test_a_scan_of_sums_is_a_cumulative_sum():
    numbers = torch.arange(2 * 13).reshape(2, 13)
    (sums,) = prefix_scan(lambda earlier, later: [earlier[0] + later[0]], [numbers])
    assert torch.equal(sums, numbers.cumsum(1))


def test_earlier_elements_are_combined_on_the_left():
    letters = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    (last,) = prefix_scan(lambda earlier, later: [later[0]], [letters])
    assert torch.equal(last, letters)
    (first,) = prefix_scan(lambda earlier, later: [earlier[0]], [letters])
    assert torch.equal(first, torch.ones_like(letters))


def test_gradients_of_the_scan_equal_those_of_the_scan_by_steps():
    gradients = []
    for scan in (prefix_scan, prefix_scan_by_steps):
        maps = [part.requires_grad_() for part in affine_maps(9)]
        scan(affine_then, maps)[1].square().sum().backward()
        gradients.append([part.grad for part in maps])
    for fast, readable in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, readable, rtol=1e-9, atol=1e-12)


def test_the_scan_leaves_its_input_alone():
    maps = affine_maps(8)
    before = [part.clone() for part in maps]
    prefix_scan(affine_then, maps)
    assert all(torch.equal(part, old) for part, old in zip(maps, before, strict=True))
