from functools import lru_cache

import torch


@lru_cache(64)
def _idx(q0, q, K, device):
    return torch.cat([torch.arange(q0 + i + 1) + i * K for i in range(q)]).to(device)


def pack_rows(block, q0, T):
    q, K = block.shape[-2:]
    return block.reshape(*block.shape[:-2], q * K).index_select(-1, _idx(q0, q, K, block.device))
