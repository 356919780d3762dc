"""The producer's side: an app's delayed tasks become messages in the wheel queue."""
