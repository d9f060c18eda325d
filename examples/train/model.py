"""RWKV-X for training, in PyTorch: RWKV-7 blocks with blocks of sparse attention among them.

Equations and names of the parameters: RWKV-7 "Goose" (2025) and RWKV-X (2025); the same as
wkvm's forward, which the exported file is run by. Whole sequences from an empty state only.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from wkv7 import wkv7

HEAD = 64


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        n_vocab: rows of embedding and head, V.
        n_embd: D, a multiple of 64.
        n_rwkv: RWKV-7 blocks, a multiple of n_attn.
        n_attn: attention blocks; one follows every n_rwkv / n_attn RWKV-7 blocks.
        n_ffn: width of the channel mix.
        moba_chunk_size: positions of one block of keys.
        moba_topk: blocks that a query sees, its own included.
        lora: ranks of the decay's, the in-context rate's, the value's and the gate's matrices.
    """

    n_vocab: int
    n_embd: int = 256
    n_rwkv: int = 4
    n_attn: int = 2
    n_ffn: int = 1024
    moba_chunk_size: int = 64
    moba_topk: int = 3
    lora: tuple[int, int, int, int] = (32, 32, 16, 48)

    @property
    def n_head(self) -> int:
        """Heads of 64, H."""
        return self.n_embd // HEAD


def shifted(x: Tensor) -> Tensor:
    """The previous token's row at every position, zeros at the first; [B, T, D]."""
    return F.pad(x, (0, 0, 1, -1))


def linear(n_in: int, n_out: int, scale: float) -> nn.Linear:
    """A matrix [n_out, n_in] without bias, uniform in +-scale / sqrt(n_in); zeros for 0."""
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.uniform_(layer.weight, -scale / n_in**0.5, scale / n_in**0.5)
    return layer


class Lora(nn.Module):
    """x -> offset + activation(x @ down) @ up, [.., D] -> [.., D]; ``down`` begins as zeros."""

    def __init__(self, width: int, rank: int, offset: Tensor | None) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.zeros(width, rank))
        self.up = nn.Parameter(nn.init.orthogonal_(torch.empty(rank, width), gain=0.1))
        self.offset = None if offset is None else nn.Parameter(offset)

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """The low-rank map, in the type of ``x`` or autocast's."""
        hidden = x @ self.down
        if activation == "tanh":
            hidden = torch.tanh(hidden)
        elif activation == "sigmoid":
            hidden = torch.sigmoid(hidden)
        y = hidden @ self.up
        return y if self.offset is None else self.offset + y


class TimeMix(nn.Module):
    """RWKV-7's time mix, block ``index`` of ``shape.n_rwkv``."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        d, heads = shape.n_embd, shape.n_head
        self.index, self.heads = index, heads
        depth = index / max(shape.n_rwkv - 1, 1)  # 0 at the first block, 1 at the last
        left = 1 - index / shape.n_rwkv
        channel = torch.arange(d) / d
        within = torch.arange(d) % HEAD / (HEAD - 1) * 2 - 1  # -1 .. 1 along each head
        bend = within * within.abs()
        # How much of the previous token each of r, w, k, v, a, g starts from.
        exponents = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
        self.x = nn.Parameter(torch.stack([1 - channel ** (e * left) for e in exponents]))
        slope = torch.arange(d) / (d - 1)
        decay = -5.5 + 5.5 * slope ** (0.85 + depth**0.5) + 2.5 * bend
        rank_w, rank_a, rank_v, rank_g = shape.lora
        self.w = Lora(d, rank_w, decay)
        self.a = Lora(d, rank_a, 0.4 * bend - 0.19)
        self.v = Lora(d, rank_v, 0.73 - 0.4 * slope) if index else None
        self.g = Lora(d, rank_g, None)
        self.k_k = nn.Parameter(0.71 - 0.1 * bend)
        self.k_a = nn.Parameter(torch.full((d,), 1.02))
        self.r_k = nn.Parameter(torch.full((heads, HEAD), -0.04))
        self.receptance = linear(d, d, 0.5)
        self.key = linear(d, d, 0.05)
        self.value = linear(d, d, 0.5)
        self.output = linear(d, d, 0.0)
        self.ln_x = nn.GroupNorm(heads, d, eps=64e-5)
        nn.init.constant_(self.ln_x.weight, ((1 + index) / shape.n_rwkv) ** 0.7)

    def forward(self, x: Tensor, v_first: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output [B, T, D] and the first block's value; ``x`` is normed."""
        batch, length, d = x.shape
        heads = (batch, length, self.heads, HEAD)
        delta = shifted(x) - x
        xr, xw, xk, xv, xa, xg = (x + delta * mix for mix in self.x.unbind())
        r, k, v = self.receptance(xr).float(), self.key(xk).float(), self.value(xv).float()
        log_w = -0.606531 * torch.sigmoid(self.w(xw, "tanh").float())
        if self.v is None:
            v_first = v
        else:
            assert v_first is not None
            v = v + (v_first - v) * torch.sigmoid(self.v(xv).float())
        a = torch.sigmoid(self.a(xa).float())
        g = self.g(xg, "sigmoid")
        kk = F.normalize((k * self.k_k).view(heads), dim=3)
        k = k * (1 + (a - 1) * self.k_a)
        r, k, vh = r.view(heads), k.view(heads), v.view(heads)
        with torch.autocast("cpu", enabled=False):
            y = wkv7(r, log_w.view(heads), k, vh, -kk, kk * a.view(heads))
        y = self.ln_x(y.reshape(batch * length, d)).view(batch, length, d)
        bonus = (r * k * self.r_k).sum(3, keepdim=True) * vh
        return self.output((y + bonus.view(batch, length, d)) * g), v_first


