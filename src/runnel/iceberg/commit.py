"""A client's commit to one table as part of a DuckLake snapshot.

First, without a lock: the client's manifests are compared with the head, its files are read and its deletes turned into
files that both formats read. Then, with the snapshot's number taken: nobody may have touched the table since the head
that it was compared with, and the catalog's rows are written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg

from runnel.errors import UserError
from runnel.iceberg.arrivals import Arrivals, appended, arrivals, local_form
from runnel.iceberg.definitions import Definition, check_change, define, partition_keys
from runnel.iceberg.entries import data_file_by_id
from runnel.iceberg.errors import already_exists, bad_request
from runnel.iceberg.facts import SAID
from runnel.iceberg.requirements import changed
from runnel.iceberg.rights import DEFINE, DELETE, INSERT
from runnel.iceberg.sameness import same_rows
from runnel.iceberg.standing import Standing
from runnel.iceberg.taking import Taken, take
from runnel.iceberg.updates import Wanted
from runnel.iceberg.warehouse import PROPERTY
from runnel.lake.format.catalog import mappings
from runnel.lake.format.model import DataFile, Lake, LakeTable
from runnel.lake.read.reader import NEVER, FileScan
from runnel.lake.store.storage import open_store
from runnel.lake.write.alter import Key, set_column_comments, set_columns, set_partition
from runnel.lake.write.commit import Draft, LakeConflict, require_untouched, touched_since
from runnel.lake.write.files import add_rows, insert_data_file, schedule_deletion
from runnel.lake.write.removal import Former, Removal, former
from runnel.lake.write.tables import create_table, find_table
from runnel.lake.write.views import set_tags

Connection = psycopg.Connection[Any]


@dataclass(slots=True)
class Plan:
    """A commit that is ready to be written."""

    standing: Standing
    wanted: Wanted
    definition: Definition | None = None
    keys: tuple[Key, ...] | None = None
    arrived: Arrivals = field(default_factory=Arrivals)
    taken: list[Taken] = field(default_factory=list)
    removal: Removal = field(init=False)
    uploaded: list[str] = field(default_factory=list)
    replaced: list[FileScan] | None = None
    """The files that went, if the client says that its own hold the same rows."""
    table_id: int = -1
    """Known when it is written."""

    def __post_init__(self) -> None:
        self.removal = Removal(self.standing.lake, self.standing.table)

    @property
    def creates(self) -> bool:
        return self.standing.facts is None

    @property
    def rights(self) -> set[str]:
        """What the caller needs for it."""
        wanted = self.wanted
        found = set()
        if self.creates or self.definition or self.keys is not None or wanted.properties or wanted.removed_properties:
            found.add(DEFINE)
        if self.arrived.added:
            found.add(INSERT)
        if self.arrived.removed or self.arrived.dead or not self.removal.is_empty:
            found.add(DELETE)
        return found

    @property
    def is_empty(self) -> bool:
        return not self.rights

    def discard(self) -> None:
        """Remove what was written for a commit that did not happen."""
        paths, self.uploaded = self.uploaded, []
        open_store(self.standing.table.path, self.standing.lake.options).delete(paths)
        self.removal.discard()

    # -- before the lock -------------------------------------------------------------------------------------

    def take_files(self, guess: int) -> None:
        """Read the client's files. `guess` is the number that the snapshot will probably have."""
        table = self._table()
        first = self.standing.next_row_id
        for entry in self.arrived.added:
            if entry.rows == 0:
                continue
            made = take(self.standing, table, entry, self.arrived.dead.get(entry.path, _NOTHING), first)
            self.uploaded.append(table.path + made.written.path)
            if made.written.record_count:
                self.taken.append(made)
                first += made.written.record_count if not made.has_row_ids else entry.rows
        self.removal.write(guess)
        if self.replaced is not None and not same_rows(table.columns, self.replaced, self._scans(table)):
            self.replaced = None

    def _scans(self, table: LakeTable) -> list[FileScan]:
        """The files that were taken, as they are read."""
        found = []
        for each in self.taken:
            file = each.written
            stored = DataFile(-1, table.path + file.path, 0, None, file.record_count, file.size, file.footer_size, None)
            found.append(FileScan(stored, table.columns, NEVER, options=self.standing.lake.options))
        return found

    def _table(self) -> LakeTable:
        table = self.standing.table
        if self.definition is None:
            return table
        return LakeTable(table.id, table.uuid, table.schema, table.name, table.path, self.definition.columns)

    # -- under the lock --------------------------------------------------------------------------------------

    def apply(self, draft: Draft) -> None:
        """Write the catalog's rows."""
        said = list(draft.changes)
        # The same request may have come twice, and the other one may have been faster.
        _check_new(draft.conn, self)
        table = self._create(draft) if self.creates else self._alter(draft)
        self.table_id = table.id
        self._tags(draft, table)
        self._rows(draft, table)
        if self.replaced is not None:
            # Rows that only moved: no change for anybody. Both kinds of racing deletes conflict with the one or other.
            draft.changes[:] = [*said, f"rewrite_delete:{table.id}", f"inline_flush:{table.id}"]
        leftovers = {local_form(self.standing, entry.path) for entry in self.arrived.lists}
        leftovers |= {each.replaces for each in self.taken}
        schedule_deletion(draft, [(draft.new_file_id(), path) for path in sorted(leftovers)])

    def _create(self, draft: Draft) -> LakeTable:
        table, definition = self.standing.table, self.definition
        assert definition is not None
        if find_table(draft, table.schema, table.name) is not None:
            raise already_exists(f"Table {table.schema}.{table.name}")
        try:
            made = create_table(draft, table.schema, table.name, definition.columns, id=uuid.UUID(table.uuid))
        except UserError as error:
            raise (already_exists(f"{table.schema}.{table.name}") if "already" in error.message else error) from error
        if definition.comments:
            set_column_comments(draft, made, definition.comments)
        if self.keys:
            set_partition(draft, made, self.keys)
        draft.changes[:] = [each for each in draft.changes if each != f"altered_table:{made.id}"]
        return made

    def _alter(self, draft: Draft) -> LakeTable:
        table = self.standing.table
        if self.wanted.only_appends and self.removal.is_empty and not any(each.has_row_ids for each in self.taken):
            if not only_rows_moved(draft.conn, self.standing.lake, table.id, self.standing.snapshot):
                raise changed(f"table {table.name} was altered or dropped")
            return table
        try:
            require_untouched(draft, table.id, self.standing.snapshot)
        except LakeConflict as error:
            raise changed(error.message) from error
        if self.definition is not None:
            table = set_columns(draft, table, self.definition.columns, self.definition.defaults)
            comments: dict[int, str | None] = dict.fromkeys(_comments(self.standing.schema), None)
            comments |= self.definition.comments
            if comments != _comments(self.standing.schema):
                set_column_comments(draft, table, comments)
        if self.keys is not None:
            set_partition(draft, table, self.keys)
        return table

    def _tags(self, draft: Draft, table: LakeTable) -> None:
        tags = {_tag(key): value for key, value in self.wanted.properties.items()}
        known = self.standing.metadata["properties"]
        gone = [_tag(key) for key in self.wanted.removed_properties if key in known and _tag(key) not in tags]
        if gone:
            draft.run(
                "UPDATE {lake}.ducklake_tag SET end_snapshot = %s WHERE object_id = %s AND key = ANY(%s) "
                "AND end_snapshot IS NULL",
                (draft.id, table.id, gone),
            )
            draft.schema_changed()
            draft.announce(f"altered_table:{table.id}")
        if tags:
            said = list(draft.changes)
            set_tags(draft, table.id, tags, kind="table")
            if self.creates:
                draft.changes[:] = said

    def _rows(self, draft: Draft, table: LakeTable) -> None:
        self.removal.apply(draft, table)
        if not self.taken:
            return
        counts = [each.entry.rows if each.has_row_ids else each.written.record_count for each in self.taken]
        stats = [each.written.stats for each in self.taken]
        starts = add_rows(draft, table, counts, stats, sum(each.written.size for each in self.taken))
        if starts[0] != self.standing.next_row_id and any(each.has_row_ids for each in self.taken):
            raise changed("rows were added meanwhile")
        partitions = self._partitions(draft, table)
        for each, start in zip(self.taken, starts, strict=True):
            partition, values = _partition(each, self.wanted.specs, partitions)
            insert_data_file(
                draft, table, each.written, begin=draft.id, row_id_start=None if each.has_row_ids else start,
                partition_id=partition, partition_values=values,
            )  # fmt: skip
        draft.announce(f"inserted_into_table:{table.id}")

    def _partitions(self, draft: Draft, table: LakeTable) -> dict[tuple[Key, ...], int]:
        """The partitions that the table has now or had, by their keys; the newest of equals."""
        found: dict[int, list[Key]] = {}
        for id, column, transform in draft.run(
            "SELECT partition_id, column_id, transform FROM {lake}.ducklake_partition_column WHERE table_id = %s "
            "ORDER BY partition_id, partition_key_index",
            (table.id,),
        ):
            found.setdefault(id, []).append((column, transform))
        return {tuple(keys): id for id, keys in sorted(found.items())}


