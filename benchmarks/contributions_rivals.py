"""What contribution weights are timed against: attention itself, and two ways in which they are usually computed."""

from __future__ import annotations

import torch
from torch import Tensor


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The eager attention of transformers: repeated key/value heads, masked scores, softmax, values. (H, T, d)."""
    group = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = torch.matmul(query, key.transpose(1, 2)) * query.shape[-1] ** -0.5 + mask
    weights = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32)
    return torch.matmul(weights, value)


def bare_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same without mask, scale and repeated heads: what is left of it at the least. (H, T, d)."""
    return torch.matmul(torch.softmax(torch.matmul(query, key.transpose(1, 2)), dim=-1), value)


def _summary(attention: Tensor, length: Tensor, norm: Tensor, intra: Tensor, inter: Tensor, k: int) -> list[Tensor]:
    """Token means of every score, means of absolute values, and the k strongest entries a row."""
    T = attention.shape[1]
    n = torch.arange(T - 1, 0, -1)
    raw = attention[:, : T - 1].sum(1)[:, : T - 1] / n
    over = (attention[:, : T - 1] / norm[:, : T - 1, None]).sum(1)[:, : T - 1] / n
    means = [raw, raw * length[:, : T - 1], over * length[:, : T - 1]]
    for score in (intra, inter):
        means += [score[:, : T - 1].sum(1)[:, : T - 1] / n, score[:, : T - 1].abs().sum(1)[:, : T - 1] / n]
    strongest = intra.abs().topk(k, dim=-1).indices
    return [*means, intra.sum(-1), inter.sum(-1), strongest, intra.gather(2, strongest), inter.gather(2, strongest)]


def wide_products(attention: Tensor, value: Tensor, projection: Tensor, k: int) -> list[Tensor]:
    """By batched products in the model's width: ṽ = v W_O and o = z W_O as (H, T, D) arrays, then ⟨ṽ, o⟩."""
    projected = torch.bmm(value, projection)  # (H, T, D)
    output = torch.bmm(torch.bmm(attention, value), projection)  # (H, T, D)
    whole = output.sum(0)  # (T, D)
    norm, whole_norm = output.norm(dim=-1), whole.norm(dim=-1)
    intra = torch.bmm(output, projected.transpose(1, 2)).mul_(attention).div_(norm.square()[..., None])
    inter = torch.matmul(whole, projected.transpose(1, 2)).mul_(attention).div_(whole_norm.square()[:, None])
    return _summary(attention, projected.norm(dim=-1), norm, intra, inter, k)


def every_vector(attention: Tensor, value: Tensor, projection: Tensor, k: int) -> list[Tensor]:
    """As the norm-analysis code (Kobayashi 2020): every α ṽ as a vector, T × T × D a head; one head at a time."""
    projected = torch.bmm(value, projection)
    whole = torch.bmm(torch.bmm(attention, value), projection).sum(0)
    norms, intras, inters = [], [], []
    for h in range(len(attention)):
        weighted = attention[h, :, :, None] * projected[h, None]  # (T, T, D)
        output = weighted.sum(1)  # (T, D)
        norms.append(output.norm(dim=-1))
        intras.append((weighted * output[:, None]).sum(-1) / output.square().sum(-1, keepdim=True))
        inters.append((weighted * whole[:, None]).sum(-1) / whole.square().sum(-1, keepdim=True))
    return _summary(attention, projected.norm(dim=-1), torch.stack(norms), torch.stack(intras), torch.stack(inters), k)
