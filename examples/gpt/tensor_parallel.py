# SPDX-License-Identifier: Apache-2.0
"""The blocks of model.py over several processes: each has a part of the heads and of the inner layer.

Two all-reduces forward and two backward for each block, as in Megatron-LM (arXiv 1909.08053, section
3): every process computes the same samples, and has its own rows or columns of the matrices.
"""

from typing import Any

import torch
from model import GPT
from torch import distributed, nn
from torch.nn import functional as F


class _Copied(torch.autograd.Function):
    """The input of layers that are split: its gradient is the sum of what each part says."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        distributed.all_reduce(grad)
        return grad


class _Summed(torch.autograd.Function):
    """The output of layers that are split: the sum of their parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.contiguous().clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Columns(nn.Module):
    """Some outputs of a linear layer."""

    def __init__(self, weight: torch.Tensor, bias: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(_Copied.apply(x), self.weight, self.bias)


class Rows(nn.Module):
    """A linear layer of which each process has some inputs; the bias is everybody's."""

    def __init__(self, weight: torch.Tensor, bias: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = _Summed.apply(F.linear(x, self.weight))
        return total if self.bias is None else total + self.bias


def parallelize(model: GPT, rank: int, size: int) -> GPT:
    """`model`, equal on all processes, with part `rank` of `size` of each block. ValueError when
    the heads cannot be dealt evenly."""
    for block in model.blocks:
        attention, feed = block.attention, block.feed
        width = attention.project.in_features
        heads = width // attention.head
        if heads % size != 0:
            raise ValueError(f"{heads} heads for {size} processes")
        projections = attention.project.weight.view(3, size, -1, width)[:, rank]
        attention.project = Columns(projections.reshape(-1, width), None)
        attention.out = Rows(attention.out.weight.chunk(size, dim=1)[rank], None)
        feed[0] = Columns(feed[0].weight.chunk(size)[rank], feed[0].bias.chunk(size)[rank])
        feed[2] = Rows(feed[2].weight.chunk(size, dim=1)[rank], feed[2].bias)
    return model
