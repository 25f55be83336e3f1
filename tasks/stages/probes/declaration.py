"""The declaration of the stage `probes`: what can be read off a hidden state's direction, and off its magnitude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError
from storage.tables import FLAG, INT, REAL, TEXT, table
from tasks.stages.registry import Stage

if TYPE_CHECKING:
    from tasks.corpora.files import CorpusFile

TARGETS = ("pos", "depth")
FEATURES = ("direction", "magnitude", "both")
METRICS = {"pos": "accuracy", "depth": "r2"}

PROBES = table(
    "probes",
    {"layer": INT, "target": TEXT, "feature": TEXT},
    score=REAL,
    score_lo=REAL,
    score_hi=REAL,
    score_majority=REAL,
    score_shuffled=REAL,
    spearman=REAL,
    metric=TEXT,
    n_train=INT,
    n_test=INT,
    n_classes=INT,
    penalty=REAL,
    converged=FLAG,
)


@dataclass(frozen=True)
class ProbesParameters:
    """Parameters of the stage `probes` (methods.md §3, "Probes")."""

    treebank: tuple[str, ...] = ()
    """The CoNLL-U files that were captured; by default the capture's own corpus."""
    words: int = 4_000
    """Words that are probed, drawn by the seed; 0 for all. A fit's time grows with them."""
    targets: tuple[str, ...] = TARGETS
    """What is read off: pos (universal part of speech), depth (arcs to the root of the sentence's tree)."""
    features: tuple[str, ...] = FEATURES
    """What it is read off from: direction ĥ, magnitude ‖h‖, both (h itself)."""
    folds: int = 3
    """Parts of the training sentences between which the penalty is chosen."""
    resamples: int = 2_000
    """Bootstrap resamples of the test sentences behind a score's interval."""

    def __post_init__(self) -> None:
        for name, words in (("targets", TARGETS), ("features", FEATURES)):
            object.__setattr__(self, name, _chosen(name, getattr(self, name), words))
        least = {"words": (0, "a number of words from 1, or 0 for all"), "folds": (2, "at least 2 folds")}
        least["resamples"] = (1, "at least 1 resample")
        for name, (fewest, expected) in least.items():
            if getattr(self, name) < fewest:
                raise UsageError(expected, got=str(getattr(self, name)), where=f"probes.{name}")

    def files(self) -> list[CorpusFile]:
        """Those that are named; none by default. Raises UsageError or CorpusError for what is no CoNLL-U."""
        from tasks.corpora.treebank import treebank_files

        return treebank_files(self.treebank) if self.treebank else []


def _chosen(name: str, given: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """The words given, in their own order, so that the order in which they are written makes no other run."""
    wrong = [word for word in given if word not in words]
    if wrong or not given:
        got = repr(wrong[0]) if wrong else "none"
        raise UsageError(f"some of {', '.join(words)}", got=got, where=f"probes.{name}")
    return tuple(word for word in words if word in given)


def identity(parameters: ProbesParameters) -> Mapping[str, Any]:
    """What can change a number: the bytes of the files, wherever they lie, and all other parameters.

    Of the capture's own corpus the capture's key has the bytes already.
    """
    from tasks.corpora.files import files_digest

    files = parameters.files()
    return {**asdict(parameters), "treebank": files_digest(files, None) if files else ""}


def about(corpus: Sequence[str]) -> None:
    """Raise CorpusError for a corpus that is no treebank."""
    from tasks.corpora.treebank import treebank_files

    treebank_files(corpus)


PROBES_STAGE = Stage(
    name="probes",
    version=1,
    parameters=ProbesParameters,
    reads=frozenset({"residual"}),
    tables=(PROBES,),
    needs_model=False,
    on_request=True,
    module="tasks.stages.probes.steps",
    whole=frozenset(),
    identity=identity,
    about=about,
    surveys=True,
)
