"""The prepared statements of the overview; see ``store.sql.statement``."""
