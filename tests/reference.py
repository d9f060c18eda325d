"""RWKV-7 and RWKV-X in NumPy float64, written for reading: the slow truth that engines are held to.

One function per layer, in the order in which a token meets them, with the shape at every array:

    T  tokens of this call            D  n_embd = H * N          V  vocabulary
    H  heads of N channels            M  keys that a query may see
    F  inner width of the channel mix

The equations are those of the model papers and of the official packages (`rwkv`, `rwkv-x`). A
state is a plain dict of arrays, changed in place:

    rwkv.i.att_x_prev [D]    rwkv.i.wkv [H, N value, N key]    rwkv.i.ffn_x_prev [D]
    attn.i.k_cache [n, D]    attn.i.v_cache [n, D]             attn.i.ffn_x_prev [D]

Under `full`, `moba` and `window` a cache holds every position and the policy is a mask over it;
under `memory` it holds what the last prefill kept, in ascending position.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = dict[str, Array]
State = dict[str, Array]


@dataclass(frozen=True)
class Policy:
    """What an attention query sees. Pure RWKV-7 takes any and uses none."""

    name: str = "full"  # full, moba, window, memory
    moba_chunk_size: int = 2048
    moba_topk: int = 3
    window_sinks: int = 4
    window_size: int = 2048
    memory_keep_tokens: int = 128
    memory_keep_ratio: float = 0.0  # 0: keep memory_keep_tokens


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    """[T, D] -> [T, D]; biased variance."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


def group_norm(y: Array, weight: Array, bias: Array) -> Array:
    """One group per head: [T, H, N] -> [T, H, N]."""
    mean = y.mean(axis=-1, keepdims=True)
    variance = ((y - mean) ** 2).mean(axis=-1, keepdims=True)
    heads = y.shape[-2:]
    return (y - mean) / np.sqrt(variance + 64e-5) * weight.reshape(heads) + bias.reshape(heads)


def l2norm(x: Array) -> Array:
    """Per head: [T, H, N] -> [T, H, N]."""
    norm = np.sqrt((x**2).sum(axis=-1, keepdims=True))
    return x / np.maximum(norm, 1e-12)


def shifted(xx: Array, previous: Array) -> Array:
    """Each token's predecessor: xx [T, D], previous [D] -> [T, D]."""
    return np.vstack([previous, xx[:-1]])


def linear(weight: Array, x: Array) -> Array:
    """y = W x for every token: weight [out, in], x [T, in] -> [T, out]."""
    return x @ weight.T


def quantise(x: Array) -> tuple[Array, Array]:
    """Each row [n] to integers in [-127, 127] and a scale; the arithmetic is float32's."""
    x32 = x.astype(np.float32)
    scale = np.abs(x32).max(axis=-1, keepdims=True) / np.float32(127)
    divisor = np.where(scale == 0, np.float32(1), scale)
    q = np.clip(np.rint(x32 / divisor), -127, 127) * (scale != 0)
    return q.astype(np.float64), scale.astype(np.float64)


def linear_int8(weight: Array, x: Array) -> Array:
    """The same product as wkvm's int8 defines it: weights per output row, activations per token."""
    weight_q, weight_scale = quantise(weight)  # [out, in], [out, 1]
    x_q, x_scale = quantise(x)  # [T, in], [T, 1]
    return (x_q @ weight_q.T) * (x_scale * weight_scale.T)


def wkv(
    S: Array, *, r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array
) -> tuple[Array, Array]:
    """One token: S [H, N value i, N key j]; the others [H, N] -> y [H, N], S."""
    sa = np.einsum("hij,hj->hi", S, -kk)
    S = S * w[:, None, :] + sa[:, :, None] * (kk * a)[:, None, :] + v[:, :, None] * k[:, None, :]
    y = np.einsum("hij,hj->hi", S, r)
    return y, S


