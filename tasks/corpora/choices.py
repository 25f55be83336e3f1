"""Multiple-choice tasks: files of questions as contexts and the continuations that a model chooses among.

Prompts are those of EleutherAI's lm-evaluation-harness, without examples in front. A layout is known by its fields:

    mmlu        question, choices, answer (0-based), and subject where there is one
    winogrande  sentence with one _, option1, option2, answer ("1" or "2")
    boolq       passage, question, answer (true or false)
    any other   context, choices, label (0-based)
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from storage.errors import CorpusError, UsageError
from tasks.corpora.files import CorpusFile, expand
from tasks.corpora.lines import read_lines
from tasks.corpora.rows import parse_row, text_in

Prompt = tuple[str, str]
"""A context and what continues it; their join is the text."""


@dataclass(frozen=True)
class Question:
    """One item of a task."""

    task: str
    """The layout's name; of files of context, choices and label, the file's without its suffixes."""
    item: int
    """Counted from 0 in the task, over its files in order."""
    place: str
    """File and line."""
    prompts: tuple[Prompt, ...]
    """One a choice, two at least. Contexts differ where the choice stands before what is scored (Winogrande)."""
    label: int
    """The right one, counted from 0."""

    @property
    def alike(self) -> bool:
        """Whether two choices or more are the same text, of which none can be picked."""
        return len(set(self.prompts)) < len(self.prompts)


def task_files(paths: Sequence[str]) -> list[CorpusFile]:
    """The files that hold questions. Raises UsageError or CorpusError for what is no JSON Lines, before it is read."""
    files = expand(paths)
    places = [file.place() for file in files]
    for file in files:
        if places.count(file.place()) > 1:
            raise UsageError("each file of questions once", got="it twice or more", where=file.place())
        if file.kind != "jsonl":
            raise CorpusError(
                "questions as JSON Lines (.jsonl, also with .gz or .zst)",
                got=f"{file.kind}",
                where=file.place(),
                remedy="Write one JSON object a line, with context, choices and label.",
            )
    return files


def file_task(file: CorpusFile) -> str:
    """What a file of context, choices and label is called as a task."""
    return file.name.rpartition("/")[2].partition(".")[0]


def read_questions(files: Sequence[CorpusFile], cap: int) -> Iterator[Question]:
    """The first `cap` questions of each task (0: all), task by task as their files come.

    Raises CorpusError, naming file and line, for an empty file, fields of no known layout, a missing or impossible
    label, fewer than two choices, and text that is blank.
    """
    counts: Counter[str] = Counter()
    for file in files:
        numbered, found = _rows(file), 0
        for layout, row in numbered:
            task = layout.name or file_task(file)
            found += 1
            if cap and counts[task] >= cap:
                break
            prompts, label = layout.questions(row)
            yield Question(task, counts[task], row.place, prompts, label)
            counts[task] += 1
        if not found:
            remedy = "The file is empty: fetch it again, or leave it out."
            raise CorpusError("at least one question", got="none", where=file.place(), remedy=remedy)


@dataclass(frozen=True)
class _Row:
    """One line of a file, whose fields are asked for by name."""

    file: CorpusFile
    number: int
    fields: Mapping[str, Any]

    @property
    def place(self) -> str:
        return self.file.place(self.number)

    def text(self, name: str) -> str:
        """A field's text, which may not be blank."""
        return self._filled(text_in(self.file, self.number, name, self.fields.get(name)), f"'{name}'")

    def texts(self, name: str) -> list[str]:
        """A field's choices."""
        values = self.fields.get(name)
        if not isinstance(values, list) or len(values) < 2:
            got = f"{len(values)}" if isinstance(values, list) else "no list"
            raise self.wrong(f"at least two choices in the field '{name}'", got)
        texts = [text_in(self.file, self.number, name, value) for value in values]
        return [self._filled(text, f"'{name}', choice {at}") for at, text in enumerate(texts)]

    def label(self, name: str, known: Sequence[Any]) -> int:
        """Which of the known labels, in the order of the choices, a field holds."""
        value = self.fields.get(name)
        named = f"{known[0]!r} to {known[-1]!r}" if len(known) > 2 else f"{known[0]!r} or {known[1]!r}"
        if value is None or value == "":
            raise self.wrong(f"a label ({named}) in the field '{name}'", "none")
        for at, label in enumerate(known):
            if type(value) is type(label) and value == label:
                return at
        raise self.wrong(f"a label from the choices ({named}) in the field '{name}'", repr(value))

    def _filled(self, text: str, what: str) -> str:
        if not text.strip():
            raise self.wrong(f"text in the field {what}", "a blank one" if text else "none")
        return text

    def wrong(self, expected: str, got: str) -> CorpusError:
        return CorpusError(expected, got=got, where=self.place, remedy="Mend or remove that line.")


