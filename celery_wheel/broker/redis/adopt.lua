-- Makes this epoch the only one that may publish, trim or move an offset; returns the hash.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 epoch  3 the store's place
--         4 a claim: milliseconds for which another store's holder must have been silent; '' for no claim
--
-- Positions mean nothing in another store, so a store never adopts the hash of another one, however long its holder is
-- silent: the tasks pending in the other store would stay there unseen. A claim, which a person makes, empties the hash.

local ZERO = string.rep('0', 19)
local fields = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'place', 'seen')
local uuid, epoch, place, seen = fields[1], fields[2], fields[3], fields[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = string.format('%.0f', now)

if uuid and uuid ~= ARGV[1] then
  local silent = now - (tonumber(seen) or 0)
  if ARGV[4] == '' or silent < tonumber(ARGV[4]) then
    return {'conflict', {uuid, place or '', string.format('%.0f', silent)}}
  end
  redis.call('DEL', KEYS[1])
  uuid = false
end
if not uuid then
  if redis.call('EXISTS', KEYS[1]) == 1 then return redis.error_reply('WRONGTYPE a hash that the wheel has not made') end
  redis.call('HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', ARGV[2], 'place', ARGV[3], 'seen', now_text, 'last', ZERO)
  return {'adopted', {}}
end
if epoch > ARGV[2] then return {'fenced', epoch} end

-- The number of the last chunk and the serial count within an epoch only: the next holder has counters of its own.
if epoch < ARGV[2] then redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'last', ZERO, 'serial', ZERO) end
-- A full server may refuse this write; the holder still gets its answer.
redis.pcall('HSET', KEYS[1], 'place', ARGV[3], 'seen', now_text)
return {'adopted', redis.call('HGETALL', KEYS[1])}
