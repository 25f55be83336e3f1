"""The declaration of the stage `probes`: what can be read off a hidden state's direction, and off its magnitude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from storage.tables import BOUNDARY, FLAG, INT, REAL, one_of, table
from tasks.stages.contract import Stage
from tasks.stages.parameters import Parameters, parameter

if TYPE_CHECKING:
    from tasks.corpora.files import CorpusFile

TARGETS = ("pos", "depth")
FEATURES = ("direction", "magnitude", "both")
METRICS = {"pos": "accuracy", "depth": "r2"}

PROBES = table(
    "probes",
    {"layer": BOUNDARY, "target": one_of(*TARGETS), "feature": one_of(*FEATURES)},
    score=REAL,
    score_lo=REAL,
    score_hi=REAL,
    score_majority=REAL,
    score_shuffled=REAL,
    spearman=REAL,
    metric=one_of(*METRICS.values()),
    n_train=INT,
    n_test=INT,
    n_classes=INT,
    penalty=REAL,
    converged=FLAG,
)


@dataclass(frozen=True)
class ProbesParameters(Parameters):
    """Parameters of the stage `probes` (methods.md §3, "Probes")."""

    stage: ClassVar[str] = "probes"
    treebank: tuple[str, ...] = parameter(
        (), "the CoNLL-U files that were captured; none: the capture's own corpus", empty=True
    )
    words: int = parameter(
        4_000, "words that are probed, drawn by the seed; 0 for all; a fit's time grows with them", least=0
    )
    targets: tuple[str, ...] = parameter(
        TARGETS,
        "what is predicted: pos (universal part of speech), depth (arcs to the root of the sentence's tree)",
        words=TARGETS,
        in_order=True,
        repeats=True,
    )
    features: tuple[str, ...] = parameter(
        FEATURES, "from what: direction ĥ, magnitude ‖h‖, both (h itself)", words=FEATURES, in_order=True, repeats=True
    )
    folds: int = parameter(3, "parts of the training sentences between which the penalty is chosen", least=2)
    resamples: int = parameter(2_000, "bootstrap resamples of the test sentences behind a score's interval", least=1)

    def files(self) -> list[CorpusFile]:
        """Those that are named; none by default. Raises UsageError or CorpusError for what is no CoNLL-U."""
        from tasks.corpora.treebank import treebank_files

        return treebank_files(self.treebank) if self.treebank else []


def key_of_files(parameters: ProbesParameters) -> Mapping[str, Any]:
    """What can change a number: the bytes of the files, wherever they lie, and all other parameters.

    Of the capture's own corpus the capture's key has the bytes already.
    """
    from tasks.corpora.files import files_digest

    files = parameters.files()
    return {**asdict(parameters), "treebank": files_digest(files, None) if files else ""}


def require_corpus(corpus: Sequence[str]) -> None:
    """Raise CorpusError for a corpus that is no treebank."""
    from tasks.corpora.treebank import treebank_files

    treebank_files(corpus)


PROBES_STAGE = Stage(
    name="probes",
    version=1,
    parameters=ProbesParameters,
    reads=frozenset({"residual"}),
    tables=(PROBES,),
    on_request=True,
    module="tasks.stages.probes.steps",
    whole=frozenset(),
    key_of_files=key_of_files,
    require_corpus=require_corpus,
    surveys=True,
    query="probe_scores",
    summary="tasks.stages.probes.summary:probes_lines",
)

STAGES = (PROBES_STAGE,)
