"""The registry: every stage declared once, and found by name.

A stage is a reduction over the shards of a capture in three pure steps: `per_shard` (one shard of the store → rows and
a small partial), `combine` (two partials → one, in shard order), `finish` (the last partial → rows). The declaration
imports neither torch nor Prefect; the three steps live in the module it names, imported when the stage runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from storage.errors import UnknownName
from storage.kept_parts import ALL_HEADS, ALL_POSITIONS
from storage.tables import TableSpec
from tasks.capture.tables import CAPTURE_TABLES, STAGES

if TYPE_CHECKING:
    import numpy as np

    from storage.store_shape import StoreShape
    from storage.tensors import ActivationStore, ShardReader
    from tasks.capture.folder import Prepared
    from tasks.replay import CapturedReplay

    Partial = dict[str, np.ndarray]
    Once = Callable[[str, Callable[[], Partial]], Partial]

DOCUMENTS = "documents"
"""What the progress of most stages counts."""


class Rows(Protocol):
    """Where a stage puts its rows: one call is one row group of one table; capture and stage_key are filled in."""

    def add(self, table: str, columns: Mapping[str, Any]) -> None: ...


class Advance(Protocol):
    """How a stage tells what it has done."""

    def __call__(self, done: float, restored: bool = False, /) -> None: ...


@dataclass(frozen=True)
class StageContext:
    """What a stage may know besides the store and its parameters."""

    stage_key: str
    seed: int
    advance: Advance = field(default=lambda _done, _restored=False: None, compare=False)
    """Called with the number of (document, layer) pairs just done, for progress, and of a replay with shares of them;
    of a stage that counts other units, with those. A second argument, true, says that an earlier try did them."""
    replay: CapturedReplay | None = field(default=None, compare=False)
    """The captured model, to run again; None in a stage that needs none."""
    survey: Partial | None = field(default=None, compare=False)
    """What `combine_survey` made of all shards; None in a stage that surveys nothing."""
    n_shards: int = field(default=0, compare=False)
    """Shards of the capture."""
    prepared: Prepared | None = field(default=None, compare=False)
    """What the capture is a record of: its documents, its tokenizer's name. None outside a run."""
    once: Once = field(default=lambda _name, compute: compute(), compare=False)
    """once(name, compute): the arrays of a piece of a shard that takes long, kept should the shard be interrupted."""


class StageSteps(Protocol):
    """The three functions that a stage's module holds."""

    def per_shard(
        self, store: ActivationStore, shard: ShardReader, parameters: Any, context: StageContext, rows: Rows
    ) -> tuple[Partial, dict[str, int]]:
        """Rows of one shard, its partial (arrays, saved beside the part), and counts for the quality record."""

    def combine(self, left: Partial, right: Partial) -> Partial:
        """Two neighbouring partials as one; called in shard order, so the same bytes come out of any schedule."""

    def finish(
        self, store: ActivationStore, partial: Partial, parameters: Any, context: StageContext, rows: Rows
    ) -> dict[str, int]:
        """Rows over the whole capture, and counts for the quality record."""


class SurveySteps(Protocol):
    """The two functions that the module of a stage holds besides, which must know all shards before any has rows."""

    def survey(self, store: ActivationStore, shard: ShardReader, parameters: Any, context: StageContext) -> Partial:
        """What is needed of one shard, from the store alone."""

    def combine_survey(self, left: Partial, right: Partial) -> Partial:
        """Two neighbouring ones as one, in shard order; the last is every later step's `context.survey`."""


class TextSteps(Protocol):
    """The function that the module of a stage holds besides, which gives the model texts of its own files."""

    def require_fitting(self, parameters: Any, replay: CapturedReplay) -> None:
        """Raises CorpusError for a text that the model cannot be given, such as one longer than its positions."""


