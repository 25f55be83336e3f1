"""The parameters of the stage `choices`: files of multiple-choice questions, and a grid of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from storage.errors import CorpusError, UnknownName, UsageError
from tasks.stages.faithfulness.masking_grid import RANKED, RANKED_BY, SCOPES, SCORES, MaskingGrid
from tasks.stages.parameters import parameter

if TYPE_CHECKING:
    from tasks.corpora.choices import Question
    from tasks.corpora.files import CorpusFile

CLEAN = "none"
"""In place of scopes: no mask at all. It is also what the columns of a condition say of the clean model."""


@dataclass(frozen=True)
class ChoicesParameters(MaskingGrid):
    """Parameters of the stage `choices` (methods.md §1, "Downstream"): files of questions, and a grid of masks.

    The grid is smaller than masking's, since each condition costs a forward pass per choice.
    """

    stage: ClassVar[str] = "choices"
    files: tuple[str, ...] = parameter(
        (), "files of questions (docs/tasks.md); required", empty=True, example=("questions.jsonl",)
    )
    items: int = parameter(100, "the first so many of each task, as the harness's --limit; 0 for all", least=0)
    scopes: tuple[str, ...] = parameter(
        ("entry", "token"), f"{RANKED}; none alone: the clean model, without masks", words=(*SCOPES, CLEAN)
    )
    scores: tuple[str, ...] = parameter(
        ("raw", "vw", "vwon", "cw_intra", "cw_inter", "random"), RANKED_BY, words=SCORES
    )
    rates: tuple[float, ...] = parameter(
        (0.1, 0.3, 0.5), "shares of the candidates that are masked: ⌊rate·n⌋ of n", above=0, most=1
    )
    draws: int = parameter(4, "random rankings of the control", least=1, most=1000)

    def __post_init__(self) -> None:
        if not self.files:
            raise UsageError(
                "files of multiple-choice questions",
                got="none",
                where="choices.files",
                remedy="Give them with --set choices.files=A.jsonl,B.jsonl, or leave the stage choices out.",
            )
        super().__post_init__()
        if self.masks and CLEAN in self.scopes:
            raise UnknownName.among("scope beside others", CLEAN, SCOPES, where="choices.scopes")

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


def key_of_files(parameters: ChoicesParameters) -> Mapping[str, Any]:
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
