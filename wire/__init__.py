"""What crosses between processes: typed, versioned messages, the Redis key space, and the one door to Redis.

No decisions and no Spark in here; `wire.store` is the only module of the project that imports redis.
"""
