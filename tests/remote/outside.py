"""What these tests and their workers have in common. The bodies are for the workers: imported, they register."""

TABLES = """
CREATE TABLE IF NOT EXISTS effects (
    run_id uuid, key text, what text, pid int, attempt int, at timestamptz DEFAULT clock_timestamp()
);
"""
QUEUE = "steps"
