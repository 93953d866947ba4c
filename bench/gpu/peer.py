#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peer.py [--size base] [--size large] [--times N] [--compile]: what llama_moe is, with PyTorch.

The same shapes as resources/workloads/llama_moe, in bfloat16 with float32 masters, gradients and moments:
scaled_dot_product_attention, grouped products for the experts, a fused AdamW. Prints a line of JSON for
each size, both unless told: milliseconds of a step (median, least, most) of 4 micro-batches of 8 samples
of 2048 tokens, and tokens a second. Exits with 2 where there is no PyTorch or no GPU.
"""
import argparse
import json
import pathlib
import sys
import time
import tomllib

SEQUENCE, SAMPLES, MICRO_BATCHES, VOCABULARY = 2048, 8, 4, 256

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as missing:
    print(f"PyTorch is not installed: {missing}")
    sys.exit(2)


class Attention(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.heads, self.kv, self.head = c["heads"], c["kv_heads"], c["dim"] // c["heads"]
        self.chunk, self.full = SEQUENCE if full else c["attention_chunk"], full
        self.norm = nn.RMSNorm(c["dim"], eps=1e-5)
        self.qkv = nn.Linear(c["dim"], (self.heads + 2 * self.kv) * self.head, bias=False)
        self.out = nn.Linear(c["dim"], c["dim"], bias=False)
        if not full:
            half = self.head // 2
            angle = torch.outer(
                torch.arange(SEQUENCE, dtype=torch.float64),
                c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half),
            )
            self.register_buffer("cosine", angle.cos().float(), persistent=False)
            self.register_buffer("sine", angle.sin().float(), persistent=False)

    def turn(self, x):
        low, high = x.chunk(2, dim=-1)
        c, s = self.cosine.to(x.dtype)[:, None], self.sine.to(x.dtype)[:, None]
        return torch.cat([low * c - high * s, high * c + low * s], dim=-1)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            self.qkv(self.norm(x))
            .view(b, t, self.heads + 2 * self.kv, self.head)
            .split([self.heads, self.kv, self.kv], dim=2)
        )
        if not self.full:
            q, k = self.turn(q), self.turn(k)
        chunks = t // self.chunk
        q, k, v = (y.reshape(b * chunks, self.chunk, -1, self.head).transpose(1, 2) for y in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(mixed.transpose(1, 2).reshape(b, t, -1))


class Swiglu(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w13 = nn.Linear(dim, 2 * hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class Dense(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.RMSNorm(c["dim"], eps=1e-5)
        self.mlp = Swiglu(c["dim"], c["ffn_hidden"])

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Mixture(nn.Module):
    def __init__(self, c):
        super().__init__()
        dim, hidden, self.experts = c["dim"], c["expert_hidden"], c["experts"]
        assert c["top_k"] == 1
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.router = nn.Linear(dim, self.experts, bias=False)
        self.shared = Swiglu(dim, c["shared_hidden"])
        self.w13 = nn.Parameter(torch.randn(self.experts, dim, 2 * hidden) * dim**-0.5)
        self.w2 = nn.Parameter(torch.randn(self.experts, hidden, dim) * hidden**-0.5 * 0.1)

    def forward(self, x):
        normed = self.norm(x)
        flat = normed.reshape(-1, normed.shape[-1])
        logits = self.router(flat)
        best, chosen = logits.max(dim=-1)
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=self.experts).cumsum(0).to(torch.int32)
        rows = (flat * best.sigmoid()[:, None])[order].bfloat16()
        gate, up = torch._grouped_mm(rows, self.w13.bfloat16(), offs=ends).chunk(2, dim=-1)
        back = torch._grouped_mm(F.silu(gate) * up, self.w2.bfloat16(), offs=ends)
        mixed = torch.empty_like(back).index_copy(0, order, back)
        return x + self.shared(normed) + mixed.view_as(normed)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, c["dim"])
        layers = []
        for i in range(c["layers"]):
            layers += [Attention(c, (i + 1) % 4 == 0), Mixture(c) if i % 2 else Dense(c)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.RMSNorm(c["dim"], eps=1e-5)
        self.head = nn.Linear(c["dim"], VOCABULARY, bias=False)

    def forward(self, tokens):
        logits = self.head(self.norm(self.layers(self.embedding(tokens[:, :-1]))))
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def measure(size, times, compiled):
    """What is printed of one size."""
    folder = pathlib.Path(__file__).resolve().parents[2] / "resources/workloads/llama_moe"
    config = tomllib.loads((folder / f"{size}.toml").read_text())
    torch.manual_seed(1)
    model = Model(config).cuda()
    loss_of = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, SEQUENCE + 1), device="cuda")

    def step():
        for _ in range(MICRO_BATCHES):
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(tokens)
            (loss / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()

    for _ in range(3):
        step()
    ms = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        ms.append((time.perf_counter() - began) * 1e3)
    ms.sort()
    median = ms[len(ms) // 2]
    return {
        "size": size,
        "torch": torch.__version__,
        "compiled": compiled,
        "ms": [round(median, 2), round(ms[0], 2), round(ms[-1], 2)],
        "tokens_per_s": round(SAMPLES * SEQUENCE * MICRO_BATCHES / median * 1e3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", action="append")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU answers PyTorch")
        sys.exit(2)
    for size in arguments.size or ["base", "large"]:
        print(json.dumps(measure(size, arguments.times, arguments.compile)), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
