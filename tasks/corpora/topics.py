"""The default corpus: the English text of `help("TOPIC")`, which every Python carries.

It needs no network and no file of ours. It differs a little from one Python version to the next, which is why a corpus
digest is taken over its text and not over its name.
"""

from __future__ import annotations

PYTHON_TOPICS = "python-topics"
"""The name that stands for this text wherever a corpus is named."""


def python_topics() -> list[tuple[str, str]]:
    """(topic, text) of `pydoc_data.topics`, sorted by topic: 79 topics and 464,970 characters in Python 3.11.7."""
    from pydoc_data.topics import topics

    return sorted(topics.items())
