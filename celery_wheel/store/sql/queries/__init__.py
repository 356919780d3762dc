"""The queries of pages for people, which run rarely: SQLAlchemy compiles each shape at its first use and keeps it."""
