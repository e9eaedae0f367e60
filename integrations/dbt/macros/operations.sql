{#- dbt run-operation drop_vanished [--args '{dry_run: false}']: stream tables in the schemas of this project's models
    that are no model any more. Readers are dropped before what they read. -#}
{% macro drop_vanished(dry_run=true) -%}
  {%- set kept = [] -%}
  {%- set schemas = [] -%}
  {%- for node in graph.nodes.values() if node.resource_type == 'model' -%}
    {%- do kept.append(node.schema ~ '.' ~ node.alias) -%}
    {%- if node.config.materialized == 'stream_table' and node.schema not in schemas -%}
      {%- do schemas.append(node.schema) -%}
    {%- endif -%}
  {%- endfor -%}
  {%- for schema in schemas -%}
    {%- set found = run_query("select pgt_name from pgtrickle.pgt_stream_tables where pgt_schema = "
        ~ runnel.literal(schema) ~ " order by pgt_id desc") -%}
    {%- for row in found.rows if (schema ~ '.' ~ row[0]) not in kept -%}
      {%- if dry_run -%}
        {{ log("Would drop " ~ schema ~ "." ~ row[0], info=True) }}
      {%- else -%}
        {%- do run_query("select pgtrickle.drop_stream_table("
            ~ runnel.literal(adapter.quote(schema) ~ '.' ~ adapter.quote(row[0])) ~ ")") -%}
        {{ log("Dropped " ~ schema ~ "." ~ row[0], info=True) }}
      {%- endif -%}
    {%- endfor -%}
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