def visible_full(n_cached: int, n_tokens: int) -> NDArray[np.bool_]:
    """[T, M]: query t stands at position n_cached + t and sees every position up to its own."""
    p = n_cached + np.arange(n_tokens)[:, None]
    position = np.arange(n_cached + n_tokens)[None, :]
    return position <= p


def visible_window(n_cached: int, n_tokens: int, policy: Policy) -> NDArray[np.bool_]:
    """[T, M]: the first `window_sinks` positions and the last `window_size`, its own included."""
    p = n_cached + np.arange(n_tokens)[:, None]
    position = np.arange(n_cached + n_tokens)[None, :]
    kept = (position < policy.window_sinks) | (position > p - policy.window_size)
    return kept & (position <= p)


def visible_moba(q: Array, keys: Array, policy: Policy) -> NDArray[np.bool_]:
    """[H, T, M]: q [T, H, N], keys [M, H, N] of all positions, the tokens' own included.

    A query sees its own block up to itself, and the topk - 1 earlier blocks whose mean key
    agrees best with it, per head; of equals the earlier block.
    """
    n_tokens, n_heads, _ = q.shape
    n_keys = keys.shape[0]
    size = policy.moba_chunk_size
    visible = np.zeros((n_heads, n_tokens, n_keys), bool)
    for t in range(n_tokens):
        p = n_keys - n_tokens + t
        own = p // size
        visible[:, t, own * size : p + 1] = True
        for h in range(n_heads):
            score = [q[t, h] @ keys[b * size : (b + 1) * size, h].mean(axis=0) for b in range(own)]
            best = sorted(range(own), key=lambda b: (-score[b], b))[: policy.moba_topk - 1]
            for b in best:
                visible[h, t, b * size : (b + 1) * size] = True
    return visible


