"""Plain values that every room may use: ids, the rule for texts, and values formatted for people."""
