"""Lua scripts for atomic steps: the lease and its epoch, fenced writes, claims.

A lease is stored as its holder, a newline and its epoch. Values of another form or type were not written by a
controller and are overwritten.

The scripts may write while Redis is full (``allow-oom``): data of controllers is small and bounded, and leadership,
pauses and drains must work then too. Measurements of agents and links are refused.
"""

from __future__ import annotations

EPOCH_LEAP = 1000  # more than the epochs in the writes that a fail-over or a crash can lose

# KEYS[1] lease, KEYS[2] epoch; ARGV: holder, milliseconds, least epoch, longest lease, highest epoch. Returns the
# lease in Redis.
# A new epoch is one more than the highest in Redis or in a report of a link (ARGV[3]), so an emptied Redis reuses none.
# Values beyond the longest lease (ARGV[4]) or the highest epoch (ARGV[5]) are ignored.
# The replication id of the server is stored with the highest epoch. A promoted replica and a server restarted from disk
# have another id and may lack the newest writes, so the next epoch skips all that may have been used in those.
ACQUIRE = """#!lua flags=allow-oom
local function text(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'string' and #value < 1024 and value or nil
end
local function number(value)
  local result = value and string.match(value, '^%d+$') and tonumber(value)
  return result and result < tonumber(ARGV[5]) and result or nil
end
local owner = text(KEYS[1])
local holder, epoch = string.match(owner or '', '^(.*)\\n(%d+)$')
local left = redis.call('PTTL', KEYS[1])
epoch = number(epoch)
if not epoch or left < 0 or left > tonumber(ARGV[4]) then holder = nil end
if holder and holder ~= ARGV[1] then return owner end
local line = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
local stored = text(KEYS[2]) or ''
local highest, previous = number(string.match(stored, '^%d+')) or 0, string.match(stored, '^%d+ (%x+)$')
local leap = previous and previous ~= line
if holder and not leap and epoch >= tonumber(ARGV[3]) and epoch >= highest then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return owner
end
epoch = math.max(highest, tonumber(ARGV[3])) + (leap and LEAP or 1)
redis.call('SET', KEYS[2], string.format('%d %s', epoch, line))
owner = ARGV[1] .. '\\n' .. string.format('%d', epoch)
redis.call('SET', KEYS[1], owner, 'PX', ARGV[2])
return owner
""".replace("LEAP", str(EPOCH_LEAP))

# KEYS[1] lease; ARGV: holder. Releases the lease if the holder has it.
RELEASE = """#!lua flags=allow-oom
local owner = redis.pcall('GET', KEYS[1])
if type(owner) == 'string' and string.match(owner, '^(.*)\\n') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS[1] lease, KEYS[2] key; ARGV: the lease, then for each command: number of words, name, arguments after the key.
# Runs the commands and returns 1 if the lease in Redis is this one, else returns 0.
FENCED = """#!lua flags=allow-oom
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local at = 2
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  redis.call(ARGV[at + 1], KEYS[2], unpack(ARGV, at + 2, at + count))
  at = at + count + 1
end
return 1
"""

# KEYS[1] lease, KEYS[2] claim; ARGV: the lease, milliseconds. Returns the lease of the claim: ARGV[1], or an earlier
# one if the request was claimed before. Returns nothing if the lease in Redis is not this one.
CLAIM = """#!lua flags=allow-oom
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return false end
local claimed = redis.pcall('GET', KEYS[2])
if type(claimed) == 'string' then return claimed end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""
