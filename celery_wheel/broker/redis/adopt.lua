-- Makes this epoch the only one that may publish, trim or move an offset; returns what the hash holds.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 epoch  3 milliseconds for which another store's hash is left alone after its last `seen`
--
-- A holder adopts again twice a second, and `seen` says when it last did. Another store's hash that was seen lately
-- is in use: two stores on one namespace would each send what it has. One that was not is emptied: its positions
-- mean nothing here.

local held = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'seen')
local uuid, epoch, seen = held[1], held[2], held[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if uuid ~= ARGV[1] or not epoch then
  if uuid and seen and now - seen < tonumber(ARGV[3]) then return {'occupied', uuid} end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', ARGV[2], 'seen', string.format('%.0f', now))
  return {'new', uuid or ''}
end
if epoch > ARGV[2] then return {'fenced', epoch} end

local fields = redis.call('HGETALL', KEYS[1])
-- A full server refuses this, and may: the holder that only asks how things stand is answered all the same.
redis.pcall('HSET', KEYS[1], 'seen', string.format('%.0f', now))
if epoch < ARGV[2] then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[2])
  -- A serial counts within an epoch only: the next holder's host has a counter of its own.
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 4) == 'set:' then redis.call('HDEL', KEYS[1], fields[i]) end
  end
end
return {'adopted', fields}
