"""What Redis does in one step for controllers: the lease and its epoch, writes that need the lease, claims of requests.

A lease stands in Redis as its holder, a newline and its epoch. What a script finds of another form, or type, was not
written by a controller, and is written over.

All of them may write while Redis is full (``allow-oom``): what controllers hold is little and bounded, and who leads,
what is paused and what is drained has to be said then too. What agents and links measured is refused.
"""

from __future__ import annotations

EPOCH_LEAP = 1000  # more than the lead can change hands in what a fail-over or a crash loses

# KEYS[1] lease, KEYS[2] epoch; ARGV: holder, milliseconds, least epoch. Returns {holder, epoch} of the lease's owner.
# The epoch is one more than the highest that Redis or any link (ARGV[3]) knows, so an emptied Redis cannot reuse one.
# ARGV[4] is the longest a lease can last, ARGV[5] the highest epoch: what says otherwise is not believed.
# With the highest epoch stands the server's line of history (its replication id). A replica that was promoted and a
# server that began again from disk have another one, and may lack the newest writes: the next epoch leaps over all that
# can have been given out in those.
ACQUIRE = """#!lua flags=allow-oom
local function text(key)
  local value = redis.pcall('GET', key)
  return type(value) == 'string' and #value < 1024 and value or nil
end
local function number(value)
  local found = value and string.match(value, '^%d+$') and tonumber(value)
  return found and found < tonumber(ARGV[5]) and found or nil
end
local owner = text(KEYS[1])
local holder, epoch = string.match(owner or '', '^(.*)\\n(%d+)$')
local left = redis.call('PTTL', KEYS[1])
epoch = number(epoch)
if not epoch or left < 0 or left > tonumber(ARGV[4]) then holder = nil end
if holder and holder ~= ARGV[1] then return owner end
local line = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
local kept = text(KEYS[2]) or ''
local known, past = number(string.match(kept, '^%d+')) or 0, string.match(kept, '^%d+ (%x+)$')
local leap = past and past ~= line
if holder and not leap and epoch >= tonumber(ARGV[3]) and epoch >= known then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return owner
end
epoch = math.max(known, tonumber(ARGV[3])) + (leap and LEAP or 1)
redis.call('SET', KEYS[2], string.format('%d %s', epoch, line))
owner = ARGV[1] .. '\\n' .. string.format('%d', epoch)
redis.call('SET', KEYS[1], owner, 'PX', ARGV[2])
return owner
""".replace("LEAP", str(EPOCH_LEAP))

# KEYS[1] lease; ARGV: holder. Gives the lease up if it is the holder's own.
RELEASE = """#!lua flags=allow-oom
local owner = redis.pcall('GET', KEYS[1])
if type(owner) == 'string' and string.match(owner, '^(.*)\\n') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS[1] lease, KEYS[2] key; ARGV: the lease, then commands: the number of their words, the name, what follows the key.
# Runs them if the lease in Redis is this one; returns 1, or 0 if it is not.
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

# KEYS[1] lease, KEYS[2] claim; ARGV: the lease, milliseconds. Returns whose the claim is, by the lease it was made
# under: ARGV[1] unless it was claimed before. Nothing if the lease in Redis is not this one.
CLAIM = """#!lua flags=allow-oom
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return false end
local claimed = redis.pcall('GET', KEYS[2])
if type(claimed) == 'string' then return claimed end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""
