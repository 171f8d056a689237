"""What processes exchange: messages, codes and commands, the keys of Redis, and the access to it.

No decisions and no Spark. Only `rechannel.wire.redis` imports redis.
"""