def _mmlu(row: _Row) -> tuple[tuple[Prompt, ...], int]:
    """The letter is scored, not the answer's text."""
    choices, letters = row.texts("choices"), string.ascii_uppercase
    if len(choices) > len(letters):
        raise row.wrong(f"at most {len(letters)} choices, since they are lettered", str(len(choices)))
    subject = row.text("subject").replace("_", " ") if row.fields.get("subject") else ""
    about = f"The following are multiple choice questions (with answers) about {subject}.\n\n" if subject else ""
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(letters, choices, strict=False))
    context = f"{about}{row.text('question').strip()}\n{listed}\nAnswer:"
    prompts = tuple((context, f" {letter}") for letter in islice(letters, len(choices)))
    return prompts, row.label("answer", range(len(choices)))


def _winogrande(row: _Row) -> tuple[tuple[Prompt, ...], int]:
    """The option is part of the context, and what follows it is scored."""
    before, blank, after = row.text("sentence").partition("_")
    if not blank or "_" in after or not after.strip():
        raise row.wrong("one _ with text after it in the field 'sentence'", repr(row.fields["sentence"]))
    prompts = tuple((before + row.text(name).strip(), after.rstrip()) for name in ("option1", "option2"))
    return prompts, row.label("answer", ("1", "2"))


def _boolq(row: _Row) -> tuple[tuple[Prompt, ...], int]:
    context = f"{row.text('passage')}\nQuestion: {row.text('question').rstrip('? ')}?\nAnswer:"
    return ((context, " no"), (context, " yes")), row.label("answer", (False, True))


def _plain(row: _Row) -> tuple[tuple[Prompt, ...], int]:
    """A space goes between, unless there is white space already."""
    context, choices = row.text("context"), row.texts("choices")
    prompts = tuple((context, c if context[-1].isspace() or c[0].isspace() else f" {c}") for c in choices)
    return prompts, row.label("label", range(len(choices)))


@dataclass(frozen=True)
class _Layout:
    """Files of one kind: the fields that tell it, the label's aside, and how its rows are put."""

    name: str
    """What its tasks are called; empty where the file gives the name."""
    fields: tuple[str, ...]
    label: str
    questions: Callable[[_Row], tuple[tuple[Prompt, ...], int]]


_LAYOUTS = (
    _Layout("mmlu", ("question", "choices"), "answer", _mmlu),
    _Layout("winogrande", ("sentence", "option1", "option2"), "answer", _winogrande),
    _Layout("boolq", ("passage", "question"), "answer", _boolq),
    _Layout("", ("context", "choices"), "label", _plain),
)


def _rows(file: CorpusFile) -> Iterator[tuple[_Layout, _Row]]:
    layout = None
    for number, line in read_lines(file):
        if not line.strip():
            continue
        row = _Row(file, number, parse_row(file, number, line))
        layout = layout or _layout(row)
        yield layout, row


def _layout(row: _Row) -> _Layout:
    for layout in _LAYOUTS:
        if set(layout.fields) <= set(row.fields):
            return layout
    raise CorpusError(
        "the fields of questions: " + "; or ".join(", ".join((*one.fields, one.label)) for one in _LAYOUTS),
        got=", ".join(row.fields) or "none",
        where=row.place,
        remedy="Write rows of context, choices and label.",
    )