_ABOUT_ROWS = frozenset(
    {
        "inserted_into_table", "deleted_from_table", "inlined_insert", "inlined_delete", "inline_flush",
        "flushed_inlined", "merge_adjacent", "rewrite_delete", "compacted_table",
    }
)  # fmt: skip


def only_rows_moved(conn: Connection, lake: Lake, table_id: int, since: int) -> bool:
    """Whether a table is what it was at a snapshot, but for its rows: they do not keep others from being added."""
    return all(verb in _ABOUT_ROWS for _, verb in touched_since(conn, lake, table_id, since))


_NOTHING = np.empty(0, dtype=np.int64)


def plan(catalog: Connection, standing: Standing, wanted: Wanted, *, is_late: bool = False) -> Plan:
    """Find out what a commit comes to; files are not read yet.

    `is_late`: the client has started from an older head. What only adds rows is good on any.
    """
    made = Plan(standing, wanted)
    if is_late:
        found = appended(standing, str(wanted.manifest_list), wanted.snapshots)
        if found is None:
            raise changed("branch main has moved")
        made.arrived = found
        _check_new(catalog, made)
        return made
    known = standing.table.columns
    if wanted.schema is not None:
        definition = define(wanted.schema, known, standing.schema, standing.version)
        if standing.facts is not None:
            ever = {each.id for each in _flat(standing.facts.columns.ever(known))}
            check_change(known, definition.columns, ever)
        if definition.columns != known or definition.comments != _comments(standing.schema):
            made.definition = definition
    if standing.facts is None and made.definition is None:
        raise bad_request("A new table needs a schema.")
    columns = made.definition.columns if made.definition else known
    if wanted.spec is not None:
        made.keys = partition_keys(wanted.spec, columns)
        if wanted.spec.get("spec-id") == standing.metadata["default-spec-id"] and standing.facts is not None:
            made.keys = None
    if wanted.moves:
        made.arrived = arrivals(standing, wanted.manifest_list)
        _check_new(catalog, made)
        _plan_rows(catalog, made)
    return made