class ChannelMix(nn.Module):
    """RWKV-7's channel mix: a squared ReLU between two matrices."""

    def __init__(self, shape: Shape, depth: float) -> None:
        super().__init__()
        d = shape.n_embd
        self.x_k = nn.Parameter(1 - (torch.arange(d) / d) ** ((1 - depth) ** 4))
        self.key = linear(d, shape.n_ffn, 1.0)
        self.value = linear(shape.n_ffn, d, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D], normed, to [B, T, D]."""
        return self.value(torch.relu(self.key(x + (shifted(x) - x) * self.x_k)) ** 2)


class Attention(nn.Module):
    """Sparse attention: its own block up to the query, and the best of the earlier blocks.

    The choice of blocks, by the product of the query and the mean of a block's keys, is per head
    and passes no gradient. Without positions. Source: MoBA (2025), as RWKV-X uses it.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.n_embd
        self.heads, self.block, self.topk = shape.n_head, shape.moba_chunk_size, shape.moba_topk
        self.receptance, self.key, self.value = (linear(d, d, 1.0) for _ in range(3))
        self.output = linear(d, d, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D], normed, to [B, T, D]; T a multiple of the block."""
        batch, length, d = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, HEAD).transpose(1, 2)
            for layer in (self.receptance, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(q, k))
        return self.output(y.transpose(1, 2).reshape(batch, length, d))

    @torch.no_grad()
    def visible(self, q: Tensor, k: Tensor) -> Tensor:
        """Which keys each query sees: bool [B, H, T, T]."""
        batch, heads, length, size = k.shape
        n = length // self.block
        mean = k.float().view(batch, heads, n, self.block, size).mean(3)
        with torch.autocast("cpu", enabled=False):
            score = q.float() @ mean.transpose(2, 3)  # [B, H, T, n]
        own = torch.arange(length) // self.block
        earlier = torch.arange(n) < own[:, None]  # [T, n]
        score = score.masked_fill(~earlier, -torch.inf)
        best = score.topk(min(self.topk - 1, n), 3).indices
        chosen = torch.zeros_like(score, dtype=torch.bool).scatter_(3, best, True) & earlier
        chosen = chosen | (torch.arange(n) == own[:, None])
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return chosen.repeat_interleave(self.block, 3) & causal


class RwkvBlock(nn.Module):
    """Time mix and channel mix, each behind a layer norm and beside a residual."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(shape.n_embd), nn.LayerNorm(shape.n_embd)
        self.att = TimeMix(shape, index)
        self.ffn = ChannelMix(shape, index / shape.n_rwkv)

    def forward(self, x: Tensor, v_first: Tensor | None) -> tuple[Tensor, Tensor]:
        """The residual stream after this block, and the first block's value."""
        y, v_first = self.att(self.ln1(x), v_first)
        x = x + y
        return x + self.ffn(self.ln2(x)), v_first


class AttentionBlock(nn.Module):
    """Sparse attention and channel mix, each behind a layer norm and beside a residual."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(shape.n_embd), nn.LayerNorm(shape.n_embd)
        self.att = Attention(shape)
        self.ffn = ChannelMix(shape, (index + 0.5) / shape.n_attn)

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream after this block."""
        x = x + self.att(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class RwkvX(nn.Module):
    """The model: tokens [B, T] to logits [B, T, V]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        d = shape.n_embd
        self.emb = nn.Embedding(shape.n_vocab, d)
        nn.init.uniform_(self.emb.weight, -1e-2, 1e-2)
        self.ln0, self.ln_out = nn.LayerNorm(d), nn.LayerNorm(d)
        self.blocks = nn.ModuleList(RwkvBlock(shape, i) for i in range(shape.n_rwkv))
        self.moba = nn.ModuleList(AttentionBlock(shape, i) for i in range(shape.n_attn))
        self.head = nn.Linear(d, shape.n_vocab, bias=False)
        nn.init.orthogonal_(self.head.weight, gain=0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, V]; T a multiple of the WKV's chunk and of the attention's block."""
        x = self.ln0(self.emb(tokens))
        v_first = None
        group = self.shape.n_rwkv // self.shape.n_attn
        for i, block in enumerate(self.blocks):
            x, v_first = block(x, v_first)
            if (i + 1) % group == 0:
                x = self.moba[i // group](x)
        return self.head(self.ln_out(x))
