-- Users of PostgreSQL with few rights: docs/roles.md says what each may do. The store is in the schema "public".
-- Before the first start:
CREATE ROLE scheduler LOGIN;
CREATE ROLE sender LOGIN;
CREATE ROLE reader LOGIN;
GRANT USAGE, CREATE ON SCHEMA public TO scheduler;
GRANT USAGE ON SCHEMA public TO sender, reader;
ALTER DEFAULT PRIVILEGES FOR ROLE scheduler IN SCHEMA public GRANT SELECT ON TABLES TO sender, reader;
-- After the first start of a scheduler, or `celery -A proj wheel migrate`, which make the tables:
GRANT INSERT, DELETE ON wheel_inbox TO sender;
GRANT INSERT, UPDATE, DELETE ON wheel_load, wheel_load_part, wheel_load_chunk TO sender;
