"""The store on a SQL database, the same for every dialect."""
