"""What these tests and their workers have in common. The bodies are for the workers: imported, they register."""

TABLE = "CREATE TABLE IF NOT EXISTS effects (run_id uuid, what text, at timestamptz DEFAULT clock_timestamp())"
QUEUE = "gpu"
