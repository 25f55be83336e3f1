"""The checks that follow from a table's grain alone, for every table: its key is unique, whole, and refers to rows."""

from __future__ import annotations

from dataclasses import dataclass

import sql

_PLACES = ("capture", "doc", "layer", "head")
_POSITIONS = ("position", "query", "key")
_OWNERS = {
    "captures": ("capture",),
    "documents": ("capture", "doc"),
    "heads": ("capture", "layer", "head"),
}
"""The tables that others refer to, and by which columns."""
_OF_STREAM = ("displacement", "propagation", "probes")
"""Tables of the residual stream, which is there before layers without attention too, and behind the last."""


@dataclass(frozen=True)
class Check:
    """A check: SQL that returns one row per thing checked, with `capture`, `error` and `tolerance` among its columns.

    With `$everything` false it returns the violations alone. An error that is NULL is a violation.
    """

    name: str
    summary: str
    body: str


def grain_checks() -> list[Check]:
    """`unique_<table>` of every table, and `related_<table>` of every table but those of runs and captures."""
    views = [sql.read("views", name) for name in sql.names("views")]
    return [*map(_unique, views), *(_related(v) for v in views if v.name not in ("captures", "stages"))]


def _unique(view: sql.SqlFile) -> Check:
    """No two rows of one key, and no key with a NULL that does not stand for something.

    The last key column is counted as a list inside groups of the others: a group per key takes ten times the memory.
    """
    last, whole = view.keys[-1], [key for key in view.keys[:-1] or view.keys if key not in _nullable(view)]
    groups = ", ".join(view.keys[:-1] or view.keys)
    nulls = " + ".join(f"count(*) filter (where {key} is null)" for key in whole)
    body = f"""
        with counted as (
            select {groups}, count(*) - list_unique(list({last})) + {nulls} as error, 0 as tolerance
            from {view.name} group by {groups}
        )
        select * from counted where $everything or error > tolerance"""
    but = "".join(f" but {key}" for key in view.keys if key in _nullable(view))
    return Check(f"unique_{view.name}", f"{view.name}: {view.grain}, and no part of the key{but} is NULL.", body)


def _nullable(view: sql.SqlFile) -> frozenset[str]:
    """The key columns whose NULL stands for something, as their meaning says: a head's for the mean of all heads."""
    meanings = view.column_meanings()
    return frozenset(key for key in view.keys if "NULL for" in meanings[key])


def _related(view: sql.SqlFile) -> Check:
    """The capture, document, layer and head of every row exist, and its positions lie inside the document."""
    places = [key for key in _PLACES if key in view.keys]
    owners = {o: keys for o, keys in _OWNERS.items() if o != view.name and set(keys) <= set(places)}
    joins = [f"left join {owner} using ({', '.join(keys)})" for owner, keys in owners.items()]
    faults = [
        f"({owner}.stage_key is null{' and head is not null' if 'head' in {*keys} & _nullable(view) else ''})::integer"
        for owner, keys in owners.items()
    ]
    if view.name in _OF_STREAM:
        faults.append("(not coalesce(layer between 0 and captures.n_layers, false))::integer")
    elif "layer" in places and ("heads" not in owners or "head" in _nullable(view)) and view.name != "heads":
        joins.append("left join (select distinct capture, layer, true as there from heads) using (capture, layer)")
        faults.append("(there is null)::integer")
    spans = [key for key in _POSITIONS if key in view.keys]
    if spans:
        faults.append("(not coalesce(lowest >= 0 and highest < documents.n_tokens, false))::integer")
    lowest = f"min(least({', '.join(spans)}))" if spans else "null"
    highest = f"max(greatest({', '.join(spans)}))" if spans else "null"
    body = f"""
        with placed as (
            select {", ".join(places)}, {lowest} as lowest, {highest} as highest
            from {view.name} group by {", ".join(places)}
        ),
        compared as (
            select {", ".join(places)}, {" + ".join(faults)} as error, 0 as tolerance from placed {" ".join(joins)}
        )
        select * from compared where $everything or error > tolerance"""
    what = [f"{keys[-1]} is in {owner}" for owner, keys in owners.items()] + (
        ["positions are in the document"] if spans else []
    )
    return Check(f"related_{view.name}", f"{view.name}: each row's {', '.join(what)}.", body)
