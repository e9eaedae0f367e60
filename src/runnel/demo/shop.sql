-- step 1: the tables of a small shop

CREATE TABLE customers (
    id          SERIAL PRIMARY KEY,
    email       TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    plan        TEXT NOT NULL DEFAULT 'free',  -- 'free', 'pro', 'enterprise'
    created_at  TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE TABLE products (
    id           SERIAL PRIMARY KEY,
    sku          TEXT NOT NULL UNIQUE,
    name         TEXT NOT NULL,
    category     TEXT NOT NULL,
    price_usd    NUMERIC(10,2) NOT NULL,
    stock_count  INT NOT NULL DEFAULT 0
);

CREATE TABLE orders (
    id           BIGSERIAL PRIMARY KEY,
    customer_id  INT NOT NULL REFERENCES customers(id),
    product_id   INT NOT NULL REFERENCES products(id),
    quantity     INT NOT NULL DEFAULT 1,
    total_usd    NUMERIC(10,2) NOT NULL,
    status       TEXT NOT NULL DEFAULT 'pending',  -- 'pending', 'shipped', 'cancelled'
    ordered_at   TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- step 2: the stream tables

CREATE EXTENSION IF NOT EXISTS pg_trickle;

-- Revenue by day and product category
SELECT pgtrickle.create_stream_table(
    name         => 'revenue_by_day',
    query        => $$
        SELECT
            date_trunc('day', o.ordered_at) AS day,
            p.category,
            SUM(o.total_usd)                AS revenue_usd,
            COUNT(*)                        AS order_count,
            COUNT(DISTINCT o.customer_id)   AS unique_customers
        FROM orders o
        JOIN products p ON p.id = o.product_id
        WHERE o.status = 'shipped'
        GROUP BY date_trunc('day', o.ordered_at), p.category
    $$,
    schedule     => '10s',
    refresh_mode => 'DIFFERENTIAL'
);

-- Customer lifetime value
SELECT pgtrickle.create_stream_table(
    name         => 'customer_lifetime_value',
    query        => $$
        SELECT
            c.id,
            c.email,
            c.plan,
            SUM(o.total_usd)   AS lifetime_value_usd,
            COUNT(*)           AS total_orders,
            MAX(o.ordered_at)  AS last_order_at,
            MIN(o.ordered_at)  AS first_order_at
        FROM customers c
        LEFT JOIN orders o ON o.customer_id = c.id AND o.status = 'shipped'
        GROUP BY c.id, c.email, c.plan
    $$,
    schedule     => '30s',
    refresh_mode => 'DIFFERENTIAL'
);

-- Inventory alert: products with low stock relative to recent demand
SELECT pgtrickle.create_stream_table(
    name         => 'inventory_health',
    query        => $$
        SELECT
            p.id,
            p.sku,
            p.name,
            p.stock_count,
            COALESCE(recent.units_sold_7d, 0) AS units_sold_7d,
            CASE
                WHEN p.stock_count = 0 THEN 'OUT_OF_STOCK'
                WHEN p.stock_count < COALESCE(recent.units_sold_7d, 0) THEN 'LOW_STOCK'
                ELSE 'OK'
            END AS stock_status
        FROM products p
        LEFT JOIN (
            SELECT product_id, SUM(quantity) AS units_sold_7d
            FROM orders
            WHERE status = 'shipped'
              AND ordered_at >= now() - interval '7 days'
            GROUP BY product_id
        ) recent ON recent.product_id = p.id
    $$,
    schedule     => '1m',
    refresh_mode => 'DIFFERENTIAL'
);
