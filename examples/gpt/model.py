# SPDX-License-Identifier: Apache-2.0
"""A GPT on bytes, in plain PyTorch: pre-norm blocks, learned positions, a tied output layer."""

import argparse
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

BYTES = 256


@dataclass
class Size:
    """Of a model; `context` is the length of a sample in bytes."""

    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal self-attention; in and out are [batch, position, width]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.project = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.dropout = nn.Dropout(size.dropout)
        future = torch.full((size.context, size.context), float("-inf")).triu(1)
        self.register_buffer("future", future, persistent=False)  # added to scores

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, positions, _ = x.shape
        parts = self.project(x).view(batch, positions, 3, -1, self.head)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head)
        scores = scores + self.future[:positions, :positions]
        mixed = self.dropout(scores.softmax(dim=-1)) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, positions, -1))


class Block(nn.Module):
    """Attention, then a feed-forward layer of four times the width."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.norm_feed = nn.LayerNorm(size.width)
        self.feed = nn.Sequential(
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
            nn.Dropout(size.dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.feed(self.norm_feed(x))


class GPT(nn.Module):
    """Bytes [batch, position] in, logits of the next byte [batch, position, 256] out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, size.width)
        self.position = nn.Parameter(torch.zeros(size.context, size.width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.logits = nn.Linear(size.width, BYTES, bias=False)
        self.apply(self._initialise)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "feed.2.weight")):  # into the residual
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * size.layers))
        self.logits.weight = self.embed.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embed(text) + self.position[: text.shape[1]]
        return self.logits(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in nats, the mean over all bytes, which are moved to the model's device."""
    device = next(model.parameters()).device
    return F.cross_entropy(model(inputs.to(device)).flatten(0, 1), targets.to(device).flatten())


class Windows(torch.utils.data.Dataset):
    """(inputs, targets), each `context` bytes of a file; windows do not overlap and come in an
    order drawn from a seed."""

    def __init__(self, path: str, context: int, seed: int = 1) -> None:
        with open(path, "rb") as file:
            self.text = torch.tensor(list(file.read()), dtype=torch.long)
        self.context = context
        count = (len(self.text) - 1) // context
        if count < 1:
            raise ValueError(f"{path} holds {len(self.text)} bytes; one sample needs {context + 1}")
        self.order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int):
        begin = int(self.order[index]) * self.context
        window = self.text[begin : begin + self.context + 1]
        return window[:-1], window[1:]


def optimizer_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """AdamW that decays matrices only."""
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=rate,
        betas=(0.9, 0.95),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True, help="file to train on, read as bytes")
    parser.add_argument("--epochs", type=int, default=10, help="of train_ddp.py; a job has steps")
    parser.add_argument("--context", type=int, default=64, help="bytes of a sample")
    parser.add_argument("--batch", type=int, default=8, help="samples of a replica in one step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1, help="of parameters and the order of samples")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default="cpu", help="cuda: a job needs device = \"cuda\" as well")
    return parser.parse_args()