def _check_new(catalog: Connection, made: Plan) -> None:
    """A file that the lake knows already, here or in another table, is not a new one."""
    standing = made.standing
    paths = [local_form(standing, entry.path) for entry in made.arrived.added]
    if not paths:
        return
    if len(set(paths)) != len(paths):
        raise bad_request("A file is added twice.")
    inside = [path.removeprefix(standing.table.path) for path in paths]
    lake = psycopg.sql.Identifier(standing.lake.schema)
    found = catalog.execute(
        psycopg.sql.SQL(
            "SELECT path FROM {lake}.ducklake_data_file WHERE path = ANY(%s)"
            " UNION ALL SELECT path FROM {lake}.ducklake_files_scheduled_for_deletion WHERE path = ANY(%s)"
        ).format(lake=lake),
        ([*paths, *inside], [*paths, *(path.removeprefix(standing.lake.data_path) for path in paths)]),
    ).fetchone()
    if found:
        raise bad_request(f"The file {found[0]} was in a table before, and cannot be added again.")


def _plan_rows(catalog: Connection, made: Plan) -> None:
    standing, arrived = made.standing, made.arrived
    facts, removal = standing.facts, made.removal
    by_id = {id: path for path, id in standing.files.items()}
    kept = 0
    for id in arrived.removed:
        assert facts is not None
        if id < 0:
            rows = facts.inlined[id]
            live = [row for row, end in zip(rows.row_ids, rows.ends, strict=True) if end is None]
            removal.row_ids += live
            kept += len(live)
            continue
        known = _former(catalog, standing, id)
        kept += facts.files[id].rows - len(known.every)
        removal.remove_all(known)
    touched = {standing.files[path] for path in arrived.dead if path in standing.files} | arrived.uncovered
    new_dead = 0
    for id in sorted(touched - set(arrived.removed)):
        assert facts is not None
        given = arrived.dead.get(by_id[id], _NOTHING)
        if len(given) and (given[0] < 0 or given[-1] >= facts.files[id].rows):
            raise bad_request(f"A deleted position is not in the file {by_id[id]}.")
        if id < 0:
            rows = facts.inlined[id]
            every = np.array([place for place, end in enumerate(rows.ends) if end is not None], dtype=np.int64)
        else:
            known = _former(catalog, standing, id)
            every = known.every
        if id in arrived.uncovered and len(np.setdiff1d(every, given)):
            raise bad_request("Rows that were deleted cannot come back: write them anew.")
        new = np.setdiff1d(given, every)
        new_dead += len(new)
        if id < 0:
            removal.row_ids += [rows.row_ids[place] for place in new.tolist()]
        else:
            removal.remove(known, new)
    if set(made.wanted.operations) == {"replace"} and made.definition is None and made.keys is None:
        added = sum(entry.rows - len(arrived.dead.get(entry.path, ())) for entry in arrived.added)
        if added == kept and not new_dead and not removal.positions and arrived.added:
            made.replaced = _replaced(catalog, standing, arrived.removed)


