select id as payment_id, order_id, payment_method, amount::numeric(12,2) / 100 as amount from {{ ref('raw_payments') }}
