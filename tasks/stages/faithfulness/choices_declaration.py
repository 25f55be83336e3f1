"""The declaration of the stage `choices`: accuracy on multiple-choice tasks, clean and masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from storage.errors import CorpusError, UsageError
from storage.tables import DOUBLE, INT, TEXT, table
from tasks.stages.faithfulness.masking_grid import KEYS, MaskingGrid
from tasks.stages.registry import Stage

if TYPE_CHECKING:
    from tasks.corpora.choices import Question
    from tasks.corpora.files import CorpusFile

CLEAN = "none"
"""In place of scopes: no mask at all. It is also what the columns of a condition say of the clean model."""

CHOICES = table(
    "choices",
    {"task": TEXT, "item": INT, **KEYS},
    label=INT,
    picked=INT,
    picked_normalised=INT,
    margin=DOUBLE,
    n_choices=INT,
)


@dataclass(frozen=True)
class ChoicesParameters(MaskingGrid):
    """Parameters of the stage `choices` (methods.md §1, "Downstream"): files of questions, and a grid of masks.

    The grid is smaller than masking's, since each condition costs a forward pass per choice.
    """

    scopes: tuple[str, ...] = ("entry", "token")
    """`none` alone: the clean model, without masks."""
    scores: tuple[str, ...] = ("raw", "vw", "vwon", "cw_intra", "cw_inter", "random")
    rates: tuple[float, ...] = (0.1, 0.3, 0.5)
    draws: int = 4
    files: tuple[str, ...] = ()
    """Files of questions (docs/tasks.md); there is no default."""
    items: int = 100
    """The first so many of each task, as the harness's --limit; 0 for all."""

    def __post_init__(self) -> None:
        if not self.files:
            raise UsageError(
                "files of multiple-choice questions",
                got="none",
                where="choices.files",
                remedy="Give them with --set choices.files=A.jsonl,B.jsonl, or leave the stage choices out.",
            )
        if self.items < 0:
            raise UsageError("a number of items from 1, or 0 for all", got=str(self.items), where="choices.items")
        if self.masks:
            self.check("choices")

    @property
    def masks(self) -> bool:
        """Whether anything is masked, beside the clean model."""
        return self.scopes != (CLEAN,)

    def task_files(self) -> list[CorpusFile]:
        """Raises UsageError or CorpusError for files that are not there, or hold no rows."""
        from tasks.corpora.choices import task_files

        return task_files(self.files)

    def questions(self) -> list[Question]:
        """Those of every task, in order. Raises CorpusError for files that cannot be read, or tell nothing."""
        from tasks.corpora.choices import read_questions

        found = list(read_questions(self.task_files(), self.items))
        if all(question.alike for question in found):
            raise CorpusError(
                "questions whose choices differ from one another",
                got=f"{len(found)} with choices that are the same",
                where=found[0].place,
                remedy="Give other files: which choice is picked cannot be told of these.",
            )
        return found


def shard_part(n_items: int, shard: int, n_shards: int) -> range:
    """Which items a shard does: those that its number is the remainder of."""
    return range(shard, n_items, n_shards)


def identity(parameters: ChoicesParameters) -> Mapping[str, Any]:
    """What can change a number: the bytes and names of the files, wherever they lie, and all other parameters."""
    from tasks.corpora.choices import file_task
    from tasks.corpora.files import files_digest

    files = parameters.task_files()
    of_files = {"names": [file_task(file) for file in files], "digest": files_digest(files, None)}
    return {**asdict(parameters), "files": of_files}


def n_items(parameters: ChoicesParameters, shards: Sequence[int], n_shards: int) -> int:
    """Items that these shards do. Reads the files, so that what is wrong with a line is said before anything runs."""
    found = len(parameters.questions())
    return sum(len(shard_part(found, shard, n_shards)) for shard in shards)


CHOICES_STAGE = Stage(
    name="choices",
    version=2,
    parameters=ChoicesParameters,
    reads=frozenset(),
    tables=(CHOICES,),
    needs_model=True,
    module="tasks.stages.faithfulness.choices",
    whole=frozenset(),
    on_request=True,
    identity=identity,
    unit="items",
    units=n_items,
    reads_texts=True,
)
