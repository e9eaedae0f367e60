{#- dbt run-operation drop_vanished [--args '{dry_run: false, schemas: [..]}']: stream tables in the target's schema, in
    those of this project's models and seeds, and in those that are named, which are no model any more. Readers are
    dropped before what they read: how far a table is from the last one that reads it decides. -#}
{% macro drop_vanished(dry_run=true, schemas=[]) -%}
  {%- set kept = [] -%}
  {%- set places = [runnel.literal(target.schema)] -%}
  {%- for schema in schemas -%} {%- do places.append(runnel.literal(schema)) -%} {%- endfor -%}
  {%- for node in graph.nodes.values() if node.resource_type in ('model', 'seed') -%}
    {%- do places.append(runnel.literal(node.schema)) -%}
    {%- do kept.append(node.schema ~ '.' ~ node.alias) -%}
  {%- endfor -%}
  {%- set found = run_query("with recursive deep (pgt_id, depth) as ("
      ~ " select pgt_id, 0 from pgtrickle.pgt_stream_tables union"
      ~ " select d.pgt_id, p.depth + 1 from deep p join pgtrickle.pgt_dependencies d on d.source_pgt_id = p.pgt_id)"
      ~ " select t.pgt_schema, t.pgt_name from pgtrickle.pgt_stream_tables t join deep using (pgt_id)"
      ~ " where t.pgt_schema in (" ~ places | join(', ') ~ ")"
      ~ " group by t.pgt_id order by max(deep.depth) desc, t.pgt_id desc") -%}
  {%- for row in found.rows if (row[0] ~ '.' ~ row[1]) not in kept -%}
    {%- if dry_run -%}
      {{ log("Would drop " ~ row[0] ~ "." ~ row[1], info=True) }}
    {%- else -%}
      {%- do run_query("select pgtrickle.drop_stream_table("
          ~ runnel.literal(adapter.quote(row[0]) ~ '.' ~ adapter.quote(row[1])) ~ ")") -%}
      {{ log("Dropped " ~ row[0] ~ "." ~ row[1], info=True) }}
    {%- endif -%}
  {%- endfor -%}
{%- endmacro %}


{#- dbt run-operation verify: every stream table of the project against its query, in one snapshot each. -#}
{% macro verify() -%}
  {%- for node in graph.nodes.values() if node.resource_type == 'model' and node.config.materialized == 'stream_table' -%}
    {%- set name = runnel.literal(adapter.quote(node.schema) ~ '.' ~ adapter.quote(node.alias)) -%}
    {%- set answer = run_query("select pgtrickle.verify_stream_table(" ~ name ~ ") ->> 'ok'") -%}
    {%- if answer.rows[0][0] != 'true' -%}
      {{ exceptions.raise_compiler_error(node.schema ~ "." ~ node.alias ~ " differs from its query") }}
    {%- endif -%}
    {{ log(node.schema ~ "." ~ node.alias ~ " equals its query", info=True) }}
  {%- endfor -%}
{%- endmacro %}
