-- Gives the hash to this store, with the offsets that the store has: a person says that it is to dispatch to this Redis.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 milliseconds for which another store's holder must have been silent  then field, value, field, value …
--
-- The offsets let the next holder know that this Redis was never emptied. The offsets of another store are deleted.

local fields = redis.call('HMGET', KEYS[1], 'uuid', 'place', 'seen')
local uuid, place, seen = fields[1], fields[2], fields[3]
if uuid == ARGV[1] then return {'owned'} end
if uuid then
  local time = redis.call('TIME')
  local silent = time[1] * 1000 + math.floor(time[2] / 1000) - (tonumber(seen) or 0)
  if silent < tonumber(ARGV[2]) then return {'conflict', {uuid, place or '', string.format('%.0f', silent)}} end
  redis.call('DEL', KEYS[1])
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('WRONGTYPE a hash that the wheel has not made')
end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
return {'claimed'}