def attend(q: Array, keys: Array, values: Array, visible: NDArray[np.bool_]) -> Array:
    """Softmax attention: q [T, H, N]; keys, values [M, H, N]; visible [T, M] or [H, T, M].

    -> [T, H, N]; a query that sees nothing gets zeros.
    """
    if keys.shape[0] == 0:
        return np.zeros_like(q)
    score = np.einsum("thn,mhn->htm", q, keys) / np.sqrt(q.shape[-1])
    score = np.where(visible, score, -np.inf)
    weight = np.exp(score - score.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    return np.einsum("htm,mhn->thn", weight, values)


def surprise(S: Array, k: Array, v: Array) -> Array:
    """How badly the recurrent state recalls each token: S [H, N, N]; k, v [T, H, N] -> [T].

    `S^T k`, where `S k` would recall the value, is what the 0.2.x package computes.
    """
    recalled = np.einsum("hij,thi->thj", S, k)
    return ((v - recalled) ** 2).mean(axis=(1, 2))


def n_remembered(n_tokens: int, policy: Policy) -> int:
    if policy.memory_keep_ratio:
        return max(1, int(n_tokens * policy.memory_keep_ratio))
    return min(n_tokens, policy.memory_keep_tokens)


class Reference:
    """A model and the rules it runs under.

    `weights` has canonical names and float64 arrays. `kv_type` is the type in which keys and
    values are stored: every read of them, by their own token too, sees the rounded value.
    """

    def __init__(
        self,
        weights: Weights,
        policy: Policy | None = None,
        kv_type: type[np.floating] = np.float64,
        linear: Callable[[Array, Array], Array] = linear,
    ) -> None:
        self.policy = policy or Policy()
        self.kv_type = kv_type
        self.linear = linear  # the big matrices; the low-rank ones are always exact
        self.is_rwkvx = "rwkv.emb.weight" in weights
        rwkv_part = "rwkv." if self.is_rwkvx else ""
        self.top = _under(weights, rwkv_part)
        self.rwkv = _numbered(weights, rwkv_part + "blocks.")
        self.attn = _numbered(weights, "moba.") if self.is_rwkvx else []
        self.n_heads, self.head_size = self.rwkv[0]["att.r_k"].shape

    def order(self) -> list[tuple[str, int]]:
        """[("rwkv", 0), ("rwkv", 1), ("attn", 0), ...]; RWKV blocks left over never run."""
        n_rwkv, n_attn = len(self.rwkv), len(self.attn)
        if n_attn == 0:
            return [("rwkv", i) for i in range(n_rwkv)]
        n = n_rwkv // n_attn
        blocks = []
        for i in range(n_attn):
            blocks += [("rwkv", i * n + j) for j in range(n)] + [("attn", i)]
        return blocks

    def new_state(self) -> State:
        D, H, N = self.n_heads * self.head_size, self.n_heads, self.head_size
        state = {}
        for kind, i in self.order():
            if kind == "rwkv":
                state[f"rwkv.{i}.att_x_prev"] = np.zeros(D)
                state[f"rwkv.{i}.wkv"] = np.zeros((H, N, N))
            else:
                state[f"attn.{i}.k_cache"] = np.zeros((0, D))
                state[f"attn.{i}.v_cache"] = np.zeros((0, D))
            state[f"{kind}.{i}.ffn_x_prev"] = np.zeros(D)
        return state

    def forward(self, tokens: list[int], state: State) -> Array:
        """Logits [T, V] after each token; `state` moves on."""
        top = self.top
        x = layer_norm(
            top["emb.weight"][tokens], self.rwkv[0]["ln0.weight"], self.rwkv[0]["ln0.bias"]
        )  # [T, D]
        v_first = None
        loss = np.zeros(len(tokens))
        for kind, i in self.order():
            if kind == "rwkv":
                out, v_first, loss = self.time_mix(i, x, v_first, state)
            else:
                out = self.attention(i, x, loss, state)
            x = x + out
            x = x + self.channel_mix(kind, i, x, state)
        x = layer_norm(x, top["ln_out.weight"], top["ln_out.bias"])
        return self.linear(top["head.weight"], x)

    def time_mix(
        self, i: int, x: Array, v_first: Array | None, state: State
    ) -> tuple[Array, Array, Array]:
        """x [T, D] -> out [T, D], the first block's v [T, D], each token's surprise [T]."""
        p = self.rwkv[i]
        xx = layer_norm(x, p["ln1.weight"], p["ln1.bias"])
        d = shifted(xx, state[f"rwkv.{i}.att_x_prev"]) - xx
        state[f"rwkv.{i}.att_x_prev"] = xx[-1]

        xr, xw, xk, xv, xa, xg = (xx + d * p[f"att.x_{name}"] for name in "rwkvag")
        r = self.linear(p["att.receptance.weight"], xr)
        k = self.linear(p["att.key.weight"], xk)
        v = self.linear(p["att.value.weight"], xv)
        w = np.exp(-0.606531 * sigmoid(p["att.w0"] + np.tanh(xw @ p["att.w1"]) @ p["att.w2"]))
        a = sigmoid(p["att.a0"] + (xa @ p["att.a1"]) @ p["att.a2"])
        g = sigmoid(xg @ p["att.g1"]) @ p["att.g2"]
        kk = l2norm(self.heads(k * p["att.k_k"]))  # [T, H, N]
        k = k * (1 + (a - 1) * p["att.k_a"])
        if v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * sigmoid(p["att.v0"] + (xv @ p["att.v1"]) @ p["att.v2"])

        r, w, k, v, a = (self.heads(z) for z in (r, w, k, v, a))  # [T, H, N]
        S = state[f"rwkv.{i}.wkv"]
        y = np.zeros_like(v)
        for t in range(len(x)):
            y[t], S = wkv(S, r=r[t], w=w[t], k=k[t], v=v[t], kk=kk[t], a=a[t])
        state[f"rwkv.{i}.wkv"] = S

        y = group_norm(y, p["att.ln_x.weight"], p["att.ln_x.bias"])
        y = y + v * (r * k * p["att.r_k"]).sum(axis=-1, keepdims=True)
        out = self.linear(p["att.output.weight"], y.reshape(x.shape) * g)
        return out, v_first, surprise(S, k, v)

    def attention(self, i: int, x: Array, loss: Array, state: State) -> Array:
        """x [T, D], loss [T]: the preceding RWKV block's surprise -> out [T, D]."""
        p = self.attn[i]
        xx = layer_norm(x, p["ln1.weight"], p["ln1.bias"])
        q = self.heads(self.linear(p["att.receptance.weight"], xx))  # [T, H, N]
        k = self.stored(self.linear(p["att.key.weight"], xx))  # [T, D]
        v = self.stored(self.linear(p["att.value.weight"], xx))
        cached_k, cached_v = state[f"attn.{i}.k_cache"], state[f"attn.{i}.v_cache"]
        n_tokens, n_cached = len(x), len(cached_k)

        if self.policy.name == "memory" and n_tokens == 1:
            # A single token reads the memory; it neither joins it nor sees itself.
            visible = np.ones((1, n_cached), bool)
        elif self.policy.name == "memory":
            # A prefill sees itself only, then its most surprising tokens become the memory.
            cached_k, cached_v = k, v
            visible = visible_full(0, n_tokens)
            best = sorted(range(n_tokens), key=lambda t: (-loss[t], t))
            kept = sorted(best[: n_remembered(n_tokens, self.policy)])
            state[f"attn.{i}.k_cache"], state[f"attn.{i}.v_cache"] = k[kept], v[kept]
        else:
            cached_k, cached_v = np.vstack([cached_k, k]), np.vstack([cached_v, v])
            state[f"attn.{i}.k_cache"], state[f"attn.{i}.v_cache"] = cached_k, cached_v
            if self.policy.name == "moba":
                visible = visible_moba(q, self.heads(cached_k), self.policy)
            elif self.policy.name == "window":
                visible = visible_window(n_cached, n_tokens, self.policy)
            else:
                visible = visible_full(n_cached, n_tokens)
        y = attend(q, self.heads(cached_k), self.heads(cached_v), visible)
        return self.linear(p["att.output.weight"], y.reshape(x.shape))

    def channel_mix(self, kind: str, i: int, x: Array, state: State) -> Array:
        """[T, D] -> [T, D]; every block has one, with its own shift."""
        p = self.rwkv[i] if kind == "rwkv" else self.attn[i]
        xx = layer_norm(x, p["ln2.weight"], p["ln2.bias"])
        d = shifted(xx, state[f"{kind}.{i}.ffn_x_prev"]) - xx
        state[f"{kind}.{i}.ffn_x_prev"] = xx[-1]
        k = np.maximum(self.linear(p["ffn.key.weight"], xx + d * p["ffn.x_k"]), 0) ** 2  # [T, F]
        return self.linear(p["ffn.value.weight"], k)

    def heads(self, x: Array) -> Array:
        """[T, D] -> [T, H, N]."""
        return x.reshape(-1, self.n_heads, self.head_size)

    def stored(self, x: Array) -> Array:
        return x.astype(self.kv_type).astype(np.float64)


def window_holds(n: int, policy: Policy) -> list[int]:
    """The positions that a window state still holds after n tokens."""
    return [p for p in range(n) if p < policy.window_sinks or p >= n - policy.window_size]


def _under(weights: Weights, prefix: str) -> Weights:
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}


def _numbered(weights: Weights, prefix: str) -> list[Weights]:
    """[{name below "prefix0.": array}, {below "prefix1."}, ...]; [1, 1, D] becomes [D]."""
    numbers = {int(name.split(".", 1)[0]) for name in _under(weights, prefix)}
    return [
        {
            name: w.reshape(-1) if w.ndim == 3 else w
            for name, w in _under(weights, f"{prefix}{i}.").items()
        }
        for i in range(len(numbers))
    ]
