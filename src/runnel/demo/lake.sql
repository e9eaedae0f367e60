-- step 3: the shop sells in several regions, and everything that is maintained goes to the lake, too

ALTER TABLE customers ADD COLUMN region TEXT NOT NULL DEFAULT 'Europe';
UPDATE customers
SET region = (ARRAY['Europe', 'North America', 'Asia', 'South America', 'Africa'])[1 + id % 5];

SELECT pgtrickle.create_stream_table(
    name     => 'revenue_by_region',
    query    => $$
        SELECT
            c.region,
            SUM(o.total_usd)               AS revenue_usd,
            COUNT(*)                       AS order_count,
            COUNT(DISTINCT o.customer_id)  AS buyers,
            MAX(o.id)                      AS newest_order
        FROM orders o
        JOIN customers c ON c.id = o.customer_id
        WHERE o.status <> 'cancelled'
        GROUP BY c.region
    $$,
    schedule => '200ms',
    sink     => 'ducklake'
);

SELECT pgtrickle.alter_stream_table('revenue_by_day', schedule => '5s', sink => 'ducklake');
SELECT pgtrickle.alter_stream_table('customer_lifetime_value', sink => 'ducklake');
SELECT pgtrickle.alter_stream_table('inventory_health', sink => 'ducklake');
