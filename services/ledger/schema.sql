CREATE TABLE IF NOT EXISTS groups (
  group_id INTEGER PRIMARY KEY,
  position INTEGER NOT NULL UNIQUE,
  epoch INTEGER NOT NULL,
  task_id TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('in_flight','trained','filtered','expired','failed')),
  attempts INTEGER NOT NULL DEFAULT 1,
  admitted_version INTEGER NOT NULL,
  oldest_version INTEGER,
  train_step INTEGER,
  tokens INTEGER NOT NULL DEFAULT 0,
  reason TEXT NOT NULL DEFAULT '',
  kept INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS account (
  id INTEGER PRIMARY KEY CHECK (id = 0), groups INTEGER NOT NULL, tokens INTEGER NOT NULL
);
INSERT OR IGNORE INTO account VALUES (0, 0, 0);
CREATE TABLE IF NOT EXISTS waste (cause TEXT PRIMARY KEY, tokens INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS results (group_id INTEGER PRIMARY KEY, result BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS forget_result AFTER UPDATE OF status, attempts ON groups
BEGIN DELETE FROM results WHERE group_id = OLD.group_id; END;
CREATE INDEX IF NOT EXISTS groups_by_ending ON groups (status, reason, tokens, kept);
