-- What XNNPACK's whole microseconds hide: made of all rows, and asked for more than once. Read after event_views.sql;
-- processes.py and summaries.sql start from it.

-- For operator_rounds, too. DOUBLE is exact for whole nanoseconds up to 104 days; sums of BIGINT have 128 bits, and are
-- slow.
CREATE TEMP TABLE calls AS SELECT * REPLACE (hidden_ns::DOUBLE AS hidden_ns) FROM delegate_calls;
CREATE OR REPLACE VIEW delegate_calls AS FROM calls;

CREATE TEMP TABLE rounds_of_operators AS FROM operator_rounds;

-- How many rows of each category XNNPACK writes in a call: each of them hides up to a microsecond.
CREATE TEMP TABLE floored_rows AS
SELECT run_id, delegate, category, count(DISTINCT position) AS floored
FROM rounds_of_operators
WHERE backend = 'xnnpack'
GROUP BY run_id, delegate, category;
