"""The checks that follow from declarations: of every table (key, references, accepted words) and of finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sql
from storage.tables import Column, TableSpec

_PLACES = ("capture", "doc", "layer", "head")
_POSITIONS = ("position", "query", "key")
_OWNERS = {
    "captures": ("capture",),
    "documents": ("capture", "doc"),
    "heads": ("capture", "layer", "head"),
}
"""The tables that others refer to, and by which columns."""


@dataclass(frozen=True)
class Check:
    """A check: SQL that returns one row per thing checked, with `capture`, `error` and `tolerance` among its columns.

    With `$everything` false it returns the violations alone. An error that is NULL is a violation.
    """

    name: str
    summary: str
    body: str


@dataclass(frozen=True)
class Completeness:
    """What makes a table of a finished run complete: how many rows each document has.

    Either every document has every condition, and `grid` has groups of columns whose combinations, multiplied, are the
    conditions; or `expected` is the number of rows, as SQL over `documents` and `captures` (with n_kept, the number of
    layers whose attention the store keeps).
    """

    table: str
    summary: str
    grid: tuple[tuple[str, ...], ...] = ()
    expected: str = ""
    counted: str = "true"
    """The condition for a row to count."""


def table_checks(specs: Mapping[str, TableSpec]) -> list[Check]:
    """`accepted_values` over all tables, `unique_<table>` of every table, and `related_<table>` of all but stages and
    captures."""
    views = [sql.read("views", name) for name in sql.names("views") if name in specs]
    related = [_related(view, specs[view.name]) for view in views if view.name not in ("captures", "stages")]
    return [_accepted_values(specs), *map(_unique, views), *related]


def _accepted_values(specs: Mapping[str, TableSpec]) -> Check:
    """Columns that stand for a choice hold one of its words."""
    columns = [
        f"""
            select capture, '{spec.name}.{name}' as column_name, {name} as value, {_accepts(name, column)} as accepted
            from {spec.name} group by all"""
        for spec in specs.values()
        for name, column in spec.columns.items()
        if column.words or column.layer_set
    ]
    body = f"""
        with held as ({" union all ".join(columns)}
        ),
        measured as (
            select capture, column_name, value, (not coalesce(accepted, false))::integer as error, 0 as tolerance
            from held
        )
        select * from measured where $everything or error > tolerance"""
    return Check("accepted_values", "Columns that stand for a choice hold one of its words, in lower case.", body)


def _accepts(name: str, column: Column) -> str:
    words = ", ".join(f"'{word}'" for word in column.words)
    accepted = [f"list_contains([{words}], {name})"] if words else []
    return " or ".join([*accepted, *([f"is_layers({name})"] if column.layer_set else [])])


def completeness_check(stage: str, declared: Completeness) -> Check:
    """`<table>_complete`: every document has as many rows as a finished run of the stage gives it."""
    groups = [f"count(distinct ({', '.join(columns)}))" for columns in declared.grid]
    grid = f"select capture, {' * '.join(groups) or 'null'} as conditions from {declared.table} group by capture"
    body = f"""
        with grid as ({grid}),
        counted as (
            select capture, doc, count(*) as n from {declared.table} where {declared.counted} group by capture, doc
        ),
        sized as (
            select *, coalesce(json_array_length(config, '$.kept_layers'), n_layers)::bigint as n_kept from captures
        ),
        measured as (
            select
                capture, doc,
                abs(coalesce(n, 0) - coalesce({declared.expected or "conditions"}, 0)) as error,
                0 as tolerance
            from documents
            join sized using (capture)
            join stages using (capture)
            left join grid using (capture)
            left join counted using (capture, doc)
            where stages.stage = '{stage}' and stages.status = 'done'
        )
        select * from measured where $everything or error > tolerance"""
    return Check(f"{declared.table}_complete", declared.summary, body)


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


def _related(view: sql.SqlFile, spec: TableSpec) -> Check:
    """The capture, document, layer and head of every row exist, and its positions lie inside the document."""
    places = [key for key in _PLACES if key in view.keys]
    owners = {o: keys for o, keys in _OWNERS.items() if o != view.name and set(keys) <= set(places)}
    joins = [f"left join {owner} using ({', '.join(keys)})" for owner, keys in owners.items()]
    faults = [
        f"({owner}.stage_key is null{' and head is not null' if 'head' in {*keys} & _nullable(view) else ''})::integer"
        for owner, keys in owners.items()
    ]
    if any(column.boundary for column in spec.columns.values()):
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
