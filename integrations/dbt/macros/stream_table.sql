{#- A model whose rows Runnel keeps fresh. The query goes to the engine, which answers when the rows are there; what has
    not changed is left alone. The engine works in transactions of its own: whatever a model needs is committed first. -#}
{% materialization stream_table, adapter='postgres', supported_languages=['sql'] %}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set known = runnel.is_stream_table(this) -%}
  {%- set query = sql -%}
  {%- if config.get('contract').enforced -%}
    {{ get_assert_columns_equivalent(sql) }}
    {%- set query = get_select_subquery(sql) -%}
  {%- endif -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {%- if existing is not none and not known -%}
    {{ log("Replacing " ~ existing ~ ", which is no stream table", info=True) }}
    {{ adapter.drop_relation(existing) }}
  {%- endif -%}
  {%- if pre_hooks or (existing is not none and not known) -%}
    {%- call statement('before') -%} select 1 {%- endcall -%}
    {% do adapter.commit() %}
  {%- endif -%}

  {%- if known and should_full_refresh() -%}
    {%- call statement('rebuild') -%}
      select pgtrickle.alter_stream_table(name => {{ runnel.name_of(this) }}, query => {{ runnel.literal(query) }})
    {%- endcall -%}
  {%- endif -%}
  {%- call statement('main') -%}
    select pgtrickle.create_or_replace_stream_table(
      name => {{ runnel.name_of(this) }},
      query => {{ runnel.literal(query) }},
      schedule => {{ runnel.literal(config.get('schedule', 'calculated')) }},
      refresh_mode => {{ runnel.literal(config.get('refresh_mode', 'AUTO')) }},
      sink => {{ runnel.literal(config.get('sink', 'none')) }}
      {%- for option in ['ducklake_sink_mode', 'ducklake_lake', 'ducklake_compression', 'ducklake_expired',
                         'delta_export_path', 'delta_export_compression'] if config.get(option) is not none %},
      {{ option }} => {{ runnel.literal(config.get(option)) }}
      {%- endfor %}
    )
  {%- endcall -%}

  {{ runnel.put_indexes(target_relation, config.get('indexes', default=[])) }}
  {% do apply_grants(target_relation, config.get('grants'), should_revoke=known) %}
  {% do persist_docs(target_relation, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {% do adapter.commit() %}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}


{% macro literal(text) -%}
  '{{ (text | string).replace("'", "''") }}'
{%- endmacro %}


{% macro name_of(relation) -%}
  {{ runnel.literal(adapter.quote(relation.schema) ~ '.' ~ adapter.quote(relation.identifier)) }}
{%- endmacro %}


{% macro is_stream_table(relation) -%}
  {%- if not execute -%} {{ return(false) }} {%- endif -%}
  {%- set found = run_query(
    "select 1 from pgtrickle.pgt_stream_tables where pgt_schema = " ~ runnel.literal(relation.schema)
    ~ " and pgt_name = " ~ runnel.literal(relation.identifier)) -%}
  {{ return(found.rows | length > 0) }}
{%- endmacro %}


{#- Indexes have names that follow from what they are, so that they are made once, and dropped when the model has them no
    more. -#}
{% macro put_indexes(relation, indexes) -%}
  {%- set wanted = [] -%}
  {%- for index in indexes -%}
    {%- set columns = index.columns | map('string') | list -%}
    {%- set said = columns | join(',') ~ (index.unique or false) ~ (index.type or '') -%}
    {%- set name = 'dbt_' ~ local_md5(relation.schema ~ '.' ~ relation.identifier ~ said)[:24] -%}
    {%- do wanted.append(name) -%}
    {%- set quoted = [] -%}
    {%- for column in columns -%} {%- do quoted.append(adapter.quote(column)) -%} {%- endfor -%}
    {%- do run_query("create " ~ ("unique " if index.unique else "") ~ "index if not exists " ~ adapter.quote(name)
        ~ " on " ~ relation ~ ((" using " ~ index.type) if index.type else "") ~ " (" ~ quoted | join(', ') ~ ")") -%}
  {%- endfor -%}
  {%- set present = run_query("select indexname from pg_catalog.pg_indexes where schemaname = "
      ~ runnel.literal(relation.schema) ~ " and tablename = " ~ runnel.literal(relation.identifier)
      ~ " and indexname ~ '^dbt_[0-9a-f]{24}$'") -%}
  {%- for row in present.rows if row[0] not in wanted -%}
    {%- do run_query("drop index " ~ adapter.quote(relation.schema) ~ "." ~ adapter.quote(row[0])) -%}
  {%- endfor -%}
{%- endmacro %}
