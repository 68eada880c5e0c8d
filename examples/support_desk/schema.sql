-- The order database of a small shop. It knows nothing of agents or runs: a refund is taken once per key, whoever asks.

CREATE SCHEMA shop;

CREATE TABLE shop.customers (
    email text PRIMARY KEY CHECK (email = lower(email)),
    name  text NOT NULL
);

CREATE TABLE shop.policy_categories (
    category    text PRIMARY KEY,
    window_days integer NOT NULL CHECK (window_days >= 0),
    returnable  boolean NOT NULL          -- may it come back merely because the customer changed their mind?
);

CREATE TABLE shop.policy_reasons (
    reason          text PRIMARY KEY,
    percent         integer NOT NULL CHECK (percent BETWEEN 1 AND 100),
    min_window_days integer NOT NULL CHECK (min_window_days >= 0),   -- at least so long, whatever the category says
    days_overdue    integer NOT NULL CHECK (days_overdue >= 0)       -- late and not delivered: past the promised day
);

CREATE TABLE shop.policy_limits (
    only_row             boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    approval_above_cents integer NOT NULL CHECK (approval_above_cents > 0),
    max_refund_cents     integer NOT NULL CHECK (max_refund_cents >= approval_above_cents)
);

CREATE TABLE shop.orders (
    order_id     text PRIMARY KEY,
    email        text NOT NULL REFERENCES shop.customers,
    ordered_on   date NOT NULL,
    promised_on  date NOT NULL,
    delivered_on date,
    CHECK (promised_on >= ordered_on AND delivered_on >= ordered_on)
);
CREATE INDEX ON shop.orders (email);

CREATE TABLE shop.order_items (
    order_id   text NOT NULL REFERENCES shop.orders,
    sku        text NOT NULL,
    title      text NOT NULL,
    category   text NOT NULL REFERENCES shop.policy_categories,
    quantity   integer NOT NULL CHECK (quantity > 0),
    unit_cents integer NOT NULL CHECK (unit_cents >= 0),
    PRIMARY KEY (order_id, sku)
);

CREATE TABLE shop.refunds (
    refund_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    idempotency_key text NOT NULL UNIQUE CHECK (idempotency_key <> ''),
    order_id        text NOT NULL REFERENCES shop.orders,
    sku             text,                 -- null: the whole order
    cents           integer NOT NULL CHECK (cents > 0),
    reason          text NOT NULL REFERENCES shop.policy_reasons,
    approved_by     text CHECK (approved_by <> ''),
    issued_at       timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (order_id, sku) REFERENCES shop.order_items (order_id, sku)
);
CREATE INDEX ON shop.refunds (order_id);

-- Whatever the programs in front of it believe: no large sum leaves the till without somebody's name on it.
CREATE FUNCTION shop.refuse_unapproved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.approved_by IS NULL AND NEW.cents > (SELECT approval_above_cents FROM shop.policy_limits) THEN
        RAISE EXCEPTION 'a refund of % cents needs an approval', NEW.cents USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_unapproved BEFORE INSERT OR UPDATE ON shop.refunds
    FOR EACH ROW EXECUTE FUNCTION shop.refuse_unapproved();

-- Every knock at the door, also those that were refused, repeated, or cut off before they had an answer (outcome null).
CREATE TABLE shop.refund_attempts (
    attempt_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    idempotency_key text NOT NULL CHECK (idempotency_key <> ''),
    asked_by        text,                 -- the run that asked, where there is one
    order_id        text NOT NULL,
    sku             text,
    cents           integer NOT NULL,
    reason          text NOT NULL,
    attempted_at    timestamptz NOT NULL DEFAULT now(),
    outcome         text CHECK (outcome IN ('issued', 'repeated', 'refused'))
);
