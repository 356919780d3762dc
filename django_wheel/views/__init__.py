"""The admin's pages: each a function of the request and of the wheel, that only reads."""
