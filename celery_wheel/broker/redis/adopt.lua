-- Makes this epoch the only one that may publish, trim or move a hand; returns what the hash holds.
--
--   KEYS  1 the hand hash
--   ARGV  1 uuid  2 epoch
--
-- Another store's hash is emptied: its positions mean nothing here.

local held = redis.call('HMGET', KEYS[1], 'uuid', 'epoch')
local uuid, epoch = held[1], held[2]

if uuid ~= ARGV[1] or not epoch then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', ARGV[2])
  return {'new', uuid or ''}
end
if epoch > ARGV[2] then return {'fenced', epoch} end

local fields = redis.call('HGETALL', KEYS[1])
if epoch < ARGV[2] then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[2])
  -- A serial counts within an epoch only: the next holder's host has a counter of its own.
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 4) == 'set:' then redis.call('HDEL', KEYS[1], fields[i]) end
  end
end
return {'adopted', fields}
