"""How documents fall into forward batches and shards: by a number of tokens."""

from __future__ import annotations


def group_by_tokens(sizes: list[int], limit: int, *, padded: bool) -> list[list[int]]:
    """Consecutive items in groups of at most `limit` tokens, at least one item each; indices into `sizes`.

    `padded` counts every item as long as the longest of its group, as a forward pass does.
    """
    groups: list[list[int]] = []
    total, longest = 0, 0
    for index, size in enumerate(sizes):
        longest = max(longest, size)
        grown = longest * (len(groups[-1]) + 1) if padded and groups else total + size
        if not groups or grown > limit:
            groups.append([])
            longest, total = size, 0
        groups[-1].append(index)
        total += size
    return groups
