"""The parameters of the stage `minimal_pairs`: files of pairs of sentences, and a grid of perturbations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from storage.errors import CorpusError, UnknownName, UsageError
from storage.tables import Declared, one_of
from tasks.models.interventions import ARMS, PROTOCOLS, Displace
from tasks.stages.faithfulness.choices_parameters import CLEAN, shard_part
from tasks.stages.parameters import parameter
from tasks.stages.perturbation.grid import (
    INCLUDE,
    KEYS,
    Cell,
    PerturbationGrid,
    deltas_parameter,
    first_token_parameter,
    seeds_parameter,
)

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from tasks.corpora.files import CorpusFile
    from tasks.corpora.pairs import Pair

SHARED, INDEPENDENT, PUBLISHED = "shared", "independent", "published"
PAIR_NOISE = (SHARED, INDEPENDENT, PUBLISHED)
CONDITION: dict[str, Declared] = {
    **{name: KEYS[name] for name in ("protocol", "arm")},
    "pair_noise": one_of(*PAIR_NOISE),
}
CONDITION |= {name: kind for name, kind in KEYS.items() if name not in CONDITION}
"""The columns that name a condition: those of perturbation, and how the sentences of a pair share their noise."""


@dataclass(frozen=True)
class PairCell:
    """One condition of a pair."""

    cell: Cell
    pair_noise: str

    def columns(self, n_layers: int) -> dict[str, Any]:
        """The values of CONDITION."""
        return {**self.cell.columns(n_layers), "pair_noise": self.pair_noise}

    def condition(self, medians: Mapping[int, float], seed: int, *, equal: bool) -> tuple[Displace, ...]:
        """What the cell does to sentences numbered 2k and 2k + 1; equal: whether these have as many tokens each.

        `published` shares vectors between sequences of one length, and draws every sign anew.
        """
        together = self.pair_noise == SHARED or (self.pair_noise == PUBLISHED and self.cell.arm == "angle" and equal)
        moved = self.cell.condition(medians, seed)
        return tuple(replace(one, sharing=2 if together else 1, own_vectors=not together) for one in moved)


@dataclass(frozen=True)
class MinimalPairsParameters(PerturbationGrid):
    """Parameters of the stage `minimal_pairs` (methods.md §3): files of pairs, and a grid of perturbations.

    The grid is smaller than perturbation's, since each condition costs a forward pass a sentence.
    """

    stage: ClassVar[str] = "minimal_pairs"
    files: tuple[str, ...] = parameter(
        (), "files of pairs in the layout of BLiMP, each a task; required", empty=True, example=("pairs.jsonl",)
    )
    items: int = parameter(100, "the first so many pairs of each task; 0 for all", least=0)
    pair_noise: tuple[str, ...] = parameter(
        (SHARED,), "how the sentences of a pair share their noise; published: as the authors' code", words=PAIR_NOISE
    )
    protocols: tuple[str, ...] = parameter(
        ("exact",), "exact (every token moves by δ), published (as the authors' code)", words=PROTOCOLS
    )
    arms: tuple[str, ...] = parameter(
        ARMS, "what is changed: magnitude, or direction by an angle; none alone: nothing", words=(*ARMS, CLEAN)
    )
    deltas: tuple[float, ...] = deltas_parameter((5.0, 10.0, 15.0))
    first_token: tuple[str, ...] = first_token_parameter((INCLUDE,))
    seeds: int = seeds_parameter(1)

    def __post_init__(self) -> None:
        if not self.files:
            raise UsageError(
                "files of minimal pairs",
                got="none",
                where="minimal_pairs.files",
                remedy="Give them with --set minimal_pairs.files=A.jsonl,B.jsonl, or leave the stage out.",
            )
        super().__post_init__()
        if self.perturbs and CLEAN in self.arms:
            raise UnknownName.among("arm beside others", CLEAN, ARMS, where="minimal_pairs.arms")

    @property
    def perturbs(self) -> bool:
        """Whether anything is perturbed, beside the clean model: `arms` may be `none` alone."""
        return self.arms != (CLEAN,)

    def pair_cells(self, n_layers: int) -> Iterator[PairCell]:
        """Every condition; those of one set of layers together."""
        for cell in self.cells(n_layers) if self.perturbs else ():
            for pair_noise in self.pair_noise:
                yield PairCell(cell, pair_noise)

    def pair_files(self) -> list[CorpusFile]:
        """Raises UsageError or CorpusError for files that are not there, or hold no rows."""
        from tasks.corpora.pairs import pair_files

        return pair_files(self.files)

    def pairs(self) -> list[Pair]:
        """Those of every task, in order. Raises CorpusError for files that cannot be read, or tell nothing."""
        from tasks.corpora.pairs import read_pairs

        found = list(read_pairs(self.pair_files(), self.items))
        if all(pair.good == pair.bad for pair in found):
            raise CorpusError(
                "pairs of sentences that differ in something",
                got=f"{len(found)} whose sentences are the same",
                where=found[0].place,
                remedy="Give other files: which sentence is likelier cannot be told of these.",
            )
        return found


def key_of_files(parameters: MinimalPairsParameters) -> Mapping[str, Any]:
    """What can change a number: the bytes and names of the files, wherever they lie, and all other parameters."""
    from tasks.corpora.choices import file_task
    from tasks.corpora.files import files_digest

    files = parameters.pair_files()
    of_files = {"names": [file_task(file) for file in files], "digest": files_digest(files, None)}
    return {**asdict(parameters), "files": of_files}


def n_pairs(parameters: MinimalPairsParameters, shards: Sequence[int], n_shards: int) -> int:
    """Pairs that these shards do. Reads the files, so that what is wrong with a line is said before anything runs."""
    found = len(parameters.pairs())
    return sum(len(shard_part(found, shard, n_shards)) for shard in shards)


def require_store(parameters: MinimalPairsParameters, shape: StoreShape, _lengths: Sequence[int]) -> None:
    """A relative δ is relative to the store's residual stream; an absolute one needs the model's layers alone."""
    if not parameters.perturbs:
        return
    parameters.layer_sets(shape.n_layers)
    if not parameters.relative_deltas:
        return
    if "residual" not in shape.offered:
        raise UsageError(
            "a store with the residual stream, to which a relative δ is relative",
            got="one without",
            where="minimal_pairs.relative_deltas",
            remedy="Capture again with --keep residual, or set minimal_pairs.relative_deltas to none (an empty list).",
        )
    parameters.require_residual(shape, lambda layers: [layer + 1 for layer in layers])
