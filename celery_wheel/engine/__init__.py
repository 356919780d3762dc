"""The engine: takes messages in, lets them wait, hands them to the broker on time."""
