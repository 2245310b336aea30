"""Operators of layers and rays: PyTorch accepts their registration, so that compiled functions call them whole."""

import pytest
import torch

from gtmsm.kernels.layers.activation import activated, shortcut
from gtmsm.kernels.layers.dense_layer import dense_layer
from gtmsm.kernels.layers.edge_conv import edge_conv_in, edge_conv_out
from gtmsm.kernels.layers.normed_sum import normed_sum
from gtmsm.kernels.operator import forced
from gtmsm.kernels.rays.attend import attend
from gtmsm.kernels.rays.gathered_views import gathered_views


def drawn(*shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x).requires_grad_()


ARGUMENTS = {
    dense_layer: (drawn(5, 3), drawn(4, 3), drawn(4), True, torch.float32),
    activated: (drawn(2, 3, 4, 5), drawn(3), "silu", torch.bfloat16),
    shortcut: (drawn(2, 3, 4, 5), drawn(2, 3, 4, 5), drawn(3), "elu"),
    edge_conv_in: (drawn(2, 3, 5, 6).detach(), drawn(8, 3, 3, 3), drawn(8), torch.float32),
    edge_conv_out: (drawn(2, 8, 5, 6), drawn(3, 8, 3, 3), drawn(3)),
    normed_sum: (drawn(4, 6), drawn(4, 6), drawn(6), drawn(6), drawn(6), 1e-5),
    attend: (drawn(2, 3, 32), drawn(2, 5, 64), 16, None),
    gathered_views: (drawn(3, 6, 5), torch.tensor([[0, 2], [1, 1]]), drawn(2, 2, 3, 5).contiguous(), 1e-5),
}

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("operator", ARGUMENTS, ids=lambda operator: operator.name)
def test_pytorch_accepts_the_registration(operator, triton_device):
    arguments = [x.detach().to(triton_device) if isinstance(x, torch.Tensor) else x for x in ARGUMENTS[operator]]
    for x, like in zip(arguments, ARGUMENTS[operator], strict=True):
        if isinstance(x, torch.Tensor):
            x.requires_grad_(like.requires_grad)
    with forced("cuda"):
        assert operator.fast(triton_device).supports(*arguments)
        torch.library.opcheck(getattr(torch.ops.gtmsm, operator.name).default, tuple(arguments), test_utils=CHECKS)