@dataclass(frozen=True)
class Stage:
    """One analysis, declared."""

    name: str
    version: int
    parameters: type
    """A frozen dataclass with defaults; its fields are what `--set stage.field=value` may set."""
    reads: frozenset[str]
    """Kinds of tensor that the store must hold: attention, value, output_input, residual, sink_mass."""
    tables: tuple[TableSpec, ...]
    needs_model: bool
    module: str
    whole: frozenset[str] = frozenset({ALL_HEADS, ALL_POSITIONS})
    """What of heads and query positions the store must hold all of."""
    fits: Callable[[Any, StoreShape], None] | None = None
    """fits(parameters, shape): raises UsageError where the parameters ask for a layer that the store has not."""
    suits: Callable[[Any, StoreShape, Sequence[int]], None] | None = None
    """suits(parameters, shape, lengths): raises UsageError where the stage is not defined over such a store, or over
    documents of these lengths."""
    on_request: bool = False
    """Whether a run leaves it out unless it is named: it costs many forward passes, or many rows a token."""
    identity: Callable[[Any], Mapping[str, Any]] | None = None
    """Parameters → what of them enters the stage's key, where that is not the parameters as they are: what lies in
    files that they name."""
    about: Callable[[Sequence[str]], None] | None = None
    """about(corpus): raises CorpusError where the corpus is not of the kind that the stage is about; None for any."""
    unit: str = DOCUMENTS
    """What the progress counts."""
    units: Callable[[Any, Sequence[int], int], int] | None = None
    """(parameters, shards, shards of the capture) → how many units those shards are, where units are not documents."""
    surveys: bool = False
    """Whether what all shards hold must be known before any of them has rows: its module then has SurveySteps too."""

    reads_texts: bool = False
    """Whether it gives the model texts of files that its parameters name: its module then has TextSteps too."""

    def steps(self) -> StageSteps:
        return import_module(self.module)

    def survey_steps(self) -> SurveySteps:
        """Those of a stage that surveys."""
        return import_module(self.module)

    def text_steps(self) -> TextSteps:
        """Those of a stage that reads texts."""
        return import_module(self.module)

    def parameter_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self.parameters))

    def describe(self, parameters: Any) -> dict[str, Any]:
        """The parameters as plain values: what the table of stages says."""
        return asdict(parameters)

    def ingredients(self, parameters: Any) -> Mapping[str, Any]:
        """What of the parameters enters the stage's key. Raises what reading the files that they name raises."""
        return self.describe(parameters) if self.identity is None else self.identity(parameters)

    def check_files(self, parameters: Any) -> None:
        """Read what the parameters name, so that what is wrong with it is said before anything runs."""
        if self.units is not None:
            self.units(parameters, (0,), 1)
        elif self.identity is not None:
            self.identity(parameters)


@cache
def stages() -> dict[str, Stage]:
    """Every stage by name, in the order in which a full run takes them."""
    from tasks.stages.contributions.declaration import CONTRIBUTIONS
    from tasks.stages.faithfulness.choices_declaration import CHOICES_STAGE
    from tasks.stages.faithfulness.masking_declaration import MASKING_STAGE
    from tasks.stages.faithfulness.sink_declaration import SINK
    from tasks.stages.heads.pruning_declaration import HEAD_ABLATION_STAGE, PRUNING_STAGE
    from tasks.stages.heads.selection_declaration import SELECTION, TAXONOMY
    from tasks.stages.multiscale.declaration import COHERENCY_STAGE, POD_STAGE, SCALOGRAM_STAGE
    from tasks.stages.perturbation.minimal_pairs_declaration import MINIMAL_PAIRS_STAGE
    from tasks.stages.perturbation.perturbation_declaration import PERTURBATION_STAGE, PROPAGATION_STAGE, REPAIR_STAGE
    from tasks.stages.probes.declaration import PROBES_STAGE

    replayed = (MASKING_STAGE, CHOICES_STAGE, SINK)
    of_heads = (SELECTION, TAXONOMY, PRUNING_STAGE, HEAD_ABLATION_STAGE)
    perturbed = (PERTURBATION_STAGE, MINIMAL_PAIRS_STAGE, REPAIR_STAGE, PROPAGATION_STAGE)
    of_fields = (SCALOGRAM_STAGE, POD_STAGE, COHERENCY_STAGE)
    return {s.name: s for s in (CONTRIBUTIONS, *replayed, *of_heads, *perturbed, PROBES_STAGE, *of_fields)}


def stage(name: str) -> Stage:
    """The stage of that name, or UnknownName with the nearest one."""
    known = stages()
    if name not in known:
        raise UnknownName.among("stage", name, known)
    return known[name]


def default_stages() -> tuple[str, ...]:
    """The stages that a run does unless it is told, in order: those that take about as long as the capture."""
    return tuple(name for name, declared in stages().items() if not declared.on_request)


@cache
def tables() -> dict[str, TableSpec]:
    """Every table of the warehouse by name."""
    specs = [*CAPTURE_TABLES, STAGES, *(t for s in stages().values() for t in s.tables)]
    return {t.name: t for t in specs}
