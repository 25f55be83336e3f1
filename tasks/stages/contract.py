"""What a stage is: its declaration, the steps it may have, and what each step is given.

A stage is a reduction over the shards of a capture in pure steps: `per_shard` (one shard of the store → rows and a
small partial) and, where it has them, `combine` (two partials → one, in shard order) and `finish` (the last partial →
rows). A stage that must know all shards before any of them has rows has a reduction before that one, its survey. The
declaration imports neither torch nor Prefect; the steps live in the module it names, imported when the stage runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from storage.kept import ALL_HEADS, ALL_POSITIONS
from storage.table_checks import Completeness
from storage.tables import TableSpec

if TYPE_CHECKING:
    import numpy as np

    from storage.store_shape import StoreShape
    from storage.tensors import ActivationStore, ShardReader
    from tasks.capture.folder import CaptureFolder
    from tasks.replay import CapturedReplay

    Partial = dict[str, np.ndarray]
    Once = Callable[[str, Callable[[], Partial]], Partial]

DOCUMENTS = "documents"
"""The unit of progress of most stages."""


class Rows(Protocol):
    """Where a stage puts its rows: one call is one row group of one table; capture and stage_key are filled in."""

    def add(self, table: str, columns: Mapping[str, Any]) -> None: ...


class Advance(Protocol):
    """How a stage reports its progress."""

    def __call__(self, done: float, restored: bool = False, /) -> None: ...


@dataclass(frozen=True)
class StageContext:
    """What a stage may know besides the store and its parameters."""

    stage_key: str
    seed: int
    advance: Advance = field(default=lambda _done, _restored=False: None, compare=False)
    """Called with the number of (document, layer) pairs just done (fractions of them in a replay), or of the units of
    the stage. A second argument, true, means that an earlier try did them."""
    replay: CapturedReplay | None = field(default=None, compare=False)
    """The captured model, to run again; None in a stage that does not need it."""
    survey: Partial | None = field(default=None, compare=False)
    """The combined survey of all shards; None in a stage without a survey."""
    n_shards: int = field(default=0, compare=False)
    """Shards of the capture."""
    prepared: CaptureFolder | None = field(default=None, compare=False)
    """The capture's folder and record: its documents, its tokenizer's name. None outside a run."""
    once: Once = field(default=lambda _name, compute: compute(), compare=False)
    """once(name, compute): the arrays of a piece of a long shard, kept in case the shard is interrupted."""


class Steps(Protocol):
    """The function that the module of every stage holds."""

    def per_shard(
        self, store: ActivationStore, shard: ShardReader, parameters: Any, context: StageContext, rows: Rows
    ) -> tuple[Partial, dict[str, int]]:
        """Rows of one shard, its partial (arrays, saved beside the part), and counts for the quality record."""


class CombiningSteps(Protocol):
    """The function that it holds as well where partials are summed up over shards."""

    def combine(self, left: Partial, right: Partial) -> Partial:
        """Two neighbouring partials as one; called in shard order, so any schedule gives the same bytes."""


class FinishingSteps(Protocol):
    """The function that it holds as well where there are rows, or counts, over the whole capture."""

    def finish(
        self, store: ActivationStore, partial: Partial, parameters: Any, context: StageContext, rows: Rows
    ) -> dict[str, int]:
        """Rows over the whole capture, and counts for the quality record; `partial` is empty without `combine`."""


class SurveySteps(Protocol):
    """The two functions that it holds as well where all shards must be known before any of them has rows."""

    def survey(self, store: ActivationStore, shard: ShardReader, parameters: Any, context: StageContext) -> Partial:
        """What is needed of one shard, from the store alone."""

    def combine_survey(self, left: Partial, right: Partial) -> Partial:
        """Two neighbouring surveys as one, in shard order; the last one is `context.survey` of every later step."""


class TextSteps(Protocol):
    """The function that it holds as well where the model reads texts of the stage's own files."""

    def require_fitting(self, parameters: Any, replay: CapturedReplay) -> None:
        """Raises CorpusError for a text that the model cannot take, such as one longer than its positions."""


@dataclass(frozen=True)
class Stage:
    """The declaration of one stage. Everything that other modules need to know of a stage stands here."""

    name: str
    version: int
    parameters: type
    """A subclass of `Parameters`, a frozen dataclass; its fields are what `--set stage.field=value` sets."""
    reads: frozenset[str]
    """Kinds of tensor that the store must hold: attention, value, output_input, residual, sink_mass."""
    tables: tuple[TableSpec, ...]
    module: str
    """The module that holds the steps."""
    needs_model: bool = False
    whole: frozenset[str] = frozenset({ALL_HEADS, ALL_POSITIONS})
    """Of heads and query positions, those of which the store must hold all."""
    query: str = ""
    """The named query that answers the stage's question; empty for none."""
    summary: str = ""
    """module:function of (connection, capture) → lines that say what the stage found; empty for none."""
    completeness: tuple[Completeness, ...] = ()
    """What makes the tables of a finished run complete; each is a check of `theodolite verify`."""
    require_store: Callable[[Any, StoreShape, Sequence[int]], None] | None = None
    """require_store(parameters, shape, lengths of the documents): raises UsageError where the parameters name a layer
    that the store does not hold, or where the stage is not defined over such a store."""
    require_corpus: Callable[[Sequence[str]], None] | None = None
    """require_corpus(corpus): raises CorpusError where the stage is not defined over such a corpus; None for any."""
    on_request: bool = False
    """Whether a run leaves it out unless it is named: it costs many forward passes, or many rows a token."""
    key_of_files: Callable[[Any], Mapping[str, Any]] | None = None
    """Parameters → what of them enters the stage's key, where they name files: the files' content instead of their
    paths."""
    unit: str = DOCUMENTS
    """The unit of its progress."""
    count_units: Callable[[Any, Sequence[int], int], int] | None = None
    """(parameters, shards, shards of the capture) → how many units these shards are; None where units are documents."""
    surveys: bool = False
    """Whether its module has SurveySteps."""
    reads_texts: bool = False
    """Whether its module has TextSteps."""

    @property
    def steps(self) -> Any:
        """The module with the steps, imported when first asked for."""
        return import_module(self.module)

    def parameter_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self.parameters))

    def describe(self, parameters: Any) -> dict[str, Any]:
        """The parameters as plain values, as the table of stages has them."""
        return asdict(parameters)

    def ingredients(self, parameters: Any) -> Mapping[str, Any]:
        """What of the parameters enters the stage's key. Raises what reading the files that they name raises."""
        return self.describe(parameters) if self.key_of_files is None else self.key_of_files(parameters)

    def check_files(self, parameters: Any) -> None:
        """Read the files that the parameters name, so that a fault in them is reported before anything runs."""
        if self.count_units is not None:
            self.count_units(parameters, (0,), 1)
        elif self.key_of_files is not None:
            self.key_of_files(parameters)