def _replaced(catalog: Connection, standing: Standing, ids: Sequence[int]) -> list[FileScan]:
    """Files as they are read at the head; rows that are in the catalog by the file that clients have of them."""
    facts, lake, found = standing.facts, standing.lake, []
    assert facts is not None
    by_id = {id: path for path, id in standing.files.items()}
    names = mappings(catalog, lake, {m for id in ids if (m := facts.files[id].mapping_id) is not None})
    for id in ids:
        if id >= 0:
            file = data_file_by_id(catalog, lake, standing.table, id)
            gone = facts.inlined_deletes.get(id, ())
        else:
            path = local_form(standing, by_id[id])
            size = open_store(path.rpartition("/")[0], lake.options).size(path)
            file = DataFile(-1, path, 0, None, facts.files[id].rows, size, None, None)
            gone = tuple((place, end) for place, end in enumerate(facts.inlined[id].ends) if end is not None)
        mapping = names[file.mapping_id] if file.mapping_id is not None else None
        live = tuple(each for each in facts.deletes.get(id, ()) if each.end is None)
        found.append(
            FileScan(
                file,
                standing.table.columns,
                standing.snapshot,
                deletes=live,
                inlined_deletes=gone,
                mapping=mapping,
                options=lake.options,
            )  # fmt: skip
        )
    return found


def _former(catalog: Connection, standing: Standing, id: int) -> Former:
    facts = standing.facts
    assert facts is not None
    file = data_file_by_id(catalog, standing.lake, standing.table, id)
    return former(standing.lake, file, facts.deletes.get(id, ()), facts.inlined_deletes.get(id, ()))


def _partition(
    taken: Taken, specs: Mapping[int, Mapping[str, Any]], partitions: Mapping[tuple[Key, ...], int]
) -> tuple[int | None, dict[int, str | None]]:
    """The partition of a file and its values in the catalog's text; none where DuckLake has other keys."""
    spec = specs.get(taken.entry.spec)
    if not spec or not spec.get("fields"):
        return None, {}
    keys, values = [], []
    for field_, value in zip(spec["fields"], taken.entry.partition, strict=False):
        transform = str(field_["transform"])
        if transform == "void":
            continue
        keys.append((int(field_["source-id"]), transform.replace("[", "(").replace("]", ")")))
        values.append(_value_text(transform, value))
    id = partitions.get(tuple(keys))
    return (None, {}) if id is None else (id, dict(enumerate(values)))


def _value_text(transform: str, value: Any) -> str | None:
    if value is None:
        return None
    if transform == "year":
        return str(int(value) + 1970)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _tag(property_: str) -> str:
    return "comment" if property_ == "comment" else PROPERTY + property_


def _comments(schema: Mapping[str, Any]) -> dict[int, str]:
    """The comments of columns."""
    found: dict[int, str] = {}

    def below(type_: Any) -> None:
        if isinstance(type_, Mapping):
            for each in type_.get("fields", []):
                if each.get("doc"):
                    found[each["id"]] = each["doc"]
                below(each["type"])
            for kind in ("element", "key", "value"):
                below(type_.get(kind))

    below(schema)
    return found


def _flat(columns: Sequence[Any]) -> list[Any]:
    return [each for column in columns for each in (column, *_flat(column.children))]


def extra(plans: Sequence[Plan]) -> str | None:
    """What the clients said of their snapshots, by table."""
    said = {str(each.table_id): dict(each.wanted.summary) for each in plans if each.wanted.moves}
    return json.dumps({SAID: said}) if said else None
