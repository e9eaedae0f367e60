{{ config(indexes=[{'columns': ['order_id'], 'unique': true}]) }}
select
    o.order_id, o.customer_id, o.order_date, o.status,
    sum(p.amount) filter (where p.payment_method = 'credit_card') as credit_card_amount,
    sum(p.amount) filter (where p.payment_method = 'coupon') as coupon_amount,
    sum(p.amount) as amount
from {{ ref('stg_orders') }} o
left join {{ ref('stg_payments') }} p on p.order_id = o.order_id
group by o.order_id, o.customer_id, o.order_date, o.status
