"""The one door to Redis: store, connection, users, and what its errors mean."""
