"""Weights in half precision are the weights, rounded, however they were made."""

import pytest
import torch

from gtmsm.kernels.gradients.halves import half_of, halving


def parameters():
    """Three of them in one vector, one of which lies channels_last, and one that lies elsewhere."""
    vector = torch.randn(200, generator=torch.Generator().manual_seed(0))
    straight = vector[:32].view(4, 8)
    turned = vector[32:152].as_strided((5, 2, 3, 4), (24, 1, 8, 2), 32)
    return vector, [straight, turned, vector[152:160], torch.randn(7)]


@pytest.mark.parametrize("together", [True, False])
def test_halves_are_rounded_weights_and_lie_as_they_do(together):
    vector, every = parameters()
    with halving(vector if together else torch.zeros(3)):
        for parameter in every:
            torch.testing.assert_close(half_of(parameter), parameter.to(torch.bfloat16), rtol=0, atol=0)
            assert half_of(parameter).stride() == parameter.stride()


def test_a_vector_is_halved_once_and_anew_the_next_time():
    vector, (weight, *_) = parameters()
    with halving(vector):
        first = half_of(weight)
        assert half_of(vector[64:72]).untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    vector.mul_(2)
    with halving(vector):
        torch.testing.assert_close(half_of(weight), 2 * first, rtol=0, atol=0)


def test_nobody_learns_through_a_half():
    vector, _ = parameters()
    weight = torch.nn.Parameter(vector[:8])
    with halving(vector):
        assert not half_of(weight).requires_grad
    assert not half_of(weight).requires_grad
