"""The only home of SQL: tables, transitions, journal, reads and the database itself."""
