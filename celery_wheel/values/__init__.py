"""Plain values that every room may use: ids, the rule for texts, values formatted for people, and the version."""
