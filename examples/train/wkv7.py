"""WKV-7 over whole sequences, in chunks, so that it trains at matrix speed.

Within a chunk of C tokens the recurrence of RWKV-7

    S_t = S_{t-1} (diag(w_t) + a_t b_t^T) + v_t k_t^T        S is [value, key]
    y_t = S_t r_t

is unrolled: with P_t the product of the decays up to t, every term is a product of a vector scaled
by P and one scaled by 1/P, and the a b^T terms, which feed on each other, form a unit lower
triangular system. Only the state steps from chunk to chunk. Source: RWKV-7 "Goose" (2025).
"""

import torch
from torch import Tensor

# exp(-0.606531 * 16) = 6e-5 is the smallest product of decays in a chunk: 1/P stays well inside
# float32. Twice the chunk would lose half of its digits.
CHUNK = 16


def wkv7(r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Outputs of WKV-7 from an empty state.

    Args:
        r, k, v, a, b: float32 [B, T, H, N], T a multiple of ``CHUNK``; a = -kk, b = kk * gate.
        log_w: the logarithm of the decay, at most 0 and at least -0.606531.

    Returns:
        y, float32 [B, T, H, N].
    """
    batch, length, heads, size = r.shape
    n = length // CHUNK
    # [n, B*H, C, N]: chunks first, since the loop below walks them.
    r, log_w, k, v, a, b = (
        x.view(batch, n, CHUNK, heads, size).permute(1, 0, 3, 2, 4).reshape(n, -1, CHUNK, size)
        for x in (r, log_w, k, v, a, b)
    )
    total = log_w.cumsum(2)
    inverse = torch.exp(-total)
    r_in = r * torch.exp(total)
    asked = torch.cat([a * torch.exp(total - log_w), r_in], 2)  # [n, B*H, 2C, N]
    given = torch.cat([k * inverse, b * inverse], 2)
    earlier = torch.ones(CHUNK, CHUNK).tril()
    mask = torch.cat([earlier - torch.eye(CHUNK), earlier]).repeat(1, 2)
    # What a (above) and r (below) see of k (left) and b (right) of this chunk.
    scores = (asked @ given.transpose(2, 3)) * mask
    ak, ab = scores[:, :, :CHUNK].split(CHUNK, 3)
    # (I - ab)^-1 = (I + ab)(I + ab^2)(I + ab^4)(I + ab^8), since ab^16 = 0.
    solve, power = torch.eye(CHUNK) + ab, ab
    for _ in range(3):
        power = power @ power
        solve = solve + solve @ power
    own, from_state = (solve @ torch.cat([ak @ v, asked[:, :, :CHUNK]], 3)).split(size, 3)
    written = torch.cat([v, own], 2)
    seen = scores[:, :, CHUNK:]
    y_own = seen @ written
    y_from_state = r_in + seen[:, :, :, CHUNK:] @ from_state
    decay = torch.exp(total[:, :, -1:]).transpose(2, 3)
    kept = given.transpose(2, 3) * decay  # [n, B*H, N, 2C]
    gain_own = kept @ written
    gain_state = kept[:, :, :, CHUNK:] @ from_state
    state = r.new_zeros(batch * heads, size, size)  # [key, value]
    states = []
    for shrink, turn, gain in zip(
        decay.unbind(), gain_state.unbind(), gain_own.unbind(), strict=True
    ):
        states.append(state)
        state = state * shrink + torch.baddbmm(gain, turn, state)
    y = y_own + y_from_state @ torch.stack(states)
    y = y.view(n, batch, heads, CHUNK, size).permute(1, 0, 3, 2, 4)
    return y.reshape(batch, length, heads, size)
