"""Messages, codes and commands between processes, the keys of Redis, and access to it.

No decisions and no Spark. Only `rechannel.wire.redis` imports redis.
"""
