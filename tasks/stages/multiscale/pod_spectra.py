"""The spectra of one layer's ensemble: observed and of nulls, whole and filtered, of all documents and of fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.kernels.pod import Decomposition, centre, decompose, eigenvalues, entry_products, n_modes, products, signs
from tasks.kernels.pod_measures import effective_rank
from tasks.stages.multiscale.pod_blocks import OBSERVED, Blocks, Source, subsample

Arrays = dict[str, np.ndarray]
OBSERVED_SOURCE: Source = (OBSERVED, 0)


def name_of(filtered: str, source: Source, n_snapshots: int) -> str:
    """What the eigenvalues of one spectrum are called among a layer's arrays."""
    return f"{filtered}/{source[0]}/{source[1]}/{n_snapshots}"


@dataclass(frozen=True)
class Spectra:
    """What is worked out of one layer, or head: for each source, under each filter, at each size of the ensemble."""

    blocks: Blocks
    sizes: Sequence[int]
    """Ascending; the last is N."""
    n_modes: int
    epsilons: Sequence[float]
    seed: int

    def run(self, work: Mapping[Source, Mapping[str, np.ndarray | None]], done: Callable[[float], None]) -> Arrays:
        """The eigenvalues of each source under each of its filters (name → weights), and the observed ones' modes."""
        found: Arrays = {}
        steps = [(source, name, weights) for source, filters in work.items() for name, weights in filters.items()]
        for at, (source, name, weights) in enumerate(steps, 1):
            found |= self._one(source, name, weights)
            done(at / len(steps))
        return found

    def _one(self, source: Source, name: str, weights: np.ndarray | None) -> Arrays:
        """By the snapshots' inner products, or, where entries are fewer than snapshots, by those of entries."""
        by_entries = len(self.blocks.lags) < self.sizes[-1]
        covariances = self._of_entries(source, weights) if by_entries else self._of_snapshots(source, weights)
        found: Arrays = {}
        for size, covariance in covariances:
            key = name_of(name, source, size)
            if size < self.sizes[-1] or source != OBSERVED_SOURCE:
                found[key] = eigenvalues(covariance)[:size]
                continue
            decomposition = decompose(covariance)
            found[key] = decomposition.eigenvalues[:size]
            found[f"{name}/errors"] = self._errors(decomposition)
            modes, coefficients = (self._modes_of_entries if by_entries else self._modes_of_snapshots)(
                decomposition, weights
            )
            sign = signs(modes)[:, None]
            found[f"{name}/mode"] = (modes * sign).astype(np.float32)
            found[f"{name}/coefficient"] = coefficients * sign
        return found

    def _errors(self, decomposition: Decomposition) -> np.ndarray:
        """By ε, what the H*(ε) first modes leave."""
        ranks = [effective_rank(decomposition.eigenvalues, epsilon) for epsilon in self.epsilons]
        return np.array([np.nan if h is None else decomposition.reconstruction_error(h) for h in ranks])

    def _of_snapshots(self, source: Source, weights: np.ndarray | None) -> Iterator[tuple[int, np.ndarray]]:
        """(size, C = U Uᵀ / size) of each size, the whole ensemble last."""
        blocks, parts, n = self.blocks, self.blocks.slices(), self.sizes[-1]
        if len(parts) == 1:
            gram = products(blocks.get(source, 0), weights=weights)
        else:
            gram = np.empty((n, n), order="F")
            for left, right in blocks.pairs():
                one = blocks.get(source, left)
                of_pair = products(one, None if left == right else blocks.get(source, right), weights)
                gram[parts[left], parts[right]] = of_pair
                gram[parts[right], parts[left]] = of_pair.T
        for size in self.sizes:
            chosen = subsample(n, size, self.seed)
            part = gram if size == n else np.asfortranarray(gram[np.ix_(chosen, chosen)])
            part = centre(part)
            part /= size
            yield size, part

    def _of_entries(self, source: Source, weights: np.ndarray | None) -> Iterator[tuple[int, np.ndarray]]:
        """(size, covariance of entries) of each size; each snapshot is met once."""
        n, n_entries = self.sizes[-1], len(self.blocks.lags)
        tier = np.full(n, len(self.sizes) - 1)
        for at in reversed(range(len(self.sizes))):
            tier[subsample(n, self.sizes[at], self.seed)] = at
        squares = np.zeros((len(self.sizes), n_entries, n_entries))
        sums = np.zeros((len(self.sizes), n_entries))
        for at, part in enumerate(self.blocks.slices()):
            block = self.blocks.get(source, at)
            for step in np.unique(tier[part]):
                chosen = block[tier[part] == step]
                squares[step] += entry_products(chosen)
                sums[step] += chosen.sum(0)
        total, mean_of = np.cumsum(squares, 0, out=squares), np.cumsum(sums, 0)
        outer = 1.0 if weights is None else weights[:, None] * weights
        for at, size in enumerate(self.sizes):
            mean = mean_of[at] / size
            yield size, (total[at] / size - mean[:, None] * mean) * outer

    def _modes_of_snapshots(self, found: Decomposition, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """φ_k = Uᵀ q_k / √(Nλ_k) and the coefficients √(Nλ_k) q_k."""
        count, n = n_modes(found.eigenvalues, self.n_modes), self.sizes[-1]
        length = np.sqrt(n * found.eigenvalues[:count])[:, None]
        vectors, modes = found.vectors[:, :count].T, np.zeros((count, len(self.blocks.lags)))
        for at, part in enumerate(self.blocks.slices()):
            modes += vectors[:, part] @ self.blocks.get(OBSERVED_SOURCE, at)
        if weights is not None:
            modes *= weights
        return modes / length, vectors * length

    def _modes_of_entries(self, found: Decomposition, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvectors are modes; the coefficients are the snapshots along them."""
        count = n_modes(found.eigenvalues, self.n_modes)
        modes = np.ascontiguousarray(found.vectors[:, :count].T)
        weighted = (modes if weights is None else modes * weights).T
        along = [self.blocks.get(OBSERVED_SOURCE, at) @ weighted for at in range(len(self.blocks))]
        return modes, np.concatenate(along).T
