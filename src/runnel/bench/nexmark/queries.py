"""Nexmark's queries over tables.

Windows of time are groups here: a tumbling window is `date_bin`, a hopping one is `date_bin` for each of its hops, a
session is found with lag and a running sum. Where the benchmark orders by something that is not unique, the time of
the bid decides. Q10 writes files in the original, here it is the projection alone; Q12 asks for processing time, here
it is the time of the event.
"""

from __future__ import annotations

from collections.abc import Mapping

QUERIES: Mapping[str, str] = {
    "q00_passthrough": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q01_currency": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q02_selection": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q03_local_items": """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q04_category_price": """
        SELECT q.category, avg(q.final) AS average
        FROM (SELECT max(b.price) AS final, a.category
              FROM auction a, bid b
              WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
              GROUP BY a.id, a.category) q
        GROUP BY q.category""",
    "q05_hot_items": """
        WITH counted AS (
            SELECT auction, count(*) AS num, date_bin('2 s', date_time, timestamp '2000-01-01') - hop AS starts
            FROM bid CROSS JOIN (VALUES (interval '0 s'), (interval '2 s'), (interval '4 s'), (interval '6 s'),
                                        (interval '8 s')) h(hop)
            GROUP BY auction, date_bin('2 s', date_time, timestamp '2000-01-01') - hop)
        SELECT c.auction, c.num, c.starts
        FROM counted c JOIN (SELECT max(num) AS most, starts FROM counted GROUP BY starts) m
             ON m.starts = c.starts AND c.num >= m.most""",
    "q06_seller_price": """
        SELECT q.seller, q.date_time,
               avg(q.final) OVER (PARTITION BY q.seller ORDER BY q.date_time ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
                   AS average
        FROM (SELECT max(b.price) AS final, a.seller, a.date_time
              FROM auction a JOIN bid b ON a.id = b.auction
              WHERE b.date_time BETWEEN a.date_time AND a.expires
              GROUP BY a.id, a.seller, a.date_time) q""",
    "q07_highest_bid": """
        SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
        FROM bid b JOIN (
            SELECT max(price) AS most, date_bin('10 s', date_time, timestamp '2000-01-01') AS starts
            FROM bid GROUP BY date_bin('10 s', date_time, timestamp '2000-01-01')) m
        ON b.price = m.most AND date_bin('10 s', b.date_time, timestamp '2000-01-01') = m.starts""",
    "q08_new_users": """
        SELECT p.id, p.name, p.starts
        FROM (SELECT id, name, date_bin('10 s', date_time, timestamp '2000-01-01') AS starts FROM person
              GROUP BY id, name, date_bin('10 s', date_time, timestamp '2000-01-01')) p
        JOIN (SELECT seller, date_bin('10 s', date_time, timestamp '2000-01-01') AS starts FROM auction
              GROUP BY seller, date_bin('10 s', date_time, timestamp '2000-01-01')) a
        ON p.id = a.seller AND p.starts = a.starts""",
    "q09_winning_bids": """
        SELECT id, item_name, seller, category, auction, bidder, price, bid_time
        FROM (SELECT a.id, a.item_name, a.seller, a.category, b.auction, b.bidder, b.price, b.date_time AS bid_time,
                     row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time) AS place
              FROM auction a JOIN bid b ON a.id = b.auction
              WHERE b.date_time BETWEEN a.date_time AND a.expires) ranked
        WHERE place = 1""",
    "q10_log": """
        SELECT auction, bidder, price, date_time, extra, date_time::date AS day, extract(hour FROM date_time) AS hour
        FROM bid""",
    "q11_sessions": """
        SELECT bidder, count(*) AS bids, min(date_time) AS starts, max(date_time) AS ends
        FROM (SELECT bidder, date_time, sum(fresh) OVER (PARTITION BY bidder ORDER BY date_time) AS session
              FROM (SELECT bidder, date_time,
                           CASE WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
                                     <= interval '10 s' THEN 0 ELSE 1 END AS fresh
                    FROM bid) gaps) islands
        GROUP BY bidder, session""",
    "q12_windows": """
        SELECT bidder, count(*) AS bids, date_bin('10 s', date_time, timestamp '2000-01-01') AS starts
        FROM bid GROUP BY bidder, date_bin('10 s', date_time, timestamp '2000-01-01')""",
    "q13_side_input": """
        SELECT b.auction, b.bidder, b.price, b.date_time, s.value
        FROM bid b JOIN side_input s ON b.auction % 1000 = s.key""",
    "q14_calculation": """
        SELECT auction, bidder, 0.908 * price AS price,
               CASE WHEN extract(hour FROM date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                    WHEN extract(hour FROM date_time) <= 6 OR extract(hour FROM date_time) >= 20 THEN 'nightTime'
                    ELSE 'otherTime' END AS bid_time_type,
               date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15_bidding_statistics": """
        SELECT date_time::date AS day, count(*) AS total_bids,
               count(*) FILTER (WHERE price < 10000) AS rank1_bids,
               count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
               count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
               count(DISTINCT bidder) AS total_bidders,
               count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
               count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
               count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
               count(DISTINCT auction) AS total_auctions,
               count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
               count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
               count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
        FROM bid GROUP BY date_time::date""",
    "q16_channel_statistics": """
        SELECT channel, date_time::date AS day, max(date_time) AS latest, count(*) AS total_bids,
               count(*) FILTER (WHERE price < 10000) AS rank1_bids,
               count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
               count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
               count(DISTINCT bidder) AS total_bidders,
               count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
               count(DISTINCT auction) AS total_auctions,
               count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions
        FROM bid GROUP BY channel, date_time::date""",
    "q17_auction_statistics": """
        SELECT auction, date_time::date AS day, count(*) AS total_bids,
               count(*) FILTER (WHERE price < 10000) AS rank1_bids,
               count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
               count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
               min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, date_time::date""",
    "q18_last_bid": """
        SELECT auction, bidder, price, channel, url, date_time, extra
        FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS place
              FROM bid) ranked
        WHERE place <= 1""",
    "q19_top_bids": """
        SELECT auction, bidder, price, channel, url, date_time, extra, place
        FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS place
              FROM bid) ranked
        WHERE place <= 10""",
    "q20_expanded_bids": """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, a.item_name, a.initial_bid, a.reserve,
               a.date_time AS auction_time, a.expires, a.seller, a.category
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21_channel_id": """
        SELECT auction, bidder, price, channel,
               CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                    WHEN 'baidu' THEN '3' ELSE substring(url from '(?:&|^)channel_id=([^&]*)') END AS channel_id
        FROM bid
        WHERE substring(url from '(?:&|^)channel_id=([^&]*)') IS NOT NULL
           OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22_url_directories": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
               split_part(url, '/', 6) AS dir3
        FROM bid""",
}
