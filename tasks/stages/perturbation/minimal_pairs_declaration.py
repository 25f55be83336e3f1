"""The declaration of the stage `minimal_pairs`: which sentence of a pair is likelier, clean and perturbed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from storage.errors import CorpusError, UnknownName, UsageError
from storage.tables import DOUBLE, FLAG, INT, TEXT, table
from tasks.models.interventions import Displace
from tasks.stages.faithfulness.choices_declaration import CLEAN, shard_part
from tasks.stages.perturbation.grid import INCLUDE, KEYS, Cell, PerturbationGrid, once_each
from tasks.stages.registry import Stage

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from tasks.corpora.files import CorpusFile
    from tasks.corpora.pairs import Pair

SHARED, INDEPENDENT, PUBLISHED = "shared", "independent", "published"
PAIR_NOISE = (SHARED, INDEPENDENT, PUBLISHED)
CONDITION = {**{name: KEYS[name] for name in ("protocol", "arm")}, "pair_noise": TEXT}
CONDITION |= {name: kind for name, kind in KEYS.items() if name not in CONDITION}
"""The columns that name a condition: those of perturbation, and how the sentences of a pair share their noise."""

MINIMAL_PAIRS = table(
    "minimal_pairs",
    {"task": TEXT, "item": INT, **CONDITION},
    logp_good=DOUBLE,
    logp_bad=DOUBLE,
    correct=FLAG,
    first_scored=FLAG,
    n_good=INT,
    n_bad=INT,
    n_tokens=INT,
    unmoved=INT,
)


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

    protocols: tuple[str, ...] = ("exact",)
    deltas: tuple[float, ...] = (5.0, 10.0, 15.0)
    first_token: tuple[str, ...] = (INCLUDE,)
    seeds: int = 1
    files: tuple[str, ...] = ()
    """Files of pairs in the layout of BLiMP, each a task; there is no default."""
    items: int = 100
    """The first so many pairs of each task; 0 for all."""
    pair_noise: tuple[str, ...] = (SHARED,)
    """Whether the sentences of a pair share their noise: shared, independent, or as the authors' code (published)."""

    def __post_init__(self) -> None:
        if not self.files:
            raise UsageError(
                "files of minimal pairs",
                got="none",
                where="minimal_pairs.files",
                remedy="Give them with --set minimal_pairs.files=A.jsonl,B.jsonl, or leave the stage out.",
            )
        if self.items < 0:
            raise UsageError("a number of pairs from 1, or 0 for all", got=str(self.items), where="minimal_pairs.items")
        for value in self.pair_noise:
            if value not in PAIR_NOISE:
                raise UnknownName.among("pair noise", value, PAIR_NOISE, where="minimal_pairs.pair_noise")
        once_each(self.pair_noise, "minimal_pairs.pair_noise")
        if self.perturbs:
            self.check("minimal_pairs")

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


def identity(parameters: MinimalPairsParameters) -> Mapping[str, Any]:
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


def _fits(parameters: MinimalPairsParameters, shape: StoreShape) -> None:
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


MINIMAL_PAIRS_STAGE = Stage(
    name="minimal_pairs",
    version=1,
    parameters=MinimalPairsParameters,
    reads=frozenset(),
    tables=(MINIMAL_PAIRS,),
    needs_model=True,
    module="tasks.stages.perturbation.minimal_pairs",
    whole=frozenset(),
    on_request=True,
    fits=_fits,
    identity=identity,
    unit="pairs",
    units=n_pairs,
    surveys=True,
    reads_texts=True,
)
